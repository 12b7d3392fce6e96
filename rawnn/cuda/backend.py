"""The set of libraries that a device is driven through: the real ones, or simulated ones."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rawnn.cuda.compiling.headers import cudadevrt_library
from rawnn.cuda.driver import Driver
from rawnn.cuda.driver_start import release_context
from rawnn.cuda.nvrtc import Nvrtc


@dataclass(frozen=True)
class Backend:
    """The libraries behind rawnn's interfaces, each created when it is first needed: a library that
    no toggle asks for is neither imported nor loaded.

    device_runtime: returns the content of libcudadevrt.a.
    provides: whether a library's Python package is installed, or (cublasLt) its file is found.
    cache: whether compiled kernels may be cached on disk.
    parallel: whether several threads may call NVRTC at the same time.
    caution: what a user should know before trusting a time.
    release_context: no longer keeps the context of a GPU, by its ordinal, for runs to come.
    """

    name: str
    driver: Callable[[], Any]
    nvrtc: Callable[[], Any]
    cublaslt: Callable[[], Any]
    cudnn: Callable[[], Any]
    nccl: Callable[[], Any]
    device_runtime: Callable[[], bytes]
    provides: Callable[[str], bool]
    cache: bool = True
    parallel: bool = False
    caution: str = ""
    release_context: Callable[[int], None] = lambda ordinal: None


def real_backend() -> Backend:
    """The CUDA driver and libraries of this machine."""

    def cublaslt() -> Any:
        from rawnn.cuda.libs.cublaslt import CublasLt

        return CublasLt()

    def cudnn() -> Any:
        from rawnn.cuda.libs.cudnn import Cudnn

        return Cudnn()

    def nccl() -> Any:
        from rawnn.cuda.libs.nccl import Nccl

        return Nccl()

    return Backend("cuda", Driver, Nvrtc, cublaslt, cudnn, nccl,
                   lambda: cudadevrt_library().read_bytes(), provides, parallel=True,
                   release_context=release_context)


def provides(name: str) -> bool:
    """Whether a package can be found, or cuBLASLt's file, without importing or loading it."""
    if name == "cublasLt":
        from rawnn.cuda.libs import cublaslt, locate

        return locate.find(cublaslt.FILE_NAMES, cublaslt.WHEEL_FOLDERS) is not None
    return has_package(name)


def has_package(name: str) -> bool:
    """Whether a package can be found, without importing it."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
