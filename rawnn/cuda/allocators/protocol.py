"""What every allocator of device memory offers, and what it tells of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from rawnn.cuda.memory import Allocation
from rawnn.cuda.stream import Stream


@dataclass(frozen=True)
class Statistics:
    """Bytes and counts since an allocator was made.

    `current` and `peak` are the bytes that its callers hold and held at most, `reserved` what it
    holds from the driver for that. `hits` were served from what it had already, `misses` took the
    driver; `splits` and `merges` count blocks. `free` are reserved bytes in nobody's hands,
    `largest_free` the most of them in one piece.
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
        """Share of the free bytes that lie outside the largest free piece: 0 where any request
        that fits in sum fits in one place."""
        return 1.0 - self.largest_free / self.free if self.free else 0.0


class Allocator(Protocol):
    """Gives out device memory. One thread at a time may call it."""

    def allocate(self, nbytes: int, purpose: str, stream: Stream | None = None) -> Allocation:
        """At least `nbytes` of uninitialised memory, aligned to 256 bytes, for work on `stream`
        (the allocator's own where none is given). Raises OutOfMemory, CallFailed."""

    def free(self, allocation: Allocation) -> None:
        """Take memory back: work put on its stream before this call may still use it. Harmless
        where it was taken back already."""

    def used_on(self, allocation: Allocation, stream: Stream) -> None:
        """Say that work on another stream than its own uses the memory, too: it will not be
        given out again before what is on that stream at the time of `free` is done."""

    def statistics(self) -> Statistics: ...

    def release_cached(self) -> int:
        """Give back to the driver what is held and unused; returns the bytes."""

    def close(self) -> None:
        """Give everything back to the driver; a second call is harmless."""
