"""Locates CUDA's headers, `libcudadevrt.a` and NVRTC itself: in wheels, conda or a toolkit.

Wheels of CUDA 12 have a folder for each component (`nvidia/cuda_runtime/include`), those of CUDA 13
one for all (`nvidia/cu13/include`, where `cuda_fp16.h` also needs `include/cccl`). The wheels are
searched first, `cuda.pathfinder` second (cuda/library_folders.py says why), and a toolkit last.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from rawnn.common.errors import MissingLibrary
from rawnn.cuda import library_folders

_INCLUDE_FOLDERS = {
    # crt/mma.h is in the compiler's wheel; in CUDA 13 it is in the same folder as the rest.
    12: ("cuda_runtime/include", "cuda_cccl/include", "cuda_nvcc/include"),
    13: ("cu13/include", "cu13/include/cccl"),
}
_WITNESSES = ("cuda_fp16.h", "cuda/std/cstdint", "crt/mma.h")
"""One header of each of the three components that kernels include from."""
HOST_HEADERS = Path(__file__).parent / "host"
"""Replacements for C's headers, which NVRTC lacks."""
OVERRIDES = Path(__file__).parent / "overrides"
"""Replacements for CUDA headers that NVRTC refuses; they come before CUDA's folders."""
STANDARD = {"algorithm", "array", "atomic", "bit", "bitset", "chrono", "complex", "concepts",
            "functional", "initializer_list", "iterator", "limits", "memory", "numeric", "optional",
            "ratio", "span", "tuple", "type_traits", "utility", "variant"}
"""C++ headers that CCCL provides for the device; their replacements import them into `std`."""
_DEVRT_FOLDERS = {12: ("cuda_runtime/lib",), 13: ("cu13/lib",)}
_NVRTC_FOLDERS = {
    12: ("cuda_nvrtc/lib", "cuda_nvrtc/bin"),
    13: ("cu13/lib", "cu13/bin/x86_64"),
}
_NVRTC_FILES = ("libnvrtc.so.*", "libnvrtc-builtins.so.*", "nvrtc64_*.dll")


def cuda_major() -> int | None:
    """Major CUDA version of the installed `cuda.bindings`, without importing them; None if they are
    not installed. If wheels of two CUDA versions are installed, it selects one."""
    for folder in library_folders.wheels("cuda"):
        try:
            text = (folder / "bindings" / "_version.py").read_text()
        except OSError:
            continue
        match = re.search(r"""^(?:__version__\s*=|version\s*=).*?['"](\d+)\.""", text, re.MULTILINE)
        if match:
            return int(match[1])
    return None


def include_directories() -> tuple[Path, ...]:
    """The directories of CUDA's headers, CCCL's (`nv/target`, `cuda/std`, `cub`) and the compiler's
    (`crt/mma.h`), and of rawnn's replacements for C's (`cstdio`).

    The first place with `cuda_fp16.h` is used: wheels, what `cuda.pathfinder` finds, conda, a
    toolkit. Headers of the other two that it lacks come from later places. Raises MissingLibrary,
    with every place searched, if there are none.
    """
    looked: list[Path] = []
    found: list[Path] = []
    lacking = list(_WITNESSES)
    for place in _header_places():
        looked.extend(place)
        here = [folder for folder in place if folder.is_dir()]
        if not found and not any((folder / lacking[0]).is_file() for folder in here):
            continue
        first = not found  # all folders of this place are used
        for folder in here:
            brings = [name for name in lacking if (folder / name).is_file()]
            if first or brings:
                found.append(folder)
                lacking = [name for name in lacking if name not in brings]
        if not lacking:
            break
    if not found:
        raise MissingLibrary(_not_found("CUDA's headers (cuda_fp16.h)", looked))
    return (*found, HOST_HEADERS)


def find_optional_directories(wanted: Iterable[str]) -> tuple[Path, ...]:
    """The folders of optional wheels (cuRAND) that have one of the `wanted` headers. They come
    after `include_directories()`."""
    wheels = [root / folder for root in library_folders.wheels("nvidia")
              for folder in ("curand/include", "cu13/include")]
    roots = [prefix / "include" for prefix in library_folders.conda()]
    roots += [root / "include" for root in library_folders.toolkits()]
    found = {next((folder for folder in (*wheels, *roots) if (folder / header).is_file()), None)
             for header in wanted if header.startswith("curand")}
    return tuple(folder for folder in found if folder is not None)


def _header_places() -> Iterator[tuple[Path, ...]]:
    """Folders with headers, place by place. `cuda.pathfinder` is imported only if needed."""
    yield from _by_major(_INCLUDE_FOLDERS)
    yield tuple(dict.fromkeys(_pathfinder_headers()))
    roots = [root for prefix in library_folders.conda()
             for root in (prefix / "targets/x86_64-linux", prefix)]
    for root in (*roots, *library_folders.toolkits()):
        yield root / "include", root / "include/cccl"


