"""Where CUDA's headers and libraries are looked for: wheels of both layouts, then toolkits."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rawnn.common.errors import MissingLibrary
from rawnn.cuda import library_folders
from rawnn.cuda.compiling import headers
from rawnn.cuda.compiling.host_headers import is_helper, is_of_the_host, replace_header
from tests import requires

REPOSITORY = Path(__file__).parents[2]

LAYOUTS = {
    12: {
        "include": ["cuda_runtime/include", "cuda_cccl/include"],
        "devrt": "cuda_runtime/lib/libcudadevrt.a",
        "nvrtc": "cuda_nvrtc/lib/libnvrtc.so.12",
    },
    13: {
        "include": ["cu13/include", "cu13/include/cccl"],
        "devrt": "cu13/lib/libcudadevrt.a",
        "nvrtc": "cu13/lib/libnvrtc.so.13",
    },
}


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A site-packages folder standing in for the real one; `install` puts wheels into it."""
    folders = {"cuda": [], "nvidia": []}
    monkeypatch.setattr(library_folders, "wheels", lambda package="nvidia": folders[package])
    monkeypatch.setattr(headers, "_pathfinder_headers", lambda: iter(()))
    monkeypatch.setattr(library_folders, "toolkits", lambda: iter([tmp_path / "toolkit"]))
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    headers.cudadevrt_library.cache_clear()
    headers.nvrtc_identity.cache_clear()
    yield Site(tmp_path, folders)
    headers.cudadevrt_library.cache_clear()
    headers.nvrtc_identity.cache_clear()


class Site:
    def __init__(self, root: Path, folders: dict[str, list[Path]]) -> None:
        self.root, self.folders = root, folders
        self.nvidia = root / "site" / "nvidia"

    def put(self, path: Path, text: str = "") -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def bindings(self, version: str) -> None:
        folder = self.root / "site" / "cuda"
        self.put(
            folder / "bindings" / "_version.py",
            f"version: str\n__version__: str\n\n__version__ = version = '{version}'\n",
        )
        self.folders["cuda"] = [folder]

    def wheels(self, major: int) -> None:
        layout = LAYOUTS[major]
        for folder in layout["include"]:
            (self.nvidia / folder).mkdir(parents=True)
        self.put(self.nvidia / layout["include"][0] / "cuda_fp16.h")
        self.put(self.nvidia / layout["devrt"])
        self.put(self.nvidia / layout["nvrtc"], "library")
        self.folders["nvidia"] = [self.nvidia]


@pytest.mark.parametrize("major", [12, 13])
def test_wheels_of_each_layout(site, major):
    site.bindings(f"{major}.9.1")
    site.wheels(major)
    layout = LAYOUTS[major]
    assert headers.cuda_major() == major
    assert headers.include_directories() == (
        *(site.nvidia / f for f in layout["include"]), headers.HOST_HEADERS)
    assert headers.cudadevrt_library() == site.nvidia / layout["devrt"]
    assert f"bindings {major}" in headers.nvrtc_identity()


@pytest.mark.parametrize("major", [12, 13])
def test_the_bindings_choose_between_two_versions(site, major):
    site.bindings(f"{major}.0.0")
    site.wheels(12)
    site.wheels(13)
    assert headers.include_directories()[0] == site.nvidia / LAYOUTS[major]["include"][0]
    assert headers.cudadevrt_library() == site.nvidia / LAYOUTS[major]["devrt"]
    assert f"libnvrtc.so.{major}:" in headers.nvrtc_identity()


def test_toolkit_comes_last(site):
    toolkit = site.root / "toolkit"
    site.put(toolkit / "include" / "cuda_fp16.h")
    site.put(toolkit / "include" / "cccl" / "nv" / "target")
    site.put(toolkit / "lib64" / "libcudadevrt.a")
    site.put(toolkit / "lib64" / "libnvrtc.so.13", "library")
    assert headers.include_directories() == (
        toolkit / "include", toolkit / "include" / "cccl", headers.HOST_HEADERS)
    assert headers.cudadevrt_library() == toolkit / "lib64" / "libcudadevrt.a"
    assert "libnvrtc.so.13:7:" in headers.nvrtc_identity()
    site.wheels(13)
    assert headers.include_directories()[0] == site.nvidia / "cu13" / "include"


