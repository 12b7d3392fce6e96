"""An arena: one block of memory of known size, allocated from front to back."""

from __future__ import annotations

from rawnn.common.errors import OutOfMemory
from rawnn.cuda.allocators.protocol import Statistics
from rawnn.cuda.memory import Allocation, Memory, rounded_up
from rawnn.cuda.stream import Stream


class Arena:
    """`nbytes` of device memory for `purpose`, from which allocations are cut one after another.

    Freed memory can be reused only once all of it is free: an arena is for tensors of equal
    lifetime. It calls the driver once, at construction. Raises OutOfMemory, CallFailed.
    """

    def __init__(self, memory: Memory, nbytes: int, purpose: str) -> None:
        self._memory, self._purpose = memory, purpose
        self._block = memory.allocate(nbytes, purpose)
        self._live: dict[int, Allocation] = {}
        self._end = self._current = self._peak = self._hits = 0

    def allocate(self, nbytes: int, purpose: str, stream: Stream | None = None) -> Allocation:
        """`nbytes` (at least 1) for any stream. Raises OutOfMemory if the arena is full."""
        nbytes = max(nbytes, 1)
        left = self._block.nbytes - self._end
        if rounded_up(nbytes) > left:
            raise OutOfMemory(f"the arena of {self._block.nbytes:,} bytes ({self._purpose}) has no "
                              f"room for {nbytes:,} bytes ({purpose}): {left:,} are left")
        allocation = Allocation(self._block.address + self._end, nbytes, purpose)
        self._end += rounded_up(nbytes)
        self._live[allocation.address] = allocation
        self._hits += 1
        self._current += nbytes
        self._peak = max(self._peak, self._current)
        return allocation

    def free(self, allocation: Allocation) -> None:
        """Take memory back; the arena restarts when nothing is allocated. The stream orders later
        users after earlier ones, or the caller's own waits do (`used_on`)."""
        if self._live.get(allocation.address) is not allocation:
            return
        del self._live[allocation.address]
        self._current -= allocation.nbytes
        if not self._live:
            self._end = 0

    def used_on(self, allocation: Allocation, stream: Stream) -> None:
        """Nothing to do: an arena's tensors stay in place."""

    def statistics(self) -> Statistics:
        free = self._block.nbytes - self._end
        return Statistics(self._current, self._peak, self._block.nbytes, self._hits, 1,
                          free=free, largest_free=free)

    def release_cached(self) -> int:
        """Nothing to release, since the arena is one block. Returns 0."""
        return 0

    def close(self) -> None:
        self._live.clear()
        self._memory.free(self._block)
