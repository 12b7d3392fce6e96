"""Diagnoses CUDA on this machine: the driver, every library, and what each toggle lacks.

It works without a GPU, and without any CUDA package.
"""

from __future__ import annotations

import ctypes
import platform
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from rawnn.common.errors import MissingLibrary, RawnnError
from rawnn.common.target import Machine
from rawnn.cuda.backend import has_package
from rawnn.cuda.compiling import headers
from rawnn.cuda.driver import MINIMUM_DRIVER
from rawnn.cuda.libs import cublaslt, cudnn, locate, nccl
from rawnn.engine.machine import Opened, open_device
from rawnn.opts import TOGGLES
from rawnn.version import __version__

_EVERYTHING, _NEWEST = (9, 0), 13000
"""Compute capability and driver for which no toggle is refused."""


@dataclass(frozen=True)
class Finding:
    """One component: where it was found and its version, or where it was looked for and the line
    that fixes it. If a `required` one is missing, no kernel of rawnn runs on the GPU."""

    name: str
    found: str = ""
    version: str = ""
    looked: tuple[str, ...] = ()
    fix: str = ""
    required: bool = False

    @property
    def missing(self) -> bool:
        return not self.found


@dataclass(frozen=True)
class Lack:
    """A toggle that cannot run here: why, and the line that fixes it."""

    toggle: str
    reason: str
    fix: str


@dataclass(frozen=True)
class Diagnosis:
    """All findings; `healthy` says whether training on the GPU works."""

    findings: tuple[Finding, ...]
    lacks: tuple[Lack, ...]

    @property
    def healthy(self) -> bool:
        return not any(each.missing and each.required for each in self.findings)


def diagnose() -> Diagnosis:
    """Examine everything."""
    try:
        opened = open_device("gpu", lambda message: None)
    except (RawnnError, RuntimeError, OSError) as error:
        opened = Opened(None, Machine(_first(str(error)), has_package=has_package), 0.0)
    try:
        findings = (_python(), _gpu(opened), *_libraries(), *_tools())
        return Diagnosis(findings, tuple(_lacks(opened.machine)))
    finally:
        if opened.device is not None:
            opened.device.close()


def _first(text: str) -> str:
    return text.replace("; --device host trains on the CPU", "").replace(
        "; run with --device host to train on the CPU", "")


def _python() -> Finding:
    return Finding("rawnn", str(Path(__file__).parent),
                   f"{__version__}, Python {platform.python_version()}")


def _gpu(opened: Opened) -> Finding:
    if opened.device is None:
        reason = opened.machine.no_gpu or ""
        fix = f"pip install 'rawnn[{_extra()}]'" if "package" in reason else \
            _newer_driver() if "supports CUDA" in reason else \
            "install NVIDIA's driver (nvidia-smi must list a GPU), in a container with " \
            "--gpus all; until then: --device host, --device sim"
        return Finding("driver and GPU", looked=(reason,), fix=fix, required=True)
    info = opened.device.info
    return Finding("driver and GPU", info.name, required=True, version=(
        f"driver {info.driver}, CUDA {info.cuda}, compute capability "
        f"{'.'.join(map(str, info.compute_capability))}, bindings {info.bindings}"))


def _extra() -> str:
    """The extra for the bindings that are installed, else for the driver."""
    major = headers.cuda_major() or (12 if 0 < _driver_version() < MINIMUM_DRIVER[13] else 13)
    return "cu12" if major == 12 else "cu13"


def _driver_version() -> int:
    """The driver's CUDA version (13000: 13.0), queried without bindings; 0 if unknown."""
    version = ctypes.c_int(0)
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return 0
    return version.value


def _newer_driver() -> str:
    fix = "update the NVIDIA driver"
    if headers.cuda_major() == 13 and _driver_version() >= MINIMUM_DRIVER[12]:
        return f"{fix}, or pip install 'rawnn[cu12]'"
    return fix