def test_the_library_that_is_loaded_or_would_be(site, monkeypatch):
    maps = ["7f00-7f01 r--p 00000000 08:01 9 /usr/lib/libc.so.6\n"]
    read = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path, *a, **more: maps[0] if str(
        path) == "/proc/self/maps" else read(path, *a, **more))
    site.bindings("12.9.1")
    assert headers.nvrtc_library_path() is None
    site.wheels(12)
    library = site.nvidia / LAYOUTS[12]["nvrtc"]
    site.put(library.parent / "libnvrtc-builtins.so.12.9")
    assert headers.nvrtc_library_path() == library
    maps[0] += "7f02-7f03 r-xp 00000000 08:01 9      /opt/my libs/libnvrtc.so.12\n"
    assert headers.nvrtc_library_path() == Path("/opt/my libs/libnvrtc.so.12")


@pytest.mark.parametrize("witness", ["cuda/std/cstdint", "crt/mma.h"])
def test_what_the_wheels_lack_comes_from_a_toolkit(site, witness):
    site.bindings("12.9.1")
    site.wheels(12)
    wheels = tuple(site.nvidia / f for f in LAYOUTS[12]["include"])
    site.put(site.root / "toolkit" / "include" / witness)
    assert headers.include_directories() == (
        *wheels, site.root / "toolkit" / "include", headers.HOST_HEADERS)
    site.put(wheels[0] / witness)
    assert headers.include_directories() == (*wheels, headers.HOST_HEADERS)


def test_conda_is_looked_at_before_a_toolkit(site, monkeypatch):
    folder = site.root / "conda" / "targets/x86_64-linux" / "include"
    site.put(folder / "cuda_fp16.h")
    site.put(folder / "cccl" / "cuda/std/cstdint")
    site.put(site.root / "toolkit" / "include" / "cuda_fp16.h")
    monkeypatch.setenv("CONDA_PREFIX", str(site.root / "conda"))
    assert headers.include_directories() == (folder, folder / "cccl", headers.HOST_HEADERS)


@pytest.mark.parametrize(("version", "header", "fix"), [
    ("12.9.0", "nv/target", "pip install nvidia-cuda-cccl-cu12"),
    ("13.0.1", "cuda/barrier", "pip install 'nvidia-cuda-cccl<14'"),
    ("12.9.0", "crt/mma.h", "pip install nvidia-cuda-nvcc-cu12"),
    ("13.0.1", "crt/mma.h", "pip install 'nvidia-cuda-crt<14'"),
    ("13.0.1", "type_traits", "pip install 'nvidia-cuda-cccl<14'"),
    ("12.9.0", "curand_kernel.h", "pip install nvidia-curand-cu12"),
    ("13.0.1", "curand_kernel.h", "pip install nvidia-curand"),
    ("13.0.1", "mine.h", "include=[...]"),
])
def test_a_header_that_is_not_found_has_a_fix(site, version, header, fix):
    site.bindings(version)
    assert fix in headers.install_hint(header)


@pytest.mark.parametrize(("version", "extra"), [("12.9.0", "cu12"), ("13.0.1", "cu13")])
def test_nothing_installed_names_the_extra_and_the_places(site, version, extra):
    site.bindings(version)
    site.folders["nvidia"] = [site.nvidia]
    for find in (headers.include_directories, headers.cudadevrt_library):
        with pytest.raises(MissingLibrary) as caught:
            find()
        assert f"rawnn[{extra}]" in str(caught.value)
        assert str(site.nvidia / "cu13") in str(caught.value)
        assert str(site.nvidia / "cuda_runtime") in str(caught.value)
        assert str(site.root / "toolkit") in str(caught.value)
    assert headers.nvrtc_identity() is None


def test_identity_changes_with_the_library(site):
    site.bindings("13.0.0")
    site.wheels(13)
    before = headers.nvrtc_identity()
    library = site.nvidia / LAYOUTS[13]["nvrtc"]
    os.utime(library, ns=(1, 1))
    headers.nvrtc_identity.cache_clear()
    assert headers.nvrtc_identity() != before
    after = headers.nvrtc_identity()
    site.bindings("12.9.0")
    headers.nvrtc_identity.cache_clear()
    assert headers.nvrtc_identity() != after


