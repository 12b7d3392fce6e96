"""A simulated kernel with its arguments: what its launches read, write and compute."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from rawnn.common.dtypes import CUDA_TYPES, LOW_PRECISION, numpy_dtype, rounded
from rawnn.common.words import counted, python_name
from rawnn.cuda.compiling.c_types import FORMATS
from rawnn.cuda.compiling.signature import Parameter
from rawnn.cuda.compiling.structs import vector
from rawnn.model.activations import ACTIVATIONS
from rawnn.model.losses import LOSSES
from rawnn.model.schedules import SCHEDULE_SPECS
from rawnn.plan import plan as _plan  # noqa: F401  (registers the kinds of ops)
from rawnn.plan.ops.metrics import PARTS
from rawnn.ptx.kernel_registry import NEUTRAL
from rawnn.ptx.kernels import Scalars
from rawnn.sim.errors import SimulationError
from rawnn.sim.graphs import Launcher
from rawnn.sim.kernel_references import SET_CONDITION, KernelReference
from rawnn.sim.memory import Memory, Region
from rawnn.sim.order import Task
from rawnn.sim.tensormap import check_maps

if TYPE_CHECKING:
    from rawnn.sim.kernels import LoadedKernel

DTYPES: dict[str, Any] = {
    "float": np.float32, "double": np.float64,
    "bool": np.bool_, "char": np.int8, "signed char": np.int8, "unsigned char": np.uint8,
    "short": np.int16, "unsigned short": np.uint16, "int": np.int32, "unsigned int": np.uint32,
    "long": np.int64, "unsigned long": np.uint64, "long long": np.int64,
    "unsigned long long": np.uint64,
    **{name: numpy_dtype(name) for name in LOW_PRECISION},
    **{name: numpy_dtype(stored) for name, stored in CUDA_TYPES.items()},
}  # fmt: skip


def stored_as(ctype: str) -> str:
    """The low-precision dtype of a C type; "" for any other."""
    return ctype if ctype in LOW_PRECISION else CUDA_TYPES.get(ctype, "")


def functors() -> dict[str, tuple[str, str]]:
    """Template arguments that are an activation, a loss or a schedule: which of these it is, and
    its name."""
    return {"None": ("activation", ""),
            **{a.functor: ("activation", a.name) for a in ACTIVATIONS.values()},
            **{loss.functor or loss.of_rows: ("loss", loss.name) for loss in LOSSES.values()},
            **{rule.functor: ("schedule", rule.name) for rule in SCHEDULE_SPECS.values()}}


_SLOTS = ("loss", "correct", "rates", *PARTS)
"""Operands that have one element, or one row, per step."""

_MULTIPLIED = ("a", "b", "dz", "x")
"""Operands whose rows the template flag ALIGNED describes."""

_ROUNDINGS_PER_SAMPLE = 8
"""Roundings that share one sample of random bits, which the template flag RAGGED describes."""

_PRESENCE = {"ORDERED": "order", "BIAS": "bias"}
"""Template flags that say whether an operand is given."""

_DEFAULTS = {"bias": False, "activation": "", "slope": "", "stochastic": False, **NEUTRAL}
"""Attributes that references read and that a kernel without the parameter does not vary; the table
of kernels refuses an op with another value."""


@dataclass(slots=True)
class _Operand:
    """An operand in device memory; `ld` is in elements. `region` and `array` are set unless the
    cursor moves it (`window`): then `rows` and `cols` are those of the window and `address` that of
    row 0."""

    name: str
    dtype: Any
    address: int
    rows: int
    cols: int
    ld: int
    matrix: bool
    window: bool
    read: bool
    write: bool
    low: str
    region: Region | None = None
    array: Any = None


class Binding:
    """A kernel with its arguments: the effect of its launches. What does not depend on the cursor
    is computed at the first run."""

    def __init__(self, kernel: LoadedKernel, values: dict[str, Any], entry: KernelReference,
                 template: Mapping[str, str], memory: Memory, launcher: Launcher) -> None:
        self._kernel, self._memory, self._launcher = kernel, memory, launcher
        self._reference = entry.reference
        self._attributes = self._scalars(values, entry, template)
        self.geometries = self._geometries(entry)
        self.shared, self.cluster = map(self._asked, (entry.shared, entry.cluster))
        self._operands = self._make_operands(values, entry)
        check_maps(kernel.expression, kernel.signature, values, self._operands, entry.boxes,
                   self._attributes)
        self._generation = -1
        self._end = self._attributes.get("end") if "handle" in self._attributes else None
        self._flag = kernel.signature.name == SET_CONDITION

    def _asked(self, numbers: Callable[[Scalars], int] | None) -> int | None:
        """A value from the table of kernels, if the arguments determine it."""
        try:
            return numbers(self._attributes) if numbers is not None else None
        except KeyError:
            return None

    def check_cluster(self, cluster: tuple[int, int, int] | None) -> None:
        """Raise SimulationError if a cluster has another size than the work needs: its blocks would
        wait for, or write to, the wrong blocks."""
        blocks = prod(cluster or (1,))
        if self.cluster not in (None, blocks):
            raise SimulationError(f"{self._kernel.expression} is launched in clusters of {blocks} "
                                  f"block(s), but its work asks for {self.cluster}")

    def _geometries(self, entry: KernelReference) -> list[Any]:
        """Every grid and block that fits the arguments; none if only the plan determines them."""
        if entry.geometry is None:
            return []
        try:
            count = entry.variants(self._attributes)
            found = [entry.geometry({**self._attributes, "choice": n}) for n in range(count)]
        except KeyError:
            return []
        return list(dict.fromkeys(found))

    def _scalars(self, values: dict[str, Any], entry: KernelReference,
                 template: Mapping[str, str]) -> dict[str, Any]:
        signature = self._kernel.signature
        found = {p.name: values[p.name] for p in signature.parameters
                 if p.number and p.struct is None}
        for parameter in signature.parameters:
            if parameter.struct is not None:
                found |= self._members(parameter, values[parameter.name])
        found |= {f"itemsize_{p.name}": _elements(p, self._kernel.expression).itemsize
                  for p in signature.parameters if p.pointer}
        known = functors()
        for name, value in template.items():
            if value in ("true", "false"):
                operand = _PRESENCE.get(name, "")
                if operand in values and (value == "true") != bool(values[operand]):
                    raise SimulationError(
                        f"{self._kernel.expression}: {name} is {value}, but '{operand}' is "
                        f"{'given' if values[operand] else 'left out'}")
                found[name] = value == "true"
                found.setdefault(name.lower(), value == "true")
            elif value.lstrip("-").isdigit():
                found[name] = int(value)
            elif value in known:
                what, means = known[value]
                found["kind" if what == "schedule" else name.lower()] = means
            elif stored_as(value):
                found["dtype"] = stored_as(value)
        if entry.layout:
            found["layout"] = entry.layout
        if entry.sites is not None:
            found = {**self._site(found, entry.sites), **found}
        found["stored"] = {p.name: stored_as(p.ctype) or "float32"
                           for p in signature.parameters if p.pointer}
        found.setdefault("bias", bool(values.get("bias")))  # for kernels without a flag
        return {**_DEFAULTS, **found}

    def _site(self, given: Mapping[str, Any], sites: Sequence[tuple[str, Scalars]]) -> Scalars:
        """All scalars of the op of a plan that asks for this instance with the values `given`.
        Raises SimulationError if there is no such op, or if several differ in extents."""
        label = self._kernel.expression
        formats = {p.name: "=" + p.format for p in self._kernel.signature.parameters
                   if p.number and p.struct is None and p.name != "offset"}

        def same(numbers: Scalars) -> bool:
            return all(name in numbers and struct.pack(code, numbers[name])
                       == struct.pack(code, given[name]) for name, code in formats.items())

        found = [numbers for expression, numbers in sites if expression == label and same(numbers)]
        words = ", ".join(f"{name} = {given[name]}" for name in formats) or "no numbers"
        if not found:
            raise SimulationError(f"{label} is launched with {words}, and no op of the plan asks "
                                  f"for that")
        sizes = [{name: numbers.get(name) for name in ("rows", "cols", "m", "n", "k", "batch")}
                 for numbers in found]
        if any(other != sizes[0] for other in sizes):
            raise SimulationError(f"{label}: several ops of the plan launch it with {words}, "
                                  f"though their extents differ: let it take rows and cols, too")
        return found[0]

    def _members(self, parameter: Parameter, raw: bytes) -> dict[str, Any]:
        """A struct by its name, and its members by theirs."""
        assert parameter.struct is not None
        if parameter.struct.members and parameter.struct.pointers:
            raise SimulationError(f"{self._kernel.expression}: the struct '{parameter.name}' holds "
                                  f"pointers; pass them as parameters, so that the accesses of "
                                  f"the kernel are known")
        record = np.frombuffer(raw, parameter.struct.dtype)[0]
        return {parameter.name: record,
                **{m.name: record[m.name].item() if not m.shape and m.struct is None
                   else record[m.name] for m in parameter.struct.members}}

    def _make_operands(self, values: dict[str, Any], entry: KernelReference) -> list[_Operand]:
        operands = []
        scalars, label = self._attributes, self._kernel.expression
        reads = entry.reads
        if scalars.get("beta"):
            reads = (*reads, "c")  # a GEMM that accumulates reads its output
        for parameter in self._kernel.signature.parameters:
            name = parameter.name
            if not parameter.pointer:
                continue
            if name in entry.optional and not values[name]:
                continue  # it is left out
            read, write = name in reads, name in entry.writes
            if not (read or write):
                if name in entry.reads:
                    continue  # it is optional and left out
                raise SimulationError(f"{label}: the op neither reads nor writes '{name}'")
            shape = scalars.get("shapes", entry.shapes).get(name)
            if shape is None:
                raise SimulationError(f"{label}: the table of kernels has no shape for '{name}'")
            window = shape[0].startswith("@")
            extents = [self._extent(e.lstrip("@")) for e in shape]
            rows, cols = extents if len(extents) == 2 else (1, extents[0])
            if window and len(extents) == 1:
                rows, cols = extents[0], 1
            if rows < 1 or cols < 1:
                raise SimulationError(f"{label}: operand '{name}' has "
                                      f"{counted(rows, 'row')} of {cols}")
            ld = scalars.get(f"ld{name}", cols)
            if ld < cols:
                raise SimulationError(f"{label}: ld{name} is {ld}, less than the {cols} columns")
            dtype = _elements(parameter, label)
            address = values[name]
            if address % dtype.itemsize:
                raise SimulationError(
                    f"{label}: operand '{name}' at {address:#x} is not aligned to {parameter.ctype}"
                )
            if scalars.get("ALIGNED") and name in _MULTIPLIED \
                    and (address % 16 or ld * dtype.itemsize % 16):
                raise SimulationError(f"{label}: ALIGNED is true, but rows of the operand '{name}' "
                                      f"do not begin at multiples of 16 bytes")
            if name == "w" and scalars.get("RAGGED") is False and scalars.get("STOCHASTIC") \
                    and cols % _ROUNDINGS_PER_SAMPLE:
                raise SimulationError(f"{label}: RAGGED is false, but rows of {cols} weights do "
                                      f"not hold whole samples of {_ROUNDINGS_PER_SAMPLE}")
            operands.append(_Operand(name, dtype, address, rows, cols, ld, len(extents) == 2,
                                     window, read, write, stored_as(parameter.ctype)))
        # The cursor precedes the windows that it moves, and the order the rows that it selects.
        return sorted(operands, key=lambda operand: (operand.window, operand.name != "order"))

    def _extent(self, name: str) -> int:
        """The value of "rows", "32" or "slices*rows"."""
        return prod(int(part) if part.isdigit() else int(self._attributes[part])
                    for part in name.split("*"))

    def _region(self, operand: _Operand, task: Task) -> Region:
        size = operand.dtype.itemsize
        return self._memory.region(
            operand.address, operand.cols * size, operand.ld * size, operand.rows,
            f"operand '{operand.name}' of {task}",
        )

    def __call__(self, task: Task) -> None:
        memory, arrays = self._memory, SimpleNamespace()
        step: int | None = None
        written = []
        rounding: list[tuple[Any, Any, str]] = []
        if self._generation != memory.generation:
            for operand in self._operands:
                operand.region = None
            self._generation = memory.generation
        for operand in self._operands:
            if operand.window:
                if step is None:
                    if not hasattr(arrays, "cursor"):
                        raise SimulationError(f"{task} asks for the rows of a step, but has no "
                                              f"cursor")
                    # Of a kernel that makes the next epoch's order `offset` is the epoch.
                    step = int(arrays.cursor[0]) + (0 if "order_seed" in self._attributes else
                                                    int(self._attributes.get("offset", 0)))
                    if step < 0:
                        raise SimulationError(f"{task}: step {step} lies before the first")
                region, array = self._window(operand, step, task, getattr(arrays, "order", None))
            else:
                if operand.region is None:
                    operand.region = self._region(operand, task)
                    shape = (operand.rows, operand.cols) if operand.matrix else (operand.cols,)
                    operand.array = _strided(operand, operand.region, shape)
                region, array = operand.region, operand.array
            if operand.read:
                memory.read(task, region, operand.name)
            if operand.write:
                memory.write(task, region, operand.name)
                written.append(region)
            if operand.low:  # references compute in float32
                stored, array = array, array.astype(np.float32)
                if operand.write:
                    rounding.append((stored, array, operand.low))
            setattr(arrays, operand.name, array)
            if (spelled := python_name(operand.name)) != operand.name:
                setattr(arrays, spelled, array)
        # Infinities and NaNs are valid values, as on the GPU.
        try:
            with np.errstate(all="ignore"):
                self._reference(arrays, self._attributes)
        except (IndexError, ValueError, AttributeError, OverflowError) as error:
            # A label out of range, extents that do not fit, an operand that was left out, an
            # invalid count.
            raise SimulationError(f"{task}: its operands do not fit together: {error}") from error
        for stored, array, name in rounding:
            stored[...] = rounded(array, name)
        for region in written:
            memory.mark_written(region)
        if self._end is not None:
            self._launcher.set(self._attributes["handle"], int(arrays.cursor[0] < self._end))
        elif self._flag:
            self._launcher.set(self._attributes["handle"], int(arrays.flag[0] != 0))

    def _window(self, operand: _Operand, step: int, task: Task, order: Any) -> tuple[Region, Any]:
        """The rows of this step, and an array of the rows 0 up to the last of them. The reference
        selects its rows from the array: those in `order`, or `rows` from step * stride on."""
        slot = operand.name in _SLOTS
        stride = 1 if slot else int(self._attributes.get("stride", operand.rows))
        first, rows = step * stride, operand.rows
        if order is not None and operand.name != "order" and not slot:
            chosen = order[first : first + rows]
            first, rows = int(chosen.min()), int(chosen.max() - chosen.min()) + 1
        size = operand.dtype.itemsize
        region = self._memory.region(
            operand.address + first * operand.ld * size, operand.cols * size, operand.ld * size,
            rows, f"operand '{operand.name}' of {task}",
        )
        start = operand.address - region.allocation.address
        if start < 0:
            raise SimulationError(f"{self._kernel.expression}: operand '{operand.name}' begins "
                                  f"before the {region.allocation}")
        last = first + rows
        shape = (last, operand.cols) if operand.matrix else (last,)
        strides = (operand.ld * size, size) if operand.matrix else (size,)
        return region, np.ndarray(shape, operand.dtype, region.allocation.data, start, strides)


def _elements(parameter: Parameter, label: str) -> np.dtype[Any]:
    """The element type of a pointer: numbers, addresses, or built-in vectors of numbers (float4),
    which are structured elements."""
    ctype = parameter.ctype
    layout = vector(ctype)
    known = np.uint64 if ctype.endswith("*") else DTYPES.get(ctype) or (
        layout.dtype if layout else FORMATS.get(ctype))
    if known is None:
        raise SimulationError(f"{label}: '{parameter.name}' points to {ctype}, and the "
                              f"simulated GPU knows numbers and vectors such as float4 alone")
    return np.dtype(known)


def _strided(operand: _Operand, region: Region, shape: tuple[int, ...]) -> Any:
    size = operand.dtype.itemsize
    strides = (operand.ld * size, size) if operand.matrix else (size,)
    return np.ndarray(shape, operand.dtype, region.allocation.data, region.offset, strides)