def _libraries() -> Iterable[Finding]:
    """Every library and package that a toggle or a command uses."""
    install = f"pip install 'rawnn[{_extra()}]'"
    yield _package("cuda-bindings", "cuda.bindings", install, required=True)
    nvrtc = headers.nvrtc_library_path()
    yield Finding("NVRTC", str(nvrtc or ""), _version(nvrtc, "nvidia-cuda-nvrtc"),
                  ("wheels, conda, LD_LIBRARY_PATH, CUDA_HOME, /usr/local/cuda",), install, True)
    yield _looked_up("CUDA's headers", headers.include_directories, "cuda_fp16.h",
                     "nvidia-cuda-runtime", install)
    yield _looked_up("CCCL's headers", headers.include_directories, "cuda/std/cstdint",
                     "nvidia-cuda-cccl",
                     headers.install_hint("cuda/std/cstdint").rpartition(": ")[2])
    yield _looked_up("the compiler's headers", headers.include_directories, "crt/mma.h",
                     "nvidia-cuda-nvcc", headers.install_hint("crt/mma.h").rpartition(": ")[2])
    yield _looked_up("libcudadevrt", lambda: (headers.cudadevrt_library(),), "",
                     "nvidia-cuda-runtime", install)
    for name, module, wheel in (("cuBLASLt", cublaslt, "nvidia-cublas"),
                                ("cuDNN", cudnn, "nvidia-cudnn")):
        path = locate.find(module.FILE_NAMES, module.WHEEL_FOLDERS)
        looked = tuple(map(str, dict.fromkeys(locate.candidates(module.WHEEL_FOLDERS))))
        yield Finding(name, str(path or ""), _version(path, wheel), looked, install)
    yield _package("nvmath-python", "nvmath", install)
    yield _package("nccl4py", "nccl.bindings", nccl.INSTALL)
    yield _package("nvidia-ml-py", "pynvml", "pip install 'rawnn[nvml]'")


def _tools() -> Iterable[Finding]:
    for name, fix in (("nvdisasm", "pip install nvidia-cuda-nvdisasm"),
                      ("compute-sanitizer", "install the CUDA toolkit")):
        yield Finding(name, str(headers.tool(name) or ""), "",
                      ("PATH", *map(str, headers.tool_folders())), fix)


def _package(distribution: str, module: str, fix: str, required: bool = False) -> Finding:
    try:
        found = has_package(module)
        version = metadata.version(distribution) if found else ""
    except (metadata.PackageNotFoundError, ValueError):
        version = "of unknown version"
    return Finding(distribution, f"package {module}" if found else "", version,
                   ("Python's path",), fix, required)


def _looked_up(name: str, places: Callable[[], tuple[Path, ...]], file: str, wheel: str,
               fix: str) -> Finding:
    try:
        folders = places()
    except MissingLibrary as error:
        looked = re.search(r"looked in (.*)\)", str(error))
        return Finding(name, looked=(looked[1],) if looked else (), fix=fix)
    found = next((folder for folder in folders if not file or (folder / file).is_file()), None)
    return Finding(name, str(found or ""), _version(found, wheel), tuple(map(str, folders)), fix)


def _version(path: Path | None, wheel: str) -> str:
    """A wheel's version if the file is in one, else the version in the file's name."""
    if path is None:
        return ""
    if "nvidia" in path.parts:
        for name in (f"{wheel}-cu{headers.cuda_major()}", wheel, f"{wheel}-cu12"):
            try:
                return metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
    found = re.search(r"\.so\.([\d.]+)$", path.resolve().name)
    return found[1] if found else ""


def _lacks(machine: Machine) -> Iterable[Lack]:
    if not machine.has_gpu:  # what would be lacking still, with a GPU that has everything
        machine = Machine(None, _EVERYTHING, _NEWEST, machine.has_package)
    for toggle in TOGGLES.values():
        reason = toggle.needs(machine)
        if reason:
            capability = "compute capability" in reason
            why = reason.partition(": pip ")[0]
            yield Lack(toggle.name, f"it {why}", "a newer GPU" if capability else
                       "a newer driver" if "driver" in reason else
                       nccl.INSTALL if toggle.name == "nccl" else
                       f"pip install 'rawnn[{_extra()}]'")
