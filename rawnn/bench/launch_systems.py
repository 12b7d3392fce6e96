"""The launch of one small kernel in other systems of Python, each as its documentation writes it.

All add 2 x to y in one block of 32 threads, on each system's own stream or current one. What a
system wants made once for a kernel is made ahead; what it wants for a launch is in the statement.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from rawnn.lab.arrays import Array, array
from rawnn.lab.kernel import Kernel

SOURCE = """extern "C" __global__ void launched_axpy(float* y, const float* x, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}
"""
KERNEL = "launched_axpy"
N = 32
TYPES = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_float, ctypes.c_int)
"""Of the kernel's arguments."""


@dataclass(frozen=True)
class Launch:
    """A statement with so many `launches`, the names in it, and what it has made of y (zeros at
    first), on the host."""

    statement: str
    names: Mapping[str, Any]
    result: Callable[[], Any]
    version: str = ""
    note: str = ""
    launches: int = 1


@dataclass(frozen=True)
class System:
    """The module that it needs, and what makes its launch, on the device of our `kernel`; `title`
    is its own name where the table has another."""

    package: str
    make: Callable[[Kernel], Launch]
    title: str = ""


def missing(package: str) -> str:
    """Why a system cannot run here, an empty string if it can be imported."""
    try:
        found = importlib.util.find_spec(package)
    except ModuleNotFoundError:  # of a package around it
        found = None
    return "" if found else f"{package} is not installed"


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "unknown"


def _arrays(kernel: Kernel) -> tuple[Array, Array]:
    y, x = (array(np.full(N, value, np.float32), device=kernel.device) for value in (0, 1))
    return y, x


class Packed(ctypes.Structure):
    """The kernel's arguments as C lays them out; `pointers` to each are what the driver takes."""

    _fields_ = [("y", TYPES[0]), ("x", TYPES[1]), ("a", TYPES[2]), ("n", TYPES[3])]

    def pointers(self) -> Any:
        base = ctypes.addressof(self)
        return (ctypes.c_void_p * 4)(*(base + getattr(Packed, name).offset for name in "yxan"))


def _packed(kernel: Kernel) -> Launch:
    driver = importlib.import_module("cuda.bindings.driver")
    y, x = _arrays(kernel)
    values = Packed(y.address, x.address, 2, N)
    pointers = values.pointers()
    names = {"launch": driver.cuLaunchKernel, "function": kernel.function.handle,
             "stream": kernel.device.stream.handle, "packed": ctypes.addressof(pointers),
             "keep": (x, values, pointers)}
    return Launch(f"launch(function, 1, 1, 1, {N}, 1, 1, 0, stream, packed, 0)", names, y.numpy,
                  _version("cuda-bindings"))


def _tuples(kernel: Kernel) -> Launch:
    driver = importlib.import_module("cuda.bindings.driver")
    y, x = _arrays(kernel)
    names = {"launch": driver.cuLaunchKernel, "function": kernel.function.handle,
             "stream": kernel.device.stream.handle, "y": y.address, "x": x.address,
             "types": TYPES, "keep": (y, x)}
    return Launch(f"launch(function, 1, 1, 1, {N}, 1, 1, 0, stream, ((y, x, 2.0, {N}), types), 0)",
                  names, y.numpy)


def _core(kernel: Kernel) -> Launch:
    core = importlib.import_module("cuda.core")
    if not hasattr(core, "launch"):  # before 0.5
        core = importlib.import_module("cuda.core.experimental")
    device = core.Device(kernel.device.info.ordinal)
    device.set_current()
    major, minor = kernel.device.capability
    options = core.ProgramOptions(arch=f"sm_{major}{minor}")
    made = core.Program(SOURCE, code_type="c++", options=options).compile("cubin")
    y, x = _arrays(kernel)
    names = {"launch": core.launch, "stream": device.create_stream(),
             "config": core.LaunchConfig(grid=1, block=N), "axpy": made.get_kernel(KERNEL),
             "y": y.address, "x": x.address, "a": np.float32(2), "n": np.int32(N),
             "keep": (y, x)}
    return Launch("launch(stream, config, axpy, y, x, a, n)", names, y.numpy, _version("cuda-core"))


