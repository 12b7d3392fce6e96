"""An arena: one piece of memory of a size known ahead, given out from the front to the back."""

from __future__ import annotations

from rawnn.common.errors import OutOfMemory
from rawnn.cuda.allocators.protocol import Statistics
from rawnn.cuda.memory import Allocation, Memory, rounded_up
from rawnn.cuda.stream import Stream


class Arena:
    """`nbytes` of device memory for `purpose`, from which allocations are cut one behind another.

    What is freed can be used again only once everything is: an arena is for tensors that live as
    long as each other. It asks the driver once, when it is made. Raises OutOfMemory, CallFailed.
    """

    def __init__(self, memory: Memory, nbytes: int, purpose: str) -> None:
        self._memory, self._purpose = memory, purpose
        self._block = memory.allocate(nbytes, purpose)
        self._live: dict[int, Allocation] = {}
        self._end = self._current = self._peak = self._hits = 0

    def allocate(self, nbytes: int, purpose: str, stream: Stream | None = None) -> Allocation:
        """`nbytes` (at least 1) for any stream. Raises OutOfMemory where the arena is full."""
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
        """Take memory back; the arena begins anew when nothing is out any more. Whoever reuses it
        then is ordered behind by the stream, or by the waits that `used_on` leaves to him."""
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
        """Nothing: the arena is one piece. 0."""
        return 0

    def close(self) -> None:
        self._live.clear()
        self._memory.free(self._block)
