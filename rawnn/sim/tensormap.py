"""Tensor maps of the simulated driver: refused as by the real one, and decodable.

At every launch the map of an operand is compared with the operand's own arguments. One with another
address, pitch, extent or box is an error here; a GPU would copy other data.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from typing import Any, Protocol

from rawnn.cuda.compiling.c_types import MAP_SIZE
from rawnn.cuda.compiling.signature import KernelSignature
from rawnn.cuda.tensormap import BOX_BYTES, NO_MAP
from rawnn.sim.errors import Refused, SimulationError

_SIZES = {"UINT8": 1, "UINT16": 2, "UINT32": 4, "INT32": 4, "UINT64": 8, "INT64": 8, "FLOAT16": 2,
          "FLOAT32": 4, "FLOAT64": 8, "BFLOAT16": 2, "FLOAT32_FTZ": 4, "TFLOAT32": 4,
          "TFLOAT32_FTZ": 4}
"""Bytes of an element."""
_SWIZZLES = {"NONE": 1 << 11, "32B": 32, "64B": 64, "128B": 128}
"""Most bytes of a row of a box."""
_PROMOTIONS = ("NONE", "L2_64B", "L2_128B", "L2_256B")
_TYPES, _WORDS = tuple(_SIZES), tuple(_SWIZZLES)
_MAGIC = b"a map\0"
_FORMAT = struct.Struct("<6s4BQ5Q4Q5I")
_MOST = 5
"""Most dimensions."""


@dataclass(frozen=True)
class SimMap:
    """The arguments of a map, as in rawnn.cuda.driver.Driver.cuTensorMapEncodeTiled."""

    dtype: str
    address: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: str
    promotion: str

    def encoded(self) -> bytes:
        """The 128 bytes. Raises Refused if the driver would refuse."""
        size, rank = _SIZES.get(self.dtype, 0), len(self.extents)
        if not size or self.swizzle not in _SWIZZLES or self.promotion not in _PROMOTIONS \
                or not 1 <= rank <= _MOST or len(self.strides) != rank - 1 \
                or len(self.box) != rank or not self.address or self.address % 16 \
                or any(not 0 < n <= 1 << 32 for n in self.extents) \
                or any(not 0 < n < 1 << 40 or n % 16 for n in self.strides) \
                or any(not 0 < n <= 256 for n in self.box) \
                or self.box[0] * size % 16 or self.box[0] * size > _SWIZZLES[self.swizzle]:
            raise Refused("CUDA_ERROR_INVALID_VALUE")
        padded = [0] * (_MOST - rank)
        return _FORMAT.pack(
            _MAGIC, rank, _TYPES.index(self.dtype), _WORDS.index(self.swizzle),
            _PROMOTIONS.index(self.promotion), self.address, *self.extents, *padded,
            *self.strides, *padded, *self.box, *padded,
        ).ljust(MAP_SIZE, b"\0")


def decoded(raw: bytes) -> SimMap | None:
    """Inverse of `encoded`; None for other bytes."""
    magic, rank, dtype, swizzle, promotion, address, *numbers = _FORMAT.unpack_from(raw)
    if magic != _MAGIC:
        return None
    extents, strides, box = numbers[:_MOST], numbers[_MOST:2 * _MOST - 1], numbers[2 * _MOST - 1:]
    return SimMap(_TYPES[dtype], address, tuple(extents[:rank]), tuple(strides[:rank - 1]),
                  tuple(box[:rank]), _WORDS[swizzle], _PROMOTIONS[promotion])


Boxes = Callable[[dict[str, Any]], Mapping[str, int]]


class Operand(Protocol):
    """What an operand's own arguments say about it: `ld` is in elements."""

    name: str
    dtype: Any
    address: int
    rows: int
    cols: int
    ld: int
    matrix: bool
    window: bool


def check_maps(label: str, signature: KernelSignature, values: Mapping[str, Any],
               operands: Sequence[Operand], boxes: Boxes | None,
               scalars: Mapping[str, Any]) -> None:
    """Compare every map among the arguments `values` with its operand. `boxes` gives the rows of
    the operands' boxes from `scalars`, None if unknown. Raises SimulationError for the first that
    differs."""
    maps = [p for p in signature.parameters if p.tensor_map]
    if not maps:
        return
    known = {operand.name: operand for operand in operands}
    rows = None if boxes is None else _rows(label, boxes, scalars)
    for parameter in maps:
        of, raw = parameter.mapped, values[parameter.name]
        about = f"{label}: the map '{parameter.name}'"
        if of not in values:
            raise SimulationError(f"{about} is of no operand: give it the name of one, and '_map'")
        if of not in known:
            if raw != NO_MAP:
                raise SimulationError(f"{about} is given, but '{of}' is left out")
            continue
        if rows is not None and of not in rows:
            raise SimulationError(f"{about} has no box in the table of kernels")
        found = decoded(raw)
        if found is None:
            raise SimulationError(f"{about} was not made by cuTensorMapEncodeTiled")
        operand = known[of]
        if rows is None:  # a user's kernel, whose boxes are its own
            _compare(about, of, found, _of_the_user(found, operand))
            continue
        if not operand.matrix or operand.window:
            raise SimulationError(f"{about}: '{of}' is no matrix, or one that moves with the step")
        size = operand.dtype.itemsize
        wanted = SimMap(
            operand.dtype.name.upper(), operand.address, (operand.cols, operand.rows),
            (operand.ld * size,),
            (BOX_BYTES // size, rows[of]), "128B", found.promotion)
        _compare(about, of, found, wanted)


def _of_the_user(found: SimMap, operand: Operand) -> SimMap:
    """The map that the operand's own arguments determine: its address, and for a matrix also its
    extents and pitch."""
    if not operand.matrix or len(found.extents) != 2:
        return replace(found, address=operand.address)
    return replace(found, address=operand.address, extents=(operand.cols, operand.rows),
                   strides=(operand.ld * operand.dtype.itemsize,))


def _rows(label: str, boxes: Boxes, scalars: Mapping[str, Any]) -> Mapping[str, int]:
    try:
        return boxes(dict(scalars))
    except KeyError as error:
        raise SimulationError(f"{label}: the boxes of its maps depend on {error}, which neither an "
                              f"argument nor a template parameter says") from None


def _compare(about: str, operand: str, found: SimMap, wanted: SimMap) -> None:
    for field, a, b in zip(fields(SimMap), astuple(found), astuple(wanted), strict=True):
        if a != b:
            shown = [f"{n:#x}" if field.name == "address" else str(n) for n in (a, b)]
            raise SimulationError(f"{about} has the {field.name} {shown[0]}, but '{operand}' asks "
                                  f"for {shown[1]}")
