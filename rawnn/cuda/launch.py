"""Things that can be put on a stream or into a graph: kernel launches, copies, fills.

Each is prepared once: arguments are packed into memory of its own, and `run` only hands the
prepared objects to the driver. `offset` is the distance of the step from the device's cursor; it
is the one argument that changes from launch to launch.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rawnn.cuda.errors import check
from rawnn.cuda.stream import Stream
from rawnn.errors import ConfigError
from rawnn.ptx.signature import KernelSignature, Parameter

Dim = tuple[int, int, int]


class Command(Protocol):
    """What a stream runs and a graph is made of."""

    label: str

    def run(self, offset: int) -> None:
        """Enqueue on the stream the command was prepared for."""

    def add_to(self, graph: Any, dependencies: Sequence[Any], offset: int) -> list[Any]:
        """Add to a rawnn.graphs.Graph; returns the nodes that later work must wait for."""

    def rebind(self, operand: str, address: int) -> None:
        """Use another device address for an operand from now on."""


class Arguments:
    """The arguments of one kernel, packed as the driver wants them.

    One buffer holds the values at the offsets C gives them; an array of pointers into it is what
    cuLaunchKernel takes, at `address`. The types come from the signature in the CUDA source.
    """

    def __init__(self, signature: KernelSignature, values: Mapping[str, int | float]) -> None:
        missing = [p.name for p in signature.parameters if p.name not in values]
        extra = set(values) - {p.name for p in signature.parameters}
        if missing or extra:
            names = ", ".join(p.name for p in signature.parameters)
            raise ConfigError(
                f"kernel '{signature.name}' takes ({names})"
                + (f"; missing: {', '.join(missing)}" if missing else "")
                + (f"; not among them: {', '.join(sorted(extra))}" if extra else "")
            )
        self._offsets, size = signature.layout()
        self._parameters = {p.name: p for p in signature.parameters}
        self._index = {p.name: i for i, p in enumerate(signature.parameters)}
        self._buffer = ctypes.create_string_buffer(max(size, 1))
        base = ctypes.addressof(self._buffer)
        count = len(signature.parameters)
        self._pointers = (ctypes.c_void_p * max(count, 1))(*(base + o for o in self._offsets))
        self.address = ctypes.addressof(self._pointers)
        for name, value in values.items():
            self.set(name, value)

    def set(self, name: str, value: int | float) -> None:
        """Change one argument; launches made before keep the value they were made with."""
        parameter = self._parameters[name]
        try:
            struct.pack_into("=" + _code(parameter), self._buffer,
                             self._offsets[self._index[name]], value)
        except (struct.error, OverflowError) as error:
            raise ConfigError(
                f"argument '{name}' ({parameter.ctype}) cannot hold {value!r}: {error}"
            ) from None

    def cell(self, name: str) -> ctypes.c_int:
        """The int argument `name` in place, for a hot loop to change; a spare one if there is no
        such parameter."""
        if name not in self._index:
            return ctypes.c_int()
        return ctypes.c_int.from_buffer(self._buffer, self._offsets[self._index[name]])


def _code(parameter: Parameter) -> str:
    return "Q" if parameter.pointer else parameter.format


class KernelLaunch:
    """One kernel with its grid, block (threads), dynamic shared memory (bytes) and arguments."""

    def __init__(self, driver: Any, stream: Stream, function: Any, label: str, grid: Dim,
                 block: Dim, arguments: Arguments, shared_bytes: int = 0) -> None:
        self._driver = driver
        self.label = label
        self.arguments = arguments
        self._geometry = (function, grid, block, shared_bytes)
        self._offset = arguments.cell("offset")
        self._call = driver.cuLaunchKernel
        self._prepared = (function, *grid, *block, shared_bytes, stream.handle,
                          arguments.address, 0)

    @property
    def context(self) -> str:
        """What an error message says of this launch."""
        _, grid, block, shared = self._geometry
        return f"{self.label}, grid {grid}, block {block}, {shared} bytes of shared memory"

    def launch(self) -> None:
        """Enqueue with the arguments as they are."""
        result = self._call(*self._prepared)
        if result[0]:
            check(self._driver, "cuLaunchKernel", result, self.context)

    def run(self, offset: int) -> None:
        self._offset.value = offset
        self.launch()

    def add_to(self, graph: Any, dependencies: Sequence[Any], offset: int) -> list[Any]:
        self._offset.value = offset
        return [graph.add_kernel(dependencies, *self._geometry, self.arguments.address,
                                 self.context)]

    def rebind(self, operand: str, address: int) -> None:
        self.arguments.set(operand, address)


class HostToDevice:
    """A copy of rows of a host array into device memory: offset s copies the s-th slice of
    `nbytes` bytes. `keep` owns the host memory. `operand` is the destination's name."""

    def __init__(self, driver: Any, stream: Stream, label: str, operand: str, destination: int,
                 source: int, nbytes: int, keep: object) -> None:
        self._driver, self._stream, self.label, self._operand = driver, stream, label, operand
        self._destination, self._source, self._nbytes = destination, source, nbytes
        self._keep = keep

    def run(self, offset: int) -> None:
        result = self._driver.cuMemcpyHtoDAsync(
            self._destination, self._source + offset * self._nbytes, self._nbytes,
            self._stream.handle,
        )
        if result[0]:
            check(self._driver, "cuMemcpyHtoDAsync", result, f"{self.label}, {self._nbytes} bytes")

    def add_to(self, graph: Any, dependencies: Sequence[Any], offset: int) -> list[Any]:
        return [graph.add_memcpy(dependencies, "HtoD", self._destination,
                                 self._source + offset * self._nbytes, self._nbytes, self.label,
                                 self._keep)]

    def rebind(self, operand: str, address: int) -> None:
        if operand == self._operand:
            self._destination = address
