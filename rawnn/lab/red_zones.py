"""Arrays between red zones: bytes before and after the array that no kernel may write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.common.words import counted

Bytes = NDArray[np.uint8]
_LEAST, _MOST, _UNIT = 16 << 10, 256 << 10, 256
"""Bytes of a red zone: as many as the array has, within these bounds. A kernel without a bounds
check exceeds the array by its tile's rows. A multiple of the driver's alignment of allocations."""


@dataclass(frozen=True)
class Image:
    """The bytes of one array with its red zones, as they are copied to the device and back; `zone`
    is the size of either zone in bytes."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    content: Bytes
    zone: int

    @classmethod
    def of(cls, values: NDArray[Any], generator: np.random.Generator) -> Image:
        """The image of an array, between zones of random bytes."""
        raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        zone = min(max(-(-raw.size // _UNIT) * _UNIT, _LEAST), _MOST)
        content = np.empty(raw.size + 2 * zone, np.uint8)
        content[zone : zone + raw.size] = raw
        for part in (slice(0, zone), slice(zone + raw.size, None)):
            content[part] = np.frombuffer(generator.bytes(zone), np.uint8)
        return cls(values.shape, values.dtype, content, zone)

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def inside(self, content: Bytes | None = None) -> Bytes:
        """The array's own bytes, in `content` if given, else in this image."""
        content = self.content if content is None else content
        return content[self.zone : self.zone + self.nbytes]

    def values(self, content: Bytes) -> NDArray[Any]:
        """The array in a content that was copied back."""
        return np.frombuffer(self.inside(content).tobytes(), self.dtype).reshape(self.shape)

    def poisoned(self, generator: np.random.Generator | None) -> Image:
        """The same with the values replaced: all bits set (NaN, -1), or random."""
        content = self.content.copy()
        self.inside(content)[...] = 0xFF if generator is None else \
            np.frombuffer(generator.bytes(self.nbytes), np.uint8)
        return Image(self.shape, self.dtype, content, self.zone)

    def with_other_zones(self, generator: np.random.Generator) -> Image:
        content = self.content.copy()
        content[:self.zone] = np.frombuffer(generator.bytes(self.zone), np.uint8)
        content[self.zone + self.nbytes:] = np.frombuffer(generator.bytes(self.zone), np.uint8)
        return Image(self.shape, self.dtype, content, self.zone)

    def out_of_bounds(self, content: Bytes) -> str:
        """A description of writes outside of the array; "" if there were none."""
        changed = np.flatnonzero(content != self.content)
        outside = changed[(changed < self.zone) | (changed >= self.zone + self.nbytes)]
        if not outside.size:
            return ""
        size = self.dtype.itemsize
        first = int(outside[0]) - self.zone
        elements = np.unique((outside - self.zone) // size).size
        if first < 0:
            where = f"the first {counted(-(first // size), 'element')} before its beginning"
        else:
            index = first // size
            where = (f"the first at element {index:,}, and it has {prod(self.shape):,}")
        return f"{counted(elements, 'element')} outside of it, {where}"

    def changed(self, content: Bytes) -> NDArray[np.intp]:
        """Indices of the array's elements whose bytes have changed."""
        size = self.dtype.itemsize
        different = self.inside(content) != self.inside()
        return np.flatnonzero(different.reshape(-1, size).any(axis=1))


Images = Mapping[str, Image]
Contents = dict[str, Bytes]


def place(index: int, shape: tuple[int, ...]) -> str:
    """The index of a flat position, as "[3, 17]"."""
    found = np.unravel_index(index, shape) if shape else ()
    return f"[{', '.join(map(str, found))}]"
