"""Tensor maps of a user's arrays, with which the copy engine (TMA) of compute capability 9.0 and
later copies boxes of an array between device and shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from rawnn.common.errors import ConfigError, nearest
from rawnn.common.words import counted
from rawnn.cuda.device import Device
from rawnn.cuda.errors import check
from rawnn.cuda.tensormap import ALIGNMENT
from rawnn.lab.array_exchange import imported
from rawnn.lab.arrays import Array, chosen_device, default_device

_MOST_DIMENSIONS, _MOST_EXTENT = 5, 256
SWIZZLES = {"128B": 128, "64B": 64, "32B": 32, "none": _MOST_EXTENT * 8}
"""Most bytes of a row of a box."""
_NAMES = {1: "UINT8", 2: "UINT16", 4: "INT32", 8: "INT64"}
"""By bytes of an element, for dtypes that the engine has no name for; it only moves bytes."""
_NAMED = ("float16", "bfloat16", "float32", "float64", "uint8", "uint16", "uint32", "int32",
          "uint64", "int64")


@dataclass(frozen=True)
class TensorMap:
    """An argument for a kernel's `const __grid_constant__ CUtensorMap` (or `TensorMap`) parameter.
    Create one with `rawnn.tensor_map`; it keeps its array alive."""

    array: Any
    content: bytes


def tensor_map(array: Any, box: int | Sequence[int], *, swizzle: str = "128B",
               device: Device | None = None) -> TensorMap:
    """The map of a C-contiguous array of 1 to 5 dimensions, copied in boxes of the extents `box`.

        x_map = rawnn.tensor_map(x, (64, 32))     # 64 rows x 32 columns of x [rows, cols]

    `array` is a rawnn array or another library's with DLPack or the CUDA array interface. The last
    extent of a box is contiguous. `swizzle` permutes its chunks of 16 bytes in shared memory, so
    that a column of chunks uses every bank: with "128B" chunk c of row r (of 128 bytes) is at chunk
    c ^ r % 8, as wgmma needs it, and likewise within 64 or 32 bytes; "none" keeps them in order.
    Elements of a box outside the array are read as zeros and not written. Coordinates in a kernel
    go from the last dimension to the first.

    Raises ConfigError, with the fix, for what the copy engine cannot do.

    Parameters
    ----------
    array
        C-contiguous, of 1 to 5 dimensions
    box
        extents of a box, one for each dimension, the last contiguous
    swizzle
        "none", "32B", "64B" or "128B"
    device
        where another library's array lies; None: the first GPU
    """
    if isinstance(array, Array):
        owned = array
    elif isinstance(array, np.ndarray):
        raise ConfigError("the array of a tensor map is a NumPy array, on the host: copy it with "
                          "rawnn.array(...)")
    else:
        on = chosen_device(device, default_device)
        found = imported(array, "array", on, writable=False)
        owned = Array.at(found.address, tuple(found.shape), found.dtype, on)
    extents = tuple(int(n) for n in owned.shape)
    box = (box,) if isinstance(box, int) else tuple(box)
    pitches = [prod(extents[i:]) * owned.dtype.itemsize for i in range(1, len(extents))]
    about = f"{owned!r} has no tensor map"
    _check(about, extents, pitches, owned, box, swizzle)
    driver, name = owned.device.driver, owned.dtype.name
    result = driver.cuTensorMapEncodeTiled(
        name.upper() if name in _NAMED else _NAMES[owned.dtype.itemsize], owned.address,
        extents[::-1], tuple(pitches[::-1]), tuple(int(n) for n in box)[::-1],
        swizzle.upper(), "L2_256B")
    content: bytes = check(driver, "cuTensorMapEncodeTiled", result, f"{owned!r} in boxes {box}")
    return TensorMap(array, content)


def _check(about: str, extents: Sequence[int], pitches: Sequence[int], array: Array,
           box: Sequence[Any], swizzle: str) -> None:
    size = array.dtype.itemsize
    if swizzle not in SWIZZLES:
        raise ConfigError(f"swizzle = {swizzle!r}: give one of {', '.join(SWIZZLES)}"
                          f"{nearest(str(swizzle), SWIZZLES)}")
    if array.dtype.names or size not in _NAMES or array.dtype.kind == "c":
        raise ConfigError(f"{about}: its elements are {array.dtype}, and the copy engine moves "
                          f"numbers of 1, 2, 4 or 8 bytes")
    if not 1 <= len(extents) <= _MOST_DIMENSIONS or min(extents) < 1:
        raise ConfigError(f"{about}: arrays of 1 to {_MOST_DIMENSIONS} dimensions, none of them "
                          f"empty, have one; reshape it")
    if len(box) != len(extents) or not all(
            isinstance(n, int | np.integer) and 1 <= n <= _MOST_EXTENT for n in box):
        like = (*(64,) * (len(extents) - 1), 128 // size)
        raise ConfigError(f"{about} with the box {box}: give an extent of 1 to {_MOST_EXTENT} for "
                          f"each of its {counted(len(extents), 'dimension')}, such as {like}")
    row = int(box[-1]) * size
    if row % ALIGNMENT or row > SWIZZLES[swizzle]:
        raise ConfigError(f"{about} with the box {box}: a row of it has {row} bytes, and "
                          f"has to have a multiple of {ALIGNMENT}, at most {SWIZZLES[swizzle]:,} "
                          f"with swizzle = \"{swizzle}\"")
    uneven = [pitch for pitch in pitches if pitch % ALIGNMENT]
    if uneven:
        raise ConfigError(f"{about}: its rows are {uneven[-1]} bytes apart, which is no multiple "
                          f"of {ALIGNMENT}: pad them (np.pad), and tell the kernel how many "
                          f"elements count")
    if array.address % ALIGNMENT:
        raise ConfigError(f"{about}: its address {array.address:#x} is no multiple of "
                          f"{ALIGNMENT}: copy it (rawnn.array, tensor.clone())")
