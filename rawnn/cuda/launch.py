"""Commands that run on a stream or become nodes of a graph: kernel launches, copies, fills.

Each is prepared once: its arguments are packed into its own memory, and `run` only passes the
prepared objects to the driver. `offset` is the distance of the step from the device's cursor, the
only argument that changes between launches.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, Protocol

import numpy as np

from rawnn.common.errors import ConfigError
from rawnn.cuda.compiling.c_types import MAP_ALIGNMENT, MAP_SIZE, MAP_SUFFIX
from rawnn.cuda.compiling.signature import KernelSignature, Parameter
from rawnn.cuda.driver import Dim as Dim
from rawnn.cuda.errors import check
from rawnn.cuda.stream import Stream
from rawnn.cuda.tensormap import MappedMatrix

Value = int | float | bytes | np.void
"""An argument: a number, an address, the bytes of a tensor map, or a struct, as a NumPy structured
scalar of its layout or as bytes."""

PORTABLE_CLUSTER = 8
"""Cluster size that every GPU with clusters supports; an H200 supports up to 16."""


class Command(Protocol):
    """An operation that can run on a stream or be added to a graph."""

    label: str

    def run(self, offset: int) -> None:
        """Enqueue on the stream the command was prepared for."""

    def add_to(self, graph: Any, dependencies: Sequence[Any], offset: int) -> list[Any]:
        """Add to a rawnn.graphs.Graph; returns the nodes that later work must wait for."""

    def rebind(self, operand: str, address: int) -> None:
        """Use another device address for an operand from now on."""


class Arguments:
    """The arguments of one kernel, packed for the driver.

    One buffer holds the values at C's offsets; cuLaunchKernel takes an array of pointers into it,
    at `address`. The types come from the signature in the CUDA source. `maps` describes operands
    that have tensor maps: the argument `w_map` is encoded here, and again whenever `w` is set.
    Raises ConfigError for names and values that do not fit.
    """

    def __init__(self, signature: KernelSignature, values: Mapping[str, Value],
                 maps: Mapping[str, MappedMatrix] | None = None) -> None:
        self._maps = {operand: (operand + MAP_SUFFIX, m) for operand, m in (maps or {}).items()}
        given = {*values, *(self._maps[operand][0] for operand in self._maps if operand in values)}
        missing = [p.name for p in signature.parameters if p.name not in given]
        extra = given - {p.name for p in signature.parameters}
        if missing or extra:
            names = ", ".join(p.name for p in signature.parameters)
            raise ConfigError(
                f"kernel '{signature.name}' takes ({names})"
                + (f"; missing: {', '.join(missing)}" if missing else "")
                + (f"; not among them: {', '.join(sorted(extra))}" if extra else "")
            )
        offsets, size = signature.layout()
        self._parameters = {p.name: p for p in signature.parameters}
        self._index = {p.name: i for i, p in enumerate(signature.parameters)}
        self._buffer = ctypes.create_string_buffer(size + MAP_ALIGNMENT)
        base = ctypes.addressof(self._buffer)
        first = -base % MAP_ALIGNMENT
        self._offsets = tuple(first + offset for offset in offsets)
        count = len(signature.parameters)
        self._pointers = (ctypes.c_void_p * max(count, 1))(*(base + o for o in self._offsets))
        self.address = ctypes.addressof(self._pointers)
        for name, value in values.items():
            self.set(name, value)
        gaps = [offset - end for offset, end in
                zip(offsets, (0, *(o + p.size for o, p in
                                   zip(offsets, signature.parameters, strict=True))), strict=False)]
        self._first = first
        whole = struct.Struct("=" + "".join(
            f"{gap}x{_code(p)}" for gap, p in zip(gaps, signature.parameters, strict=False)))
        self._pack_all = partial(whole.pack_into, self._buffer, self._first)

    def fill(self, values: Sequence[Value]) -> None:
        """Set all arguments, in order, structs as bytes: one call for a launch in a loop."""
        try:
            self._pack_all(*values)
        except (struct.error, OverflowError):
            for name, value in zip(self._parameters, values, strict=True):
                self._pack(name, value)  # its error names the argument
            raise

    def set(self, name: str, value: Value) -> None:
        """Set one argument, and the map of its target. Earlier launches keep their value."""
        self._pack(name, value)
        if name in self._maps:
            argument, matrix = self._maps[name]
            self._pack(argument, matrix.at(int(value)))  # an operand's address

    def _pack(self, name: str, value: Value) -> None:
        parameter = self._parameters[name]
        if parameter.tensor_map and not (isinstance(value, bytes) and len(value) == MAP_SIZE):
            raise ConfigError(f"argument '{name}' is a tensor map: {MAP_SIZE} bytes, not {value!r}")
        try:
            if parameter.struct is not None:
                value = parameter.struct.packed(value)
            struct.pack_into("=" + _code(parameter), self._buffer,
                             self._offsets[self._index[name]], value)
        except (struct.error, OverflowError) as error:
            reason = re.sub(r"'\w' format requires (\S+) <= number <= (\S+)",
                            r"it takes \1 to \2", str(error))
            raise ConfigError(
                f"argument '{name}' ({parameter.ctype}) cannot hold {value!r}: {reason}"
            ) from None

    def cell(self, name: str) -> ctypes.c_int:
        """The int argument `name` in place, for a hot loop to change; an unused cell if there is no
        such parameter."""
        if name not in self._index:
            return ctypes.c_int()
        return ctypes.c_int.from_buffer(self._buffer, self._offsets[self._index[name]])


def _code(parameter: Parameter) -> str:
    return "Q" if parameter.pointer else parameter.format


def allow(driver: Any, function: Any, attribute: str, value: int, context: str) -> None:
    """Raise a kernel's attribute to what a launch of it needs; it is never lowered, for other
    launches. Raises CallFailed if the device does not support that much."""
    context = f"{attribute} for {context}"
    result = driver.cuFuncGetAttribute(attribute, function)
    if check(driver, "cuFuncGetAttribute", result, context) < value:
        check(driver, "cuFuncSetAttribute",
              driver.cuFuncSetAttribute(function, attribute, value), context)


class KernelLaunch:
    """One kernel with its grid, block (threads), dynamic shared memory (bytes) and arguments.

    `cluster` is the shape of a thread block cluster in blocks (from sm_90 on; it must divide the
    grid; more than 8 blocks are not portable and allowed here at once). With `programmatic` a
    launch on a stream may begin once the kernel before it has triggered; only a kernel that waits
    (rawnn.cuda.compiling.launch_proof proves it) may be given that. A `cooperative` kernel has
    all its blocks on the GPU at once, so that they may wait for each other; the driver refuses one
    of more blocks than fit (CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE). `priority` counts in graphs:
    below 0 it gets the first multiprocessors that come free. `carveout` is the part in percent of a
    multiprocessor's L1 memory that is to be shared memory, so that more blocks fit; -1 leaves it to
    the driver.

    Raises CallFailed if the device lacks that much shared memory or such clusters.
    """

    def __init__(self, driver: Any, stream: Stream, function: Any, label: str, grid: Dim,
                 block: Dim, arguments: Arguments, shared_bytes: int = 0,
                 cluster: Dim | None = None, programmatic: bool = False,
                 cooperative: bool = False, priority: int = 0, carveout: int = -1) -> None:
        self._driver, self._stream = driver, stream
        self.label = label
        self.arguments = arguments
        self.programmatic = programmatic
        self.cooperative, self._priority = cooperative, priority
        self._geometry = (function, grid, block, shared_bytes)
        self._cluster = cluster
        self._offset = arguments.cell("offset")
        if shared_bytes:
            allow(driver, function, "MAX_DYNAMIC_SHARED_SIZE_BYTES", shared_bytes, self.context)
        if carveout >= 0:
            allow(driver, function, "PREFERRED_SHARED_MEMORY_CARVEOUT", carveout, self.context)
        if cluster is not None and prod(cluster) > PORTABLE_CLUSTER:
            allow(driver, function, "NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1, self.context)
        self._prepared: tuple[Any, ...]
        if cluster is None and not programmatic and not cooperative:
            self._name, self._call = "cuLaunchKernel", driver.cuLaunchKernel
            self._prepared = (function, *grid, *block, shared_bytes, stream.handle,
                              arguments.address, 0)
        else:
            config = driver.launch_config(grid, block, shared_bytes, stream.handle, cluster,
                                          programmatic, cooperative)
            self._name, self._call = "cuLaunchKernelEx", driver.cuLaunchKernelEx
            self._prepared = (config, function, arguments.address, 0)

    @property
    def context(self) -> str:
        """Description of this launch for error messages."""
        _, grid, block, shared = self._geometry
        clusters = f", clusters {self._cluster}" if self._cluster else ""
        together = ", cooperative" if self.cooperative else ""
        return f"{self.label}, grid {grid}, block {block}{clusters}{together}, {shared} bytes of " \
               f"shared memory"

    def launch(self) -> None:
        """Enqueue with the present arguments."""
        result = self._call(*self._prepared)
        if result[0]:
            self._failed(result)

    @property
    def ready(self) -> tuple[Any, tuple[Any, ...], Any]:
        """A call that launches it, its arguments (configuration, function, address and 0), and the
        handler of a result that is an error. The call is cuLaunchKernelEx: the bindings take 70 to
        100 ns less for its four arguments than for the eleven of cuLaunchKernel."""
        if self._name == "cuLaunchKernelEx":
            return self._call, self._prepared, self._failed
        function, grid, block, shared = self._geometry
        config = self._driver.launch_config(grid, block, shared, self._stream.handle, None, False,
                                            False)
        return (self._driver.cuLaunchKernelEx, (config, function, self.arguments.address, 0),
                partial(self._failed, name="cuLaunchKernelEx"))

    def _failed(self, result: Any, name: str = "") -> None:
        check(self._driver, name or self._name, result, self.context)

    def run(self, offset: int) -> None:
        self._offset.value = offset
        self.launch()

    def add_to(self, graph: Any, dependencies: Sequence[Any], offset: int,
               programmatic_after: Sequence[Any] = ()) -> list[Any]:
        """Add to a graph. Edges from `dependencies` are full, those from the kernel nodes
        `programmatic_after` programmatic."""
        self._offset.value = offset
        return [graph.add_kernel(dependencies, *self._geometry, self.arguments.address,
                                 self.context, programmatic_after, self._cluster,
                                 self.cooperative, self._priority)]

    def rebind(self, operand: str, address: int) -> None:
        self.arguments.set(operand, address)


class HostToDevice:
    """A copy of rows of a host array to device memory. Offset s copies `nbytes` bytes from s *
    `stride` bytes on (None: slices are contiguous). `keep` owns the host memory. `operand` is the
    destination's name."""

    def __init__(self, driver: Any, stream: Stream, label: str, operand: str, destination: int,
                 source: int, nbytes: int, keep: object,
                 stride: int | None = None) -> None:
        self._driver, self._stream, self.label, self._operand = driver, stream, label, operand
        self._destination, self._source, self._nbytes = destination, source, nbytes
        self._stride = nbytes if stride is None else stride
        self._keep = keep

    def run(self, offset: int) -> None:
        result = self._driver.cuMemcpyHtoDAsync(
            self._destination, self._source + offset * self._stride, self._nbytes,
            self._stream.handle,
        )
        if result[0]:
            check(self._driver, "cuMemcpyHtoDAsync", result, f"{self.label}, {self._nbytes} bytes")

    def add_to(self, graph: Any, dependencies: Sequence[Any], offset: int) -> list[Any]:
        return [graph.add_memcpy(dependencies, "HtoD", self._destination,
                                 self._source + offset * self._stride, self._nbytes, self.label,
                                 self._keep)]

    def rebind(self, operand: str, address: int) -> None:
        if operand == self._operand:
            self._destination = address
