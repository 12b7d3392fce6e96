"""Page-locked host memory, from which the GPU copies directly, without the driver's staging.

On an H200 a copy from page-locked memory runs at 54 GB/s and returns at once; one from pageable
memory runs at 9.1 GB/s, and the host waits until the bytes are staged.
"""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rawnn.common.errors import OutOfMemory
from rawnn.cuda.errors import check


class PinnedBuffer:
    """`nbytes` of page-locked host memory from `address` on; `purpose` names it in errors.

    Its arrays are views: `close` frees their memory, so that no array and no pending copy may
    outlive it. Raises OutOfMemory, CallFailed.
    """

    def __init__(self, driver: Any, nbytes: int, purpose: str) -> None:
        self._driver, self.nbytes, self.purpose = driver, max(nbytes, 1), purpose
        result = driver.cuMemHostAlloc(self.nbytes, 0)
        if result[0] and driver.error_text(result[0])[0] == "CUDA_ERROR_OUT_OF_MEMORY":
            raise OutOfMemory(
                f"cuMemHostAlloc failed with CUDA_ERROR_OUT_OF_MEMORY [{int(result[0])}]: the host "
                f"has no room for {self.nbytes:,} bytes of page-locked memory ({purpose}); leave "
                f"out 'pinned', or raise the limit of locked memory (ulimit -l)"
            )
        self.address: int = check(driver, "cuMemHostAlloc", result,
                                  f"{self.nbytes:,} bytes, {purpose}")

    def array(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """The first bytes as a C-contiguous array. Raises ValueError if they are too few."""
        wanted = prod(shape) * np.dtype(dtype).itemsize
        if wanted > self.nbytes:
            raise ValueError(f"{self.purpose}: an array of {wanted:,} bytes does not fit in "
                             f"{self.nbytes:,}")
        raw = (ctypes.c_ubyte * self.nbytes).from_address(self.address)
        return np.ndarray(shape, np.dtype(dtype), memoryview(raw))

    def close(self) -> None:
        """Free the memory, after the driver has waited for work that uses it; a second call has no
        effect."""
        if self.address:
            address, self.address = self.address, 0
            check(self._driver, "cuMemFreeHost", self._driver.cuMemFreeHost(address),
                  f"{self.nbytes:,} bytes, {self.purpose}")


class PinnedMemory:
    """All page-locked memory of one owner: `current` bytes in `live` buffers."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self.live: list[PinnedBuffer] = []

    @property
    def current(self) -> int:
        """Bytes held."""
        return sum(buffer.nbytes for buffer in self.live)

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike, purpose: str) -> NDArray[Any]:
        """An uninitialised array in page-locked memory. Raises OutOfMemory, CallFailed."""
        nbytes = prod(shape) * np.dtype(dtype).itemsize
        buffer = PinnedBuffer(self._driver, nbytes, purpose)
        self.live.append(buffer)
        return buffer.array(shape, dtype)

    def copy_of(self, array: NDArray[Any], purpose: str) -> NDArray[Any]:
        """A page-locked copy of `array`."""
        copy = self.empty(array.shape, array.dtype, purpose)
        copy[...] = array
        return copy

    def close(self) -> None:
        """Free every buffer, even if one call fails."""
        with ExitStack() as freeing:
            while self.live:
                freeing.callback(self.live.pop().close)