def test_loader_path_is_searched(site, monkeypatch):
    site.put(site.root / "other" / "libnvrtc.so.12", "library")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{site.root / 'none'}{os.pathsep}{site.root / 'other'}")
    assert "libnvrtc.so.12" in headers.nvrtc_identity()


def test_real_headers_are_those_of_the_loaded_nvrtc():
    requires.module("cuda.bindings.nvrtc")
    from rawnn.cuda.nvrtc import Nvrtc

    code, major, _ = Nvrtc().nvrtcVersion()
    assert not code
    assert headers.cuda_major() == major
    path = headers.nvrtc_library_path()
    assert path is not None
    assert path.is_file()
    assert f".so.{major}" in path.name
    assert headers.cudadevrt_library().read_bytes().startswith(b"!<arch>")
    folders = headers.include_directories()
    for header in ("cuda_fp16.h", "cuda_bf16.h", "nv/target", "cuda/std/type_traits"):
        assert any((folder / header).is_file() for folder in folders), header


def test_import_is_light():
    """Neither CUDA packages, nor the cache's platformdirs, nor NumPy come with the import."""
    code = (
        "import sys; import rawnn.ptx;"
        "import rawnn.cuda.compiling.compile, rawnn.cuda.compiling.signature;"
        "heavy = 'cuda.bindings', 'cuda.pathfinder', 'numpy', 'platformdirs', 'importlib.metadata';"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, check=True
    )
    assert done.stdout.strip() == "[]"


STANDARD = """
algorithm any array atomic barrier bit bitset cassert cctype cerrno cfenv cfloat charconv chrono
cinttypes climits clocale cmath codecvt compare complex concepts condition_variable coroutine
csetjmp csignal cstdarg cstddef cstdint cstdio cstdlib cstring ctime cuchar cwchar cwctype deque
exception execution expected filesystem format forward_list fstream functional future
initializer_list iomanip ios iosfwd iostream istream iterator latch limits list locale map mdspan
memory memory_resource mutex new numbers numeric optional ostream print queue random ranges ratio
regex scoped_allocator semaphore set shared_mutex source_location span sstream stack stdexcept
stop_token streambuf string string_view strstream syncstream system_error thread tuple type_traits
typeindex typeinfo unordered_map unordered_set utility valarray variant vector version
"""


@pytest.mark.parametrize("header", STANDARD.split())
def test_each_header_of_the_standard_library_is_left_out_or_has_a_replacement(header):
    """NVRTC has none of them; all of C++20, and what of C++23 compilers have had for long."""
    assert is_of_the_host(header) != (headers.HOST_HEADERS / header).is_file()


HOSTS = ("thrust/device_vector.h", "thrust/sort.h", "thrust/host_vector.h", "cublas_v2.h",
         "cufft.h", "cusparse.h", "cusolverDn.h", "GL/glew.h", "sys/time.h", "unistd.h",
         "pthread.h", "omp.h", "gtest/gtest.h")
DEVICES = ("thrust/complex.h", "thrust/functional.h", "thrust/pair.h", "thrust/tuple.h",
           "thrust/swap.h", "thrust/extrema.h", "thrust/detail/config.h", "cuda_fp16.h", "mma.h",
           "cooperative_groups.h", "cub/cub.cuh", "curand_kernel.h", "cuda/std/span", "mine.cuh",
           "sortable.h", "my/thrust/sort.h")


def test_headers_that_device_code_needs_are_read() -> None:
    assert [each for each in HOSTS if not is_of_the_host(each)] == []
    assert [each for each in DEVICES if is_of_the_host(each)] == []
    helpers = ("helper_cuda.h", "helper_string.h", "exception.h", "paramgl.h", "nvrtc_helper.h")
    assert [each for each in helpers if not is_helper(each)] == []
    assert not is_helper("helper.h")
    for header, types in (("cufft.h", "cufftComplex"), ("cufftXt.h", "cufftReal"),
                          ("cublas_v2.h", "cuda_fp16.h"), ("cusparse.h", "cuda_bf16.h"),
                          ("cusolverDn.h", "cuComplex.h")):
        assert types in replace_header(header)
    assert replace_header("vector") == replace_header("cuda_fp16.h") == ""