def install_hint(header: str) -> str:
    """One line on how to install or find a header that could not be opened."""
    if (HOST_HEADERS / header).is_file():
        return f"'{header}' needs CCCL: {_install('cccl')}"
    if header.startswith(("nv/", "cuda/", "cub/", "thrust/")):
        return f"'{header}' is one of CCCL's: {_install('cccl')}"
    if header.startswith("crt/") or header == "mma.h":
        return f"'{header}' comes with the compiler's own headers: {_install('crt')}"
    if header.startswith("curand_"):
        return (f"'{header}' is one of cuRAND's: pip install "
                f"{'nvidia-curand' if cuda_major() == 13 else 'nvidia-curand-cu12'}")
    return (f"'{header}' is looked for beside the source and in the folders of include=[...] "
            f"(-I on the command line): add the folder that has it")


def _install(component: str) -> str:
    """The command that installs the wheel of a component."""
    if cuda_major() == 13:
        return f"pip install 'nvidia-cuda-{component}<14'"
    return f"pip install nvidia-cuda-{'nvcc' if component == 'crt' else component}-cu12"


@functools.cache
def cudadevrt_library() -> Path:
    """Path of `libcudadevrt.a`, the device runtime that kernels setting a conditional graph
    node's value are linked with.

    Raises MissingLibrary, with every place searched, if it is not installed.
    """
    looked: list[Path] = []
    name = "cudadevrt.lib" if sys.platform == "win32" else "libcudadevrt.a"
    candidates = [folder for folders in _by_major(_DEVRT_FOLDERS) for folder in folders]
    for root in library_folders.toolkits():
        candidates += [root / "lib64", root / "targets/x86_64-linux/lib", root / "lib"]
    for folder in candidates:
        looked.append(folder)
        if (folder / name).is_file():
            return folder / name
    raise MissingLibrary(_not_found(f"the CUDA device runtime ({name})", looked))


def nvrtc_library_path() -> Path | None:
    """The NVRTC library that this process has loaded or would load; None if unknown."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        maps = ""
    loaded = re.search(r"(/\S.*libnvrtc\.so[^\n]*)", maps)
    if loaded:
        return Path(loaded[1])
    for path in _nvrtc_files():
        if "builtins" not in path.name:
            return path
    return None


@functools.cache
def nvrtc_identity() -> str | None:
    """Text that changes whenever another NVRTC is installed, found without loading the library
    (50-200 ms): name, size and modification time of its files, and the major version of the
    bindings, which selects between two. None if no file is found; then the caller has to load NVRTC
    and ask for its version.
    """
    parts = []
    for path in _nvrtc_files():
        status = path.stat()
        parts.append(f"{path.name}:{status.st_size}:{status.st_mtime_ns}")
    return f"bindings {cuda_major()}, " + ", ".join(sorted(parts)) if parts else None


def _nvrtc_files() -> list[Path]:
    """NVRTC's files in the first place that has them: wheels, conda, the loader's path, a toolkit
    (the order of `cuda.pathfinder`, which loads it)."""
    looked: list[Iterable[Path]] = list(_by_major(_NVRTC_FOLDERS))
    looked += [[prefix / "lib" for prefix in library_folders.conda()], library_folders.loader()]
    looked += [[root / "lib64", root / "lib"] for root in library_folders.toolkits()]
    for folders in looked:
        for folder in folders:
            found = [path for pattern in _NVRTC_FILES for path in sorted(folder.glob(pattern))]
            if any("builtins" not in path.name for path in found):
                return found
    return []


def _by_major(table: Mapping[int, tuple[str, ...]]) -> Iterator[tuple[Path, ...]]:
    """Folders of `table` in each `nvidia` package folder, the bindings' CUDA version first."""
    major = cuda_major()
    for version in sorted(table, key=lambda number: (number != major, -number)):
        for root in library_folders.wheels("nvidia"):
            yield tuple(root / folder for folder in table[version])


def _pathfinder_headers() -> Iterator[Path]:
    """Folders that `cuda.pathfinder` finds, including conda's; none if it is missing or too old."""
    try:
        find = importlib.import_module("cuda.pathfinder").find_nvidia_header_directory
    except (ImportError, AttributeError):
        return
    for component in ("cudart", "cccl"):
        try:
            found = find(component)
        except (ValueError, RuntimeError):
            continue
        if found:
            yield Path(found)


def tool(name: str) -> Path | None:
    """One of CUDA's tools (nvdisasm, compute-sanitizer): on PATH, in a wheel, conda or a toolkit;
    None if there is none."""
    found = shutil.which(name) or shutil.which(name, path=os.pathsep.join(map(str, tool_folders())))
    return Path(found) if found else None


def tool_folders() -> tuple[Path, ...]:
    """Folders of CUDA's tools, in addition to PATH."""
    wheels = (root / folder for root in library_folders.wheels("nvidia")
              for folder in ("cu13/bin", "cuda_nvdisasm/bin", "cuda_nvcc/bin"))
    return (*wheels, *(prefix / "bin" for prefix in library_folders.conda()),
            *(root / folder for root in library_folders.toolkits()
              for folder in ("bin", "compute-sanitizer")))


def _not_found(what: str, looked: Iterable[Path]) -> str:
    extra = "cu13" if cuda_major() == 13 else "cu12"
    everywhere = ", ".join(str(path) for path in dict.fromkeys(looked))
    return (
        f"{what} cannot be found; install with: pip install 'rawnn[{extra}]' "
        f"(looked in {everywhere})"
    )
