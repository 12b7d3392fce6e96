"""The interface and the statistics of every allocator of device memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from rawnn.cuda.memory import Allocation
from rawnn.cuda.stream import Stream


@dataclass(frozen=True)
class Statistics:
    """Bytes and counts since an allocator was created.

    current, peak: bytes that callers hold, now and at most.
    reserved: bytes held from the driver for them.
    hits, misses: requests served from held memory, and by the driver.
    splits, merges: counts of blocks.
    free: reserved bytes that nobody uses.
    largest_free: the largest contiguous block of them.
    """

    current: int = 0
    peak: int = 0
    reserved: int = 0
    hits: int = 0
    misses: int = 0
    splits: int = 0
    merges: int = 0
    retries: int = 0
    free: int = 0
    largest_free: int = 0

    @property
    def fragmentation(self) -> float:
        """Fraction of the free bytes outside the largest free block. At 0, every request that fits
        in total also fits in one block."""
        return 1.0 - self.largest_free / self.free if self.free else 0.0


class Allocator(Protocol):
    """Allocates device memory. Only one thread at a time may call it."""

    def allocate(self, nbytes: int, purpose: str, stream: Stream | None = None) -> Allocation:
        """At least `nbytes` of uninitialised memory, aligned to 256 bytes, for work on `stream`
        (default: the allocator's own). Raises OutOfMemory, CallFailed."""

    def free(self, allocation: Allocation) -> None:
        """Take memory back; work enqueued on its stream before this call may still use it. A second
        call has no effect."""

    def used_on(self, allocation: Allocation, stream: Stream) -> None:
        """Declare that work on another stream than its own uses the memory. It is then not reused
        before the work enqueued on that stream at the time of `free` has finished."""

    def statistics(self) -> Statistics: ...

    def release_cached(self) -> int:
        """Return held, unused memory to the driver; returns the bytes."""

    def close(self) -> None:
        """Return everything to the driver; a second call has no effect."""
