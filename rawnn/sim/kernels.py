"""The effect of a kernel on the simulated GPU: the NumPy reference of its op, on the bytes that its
packed arguments point at.

The table of kernels (rawnn/ptx) gives the extents of every operand in terms of the scalar
arguments, the op's registration which operands are read and written, and the CUDA source the layout
of the arguments. Each launch is checked against all three.
"""
from __future__ import annotations

import ctypes
import struct
from typing import Any

from rawnn.cuda.compiling.compiled_signature import Instance
from rawnn.sim.bindings import Binding
from rawnn.sim.errors import SimulationError
from rawnn.sim.graphs import Launcher
from rawnn.sim.kernel_references import KernelReference, reference_of
from rawnn.sim.memory import Memory


class LoadedKernel:
    """One kernel of a loaded module; `waits` and `triggers` describe its handling of programmatic
    edges, `static_shared` is the bytes that it declares. The first launch of a kernel without a
    reference raises SimulationError."""

    def __init__(self, memory: Memory, launcher: Launcher, source: str, expression: str,
                 instance: Instance, most_threads: int, *, waits: bool = False,
                 triggers: bool = False, static_shared: int = 0) -> None:
        self.expression, self.most_threads = expression, most_threads
        self.waits, self.triggers = waits, triggers
        self.static_shared, self.shared_limit = static_shared, (48 << 10) - static_shared
        self.largest_cluster, self.registers, self.carveout = 8, 32, -1
        self._memory, self._launcher = memory, launcher
        self._source = source
        self.signature, self._template = instance.signature, dict(instance.template)
        self._offsets, self._size = self.signature.layout()
        self._pointers = struct.Struct(f"={len(self._offsets)}Q")
        self._formats = ["=Q" if p.pointer else "=" + p.format for p in self.signature.parameters]
        self._bound: dict[bytes, Binding] = {}
        self._generation = -1

    @property
    def entry(self) -> KernelReference:
        found = reference_of(self._source, self.signature.name)
        if found is None:
            raise SimulationError(
                f"the kernel {self.expression} of {self._source} has no NumPy reference, so it "
                f"cannot be simulated; give it one with rawnn.sim.register"
            )
        return found

    def launch(self, grid: tuple[int, int, int], block: tuple[int, int, int], shared_bytes: int,
               parameters: int) -> Binding:
        """The effect of a launch with the pointer array at the host address `parameters`, whose
        values are copied now. Raises SimulationError for arguments, a geometry or dynamic shared
        memory that do not fit."""
        raw = self._packed(parameters)
        if self._generation != self._memory.generation:
            self._bound.clear()
            self._generation = self._memory.generation
        bound = self._bound.get(raw)
        if bound is None:
            bound = self._bound[raw] = self._bind(raw)
        if bound.geometries and (grid, block) not in bound.geometries:
            raise SimulationError(
                f"{self.expression} is launched with grid {grid} and block {block}, but its work "
                f"asks for " + " or ".join(f"grid {g} and block {b}" for g, b in bound.geometries)
            )
        if bound.shared not in (None, shared_bytes):
            raise SimulationError(
                f"{self.expression} is launched with {shared_bytes:,} bytes of dynamic shared "
                f"memory, but its work asks for {bound.shared:,}"
            )
        return bound

    def _packed(self, parameters: int) -> bytes:
        if not self._offsets:
            return b""
        pointers = self._pointers.unpack(ctypes.string_at(parameters, self._pointers.size))
        base = pointers[0]
        for parameter, pointer, offset in zip(self.signature.parameters, pointers, self._offsets,
                                              strict=True):
            if pointer - base != offset:
                raise SimulationError(
                    f"{self.expression}: argument '{parameter.name}' is packed at byte "
                    f"{pointer - base} from the first, but {self.signature.name}'s declaration "
                    f"({parameter.ctype}{' *' if parameter.pointer else ''}, {parameter.size} "
                    f"bytes) puts it at {offset}"
                )
            if pointer % parameter.align:
                raise SimulationError(f"{self.expression}: argument '{parameter.name}' lies at "
                                      f"{pointer:#x}, no multiple of {parameter.align}")
        return ctypes.string_at(base, self._size)

    def _bind(self, raw: bytes) -> Binding:
        values: dict[str, Any] = {}
        for p, at, code in zip(self.signature.parameters, self._offsets, self._formats,
                               strict=True):
            values[p.name] = struct.unpack_from(code, raw, at)[0]
        return Binding(self, values, self.entry, self._template, self._memory, self._launcher)
