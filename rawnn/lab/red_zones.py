"""Arrays between red zones: bytes that nobody may write, before and behind."""

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
"""Bytes of a red zone: those of the array itself within these bounds, as a kernel that forgets a
bound goes past it by its tile's rows. A multiple of what the driver aligns allocations to."""


@dataclass(frozen=True)
class Image:
    """The bytes of one array with its red zones, as they go to the device and come back; `zone` is
    the size of either zone in bytes."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    content: Bytes
    zone: int

    @classmethod
    def of(cls, values: NDArray[Any], generator: np.random.Generator) -> Image:
        """Of an array, between zones of bytes that no kernel writes by chance."""
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
        """The array's own bytes, of `content` in place of this image's."""
        content = self.content if content is None else content
        return content[self.zone : self.zone + self.nbytes]

    def values(self, content: Bytes) -> NDArray[Any]:
        """The array in a content that came back."""
        return np.frombuffer(self.inside(content).tobytes(), self.dtype).reshape(self.shape)

    def poisoned(self, generator: np.random.Generator | None) -> Image:
        """The same with other bytes in place of the values: all bits set (NaN, -1), or drawn."""
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
        """What was written outside of the array, in words; "" where nothing was."""
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
        """Which of the array's elements have other bytes now."""
        size = self.dtype.itemsize
        different = self.inside(content) != self.inside()
        return np.flatnonzero(different.reshape(-1, size).any(axis=1))


Images = Mapping[str, Image]
Contents = dict[str, Bytes]


def place(index: int, shape: tuple[int, ...]) -> str:
    """ "[3, 17]": where the element of a flat index is."""
    found = np.unravel_index(index, shape) if shape else ()
    return f"[{', '.join(map(str, found))}]"
