"""A user's own CUDA C kernel, compiled at run time and launched as `kernel[grid, block](...)`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from rawnn.compiling.cache import CubinCache
from rawnn.compiling.compile import compile_source
from rawnn.compiling.signature import Parameter, find_kernel, parse_kernels
from rawnn.cuda.device import Device
from rawnn.cuda.launch import Arguments, Dim, KernelLaunch, Value
from rawnn.errors import ConfigError, MissingLibrary
from rawnn.lab.arrays import Array, TensorMap, default_device
from rawnn.ptx import SOURCES

Extent = int | tuple[int, ...]


class Kernel:
    """A kernel from CUDA C source text or a .cu file.

    `expression` names it, with template arguments where it is a template: "scale<float>". The
    types of the arguments come from the source, so a Python number is passed as the int or float
    that the kernel declares, and an Array must have the element type of the pointer it is for. A
    struct by value is a NumPy structured scalar with the members and the layout that C gives it.

        kernel = rawnn.Kernel(source, "scale<float>")
        kernel[(blocks,), 256](x, 2.0, n)
        kernel.synchronize()

    On the simulated GPU (`rawnn.lab.simulated`) NVRTC compiles it as well, if it is installed, so
    that errors in its body are found; what it computes the simulation has to be told.

    Raises CompileError with the numbered source lines, ConfigError for a name or argument that
    does not fit.
    """

    def __init__(self, source: str | os.PathLike[str], expression: str, *,
                 device: Device | None = None) -> None:
        text, name = _read(source)
        self.device = device or default_device()
        signatures = parse_kernels(text, (Path(name).parent, SOURCES))
        find_kernel(signatures, expression)
        if self.device.backend.name == "sim":
            _compile_for_real(text, name, expression, self.device)
        self.device.load(text, name, signatures, (expression,))
        self._function = self.device.function(name, expression)

    def __getitem__(self, geometry: tuple[Extent, ...]) -> Launcher:
        """`kernel[grid, block]` or `kernel[grid, block, dynamic shared bytes]`."""
        if not isinstance(geometry, tuple) or len(geometry) not in (2, 3):
            raise ConfigError("write kernel[grid, block] or kernel[grid, block, shared_bytes]")
        shared = geometry[2] if len(geometry) == 3 else 0
        if not isinstance(shared, int) or shared < 0:
            raise ConfigError(f"shared memory is a number of bytes, not {shared!r}")
        return Launcher(self, _dim(geometry[0], "grid"), _dim(geometry[1], "block"), shared)

    def synchronize(self) -> None:
        """Wait for all launches; an error inside a kernel surfaces here."""
        self.device.stream.synchronize(self._function.expression)


class Launcher:
    """A kernel with its geometry; call it with the arguments in the kernel's order."""

    def __init__(self, kernel: Kernel, grid: Dim, block: Dim, shared_bytes: int) -> None:
        self._kernel, self._geometry = kernel, (grid, block, shared_bytes)

    def __call__(self, *arguments: Any) -> None:
        function, device = self._kernel._function, self._kernel.device
        parameters = function.signature.parameters
        if len(arguments) != len(parameters):
            raise ConfigError(
                f"{function.expression} takes {len(parameters)} arguments "
                f"({', '.join(p.name for p in parameters)}), not {len(arguments)}"
            )
        values = {p.name: _value(p, a) for p, a in zip(parameters, arguments, strict=True)}
        grid, block, shared = self._geometry
        KernelLaunch(device.driver, device.stream, function.handle, function.expression, grid,
                     block, Arguments(function.signature, values), shared).launch()


def _compile_for_real(text: str, name: str, expression: str, device: Device) -> None:
    """The simulation reads declarations alone. Raises CompileError for what is wrong elsewhere."""
    from rawnn.cuda.nvrtc import Nvrtc

    try:
        compile_source(Nvrtc, text, name=name, arch=device.arch, expressions=(expression,),
                       cache=CubinCache(notify=device.notify))
    except (MissingLibrary, RuntimeError) as error:  # RuntimeError: bindings without the library
        device.notify(f"the kernel's body is not checked, since NVRTC cannot be used: {error}")


_ELEMENTS = {
    "float": "float32", "double": "float64", "int": "int32", "unsigned int": "uint32",
    "short": "int16", "unsigned short": "uint16", "char": "int8", "signed char": "int8",
    "unsigned char": "uint8", "long long": "int64", "unsigned long long": "uint64",
    "bool": "bool", "__half": "float16", "half": "float16",
}


def _value(parameter: Parameter, argument: Any) -> Value:
    if isinstance(argument, TensorMap):
        if parameter.tensor_map:
            return argument.content
        what = "pointer" if parameter.pointer else parameter.ctype
        raise ConfigError(f"argument '{parameter.name}' is a {what}, not a tensor map")
    if parameter.tensor_map:
        raise ConfigError(f"argument '{parameter.name}' is a tensor map: make one with "
                          f"rawnn.lab.tensor_map")
    if parameter.struct is not None:
        record: np.void | bytes = argument
        return record
    if not parameter.pointer:
        if isinstance(argument, Array):
            raise ConfigError(f"argument '{parameter.name}' is a {parameter.ctype}, not an array")
        number: int | float = argument.item() if isinstance(argument, np.generic) else argument
        return number
    if argument is None:
        return 0
    if not isinstance(argument, Array):
        raise ConfigError(f"argument '{parameter.name}' is a pointer: pass a rawnn array (make "
                          f"one with rawnn.array) or None")
    wanted = _ELEMENTS.get(parameter.ctype)
    if wanted and argument.dtype != np.dtype(wanted):
        raise ConfigError(f"argument '{parameter.name}' points to {parameter.ctype}, but the "
                          f"array holds {argument.dtype}")
    return argument.address


def _dim(extent: Extent, what: str) -> Dim:
    values = tuple(extent) if isinstance(extent, tuple | list) else (extent,)
    if not 1 <= len(values) <= 3 or any(not isinstance(v, int) or v < 1 for v in values):
        raise ConfigError(f"{what} = {extent!r}: give one to three whole numbers of at least 1")
    x, y, z = (*values, 1, 1)[:3]
    return x, y, z


def _read(source: str | os.PathLike[str]) -> tuple[str, str]:
    """(text, name) of a kernel given as text or as a path."""
    if isinstance(source, str) and ("__global__" in source or "\n" in source):
        return source, "kernel.cu"
    path = Path(source)
    try:
        return path.read_text(), str(path)
    except OSError as error:
        raise ConfigError(f"cannot read the kernel {path}: {error.strerror}") from None