def _cupy(kernel: Kernel) -> Launch:
    cupy = importlib.import_module("cupy")
    with cupy.cuda.Device(kernel.device.info.ordinal):
        y, x = cupy.zeros(N, cupy.float32), cupy.ones(N, cupy.float32)
        names = {"axpy": cupy.RawKernel(SOURCE, KERNEL), "y": y, "x": x, "a": np.float32(2),
                 "n": np.int32(N)}
    cupy.cuda.Device(kernel.device.info.ordinal).use()
    return Launch(f"axpy((1,), ({N},), (y, x, a, n))", names, lambda: cupy.asnumpy(y),
                  str(cupy.__version__))


def _torch(kernel: Kernel) -> Launch:
    torch = importlib.import_module("torch")
    torch.cuda.set_device(kernel.device.info.ordinal)
    y, x = torch.zeros(N, device="cuda"), torch.ones(N, device="cuda")
    names = {"y": y, "x": x}
    torch.cuda.synchronize()
    own = getattr(torch.cuda, "_compile_kernel", None)
    if own is None:  # before 2.8
        return Launch("y.add_(x, alpha=2.0)", names, lambda: y.cpu().numpy(),
                      str(torch.__version__),
                      " (an op of its own: this PyTorch launches no kernels from source)")
    for ctype in ("double", "float"):  # what Python's floats become, from 2.9 and before
        axpy = own(SOURCE.replace("float a", f"{ctype} a"), KERNEL)
        axpy((1, 1, 1), (N, 1, 1), (y, x, 2.0, N))
        right = bool((y == 2).all())
        y.zero_()
        if right:
            break
    torch.cuda.synchronize()
    return Launch(f"axpy((1, 1, 1), ({N}, 1, 1), (y, x, 2.0, {N}))", {**names, "axpy": axpy},
                  lambda: y.cpu().numpy(), str(torch.__version__))


def _triton(kernel: Kernel) -> Launch:
    torch = importlib.import_module("torch")  # whose arrays and streams it takes
    triton = importlib.import_module("triton")
    tl = importlib.import_module("triton.language")

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def axpy(y, x, a, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def, name-defined]
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + i, tl.load(y + i, i < n) + a * tl.load(x + i, i < n), i < n)

    torch.cuda.set_device(kernel.device.info.ordinal)
    y, x = torch.zeros(N, device="cuda"), torch.ones(N, device="cuda")
    torch.cuda.synchronize()
    return Launch(f"axpy[(1,)](y, x, 2.0, {N}, BLOCK={N})", {"axpy": axpy, "y": y, "x": x},
                  lambda: y.cpu().numpy(), str(triton.__version__))


def _numba(kernel: Kernel) -> Launch:
    numba, cuda = map(importlib.import_module, ("numba", "numba.cuda"))
    numba.config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # one block is what is meant
    cuda.select_device(kernel.device.info.ordinal)

    @cuda.jit  # type: ignore[untyped-decorator, unused-ignore]
    def axpy(y, x, a, n):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < n:
            y[i] += a * x[i]

    y = cuda.to_device(np.zeros(N, np.float32))
    x = cuda.to_device(np.ones(N, np.float32))
    return Launch(f"axpy[1, {N}](y, x, 2.0, {N})", {"axpy": axpy, "y": y, "x": x}, y.copy_to_host,
                  str(numba.__version__))


SYSTEMS = {
    "cuda.bindings, packed": System("cuda.bindings", _packed, "cuda.bindings"),
    "cuda.bindings, tuples": System("cuda.bindings", _tuples, "cuda.bindings"),
    "cuda.core": System("cuda.core", _core),
    "CuPy": System("cupy", _cupy),
    "PyTorch": System("torch", _torch),
    "Triton": System("triton", _triton),
    "Numba": System("numba", _numba),
}
"""By the name in the table."""
