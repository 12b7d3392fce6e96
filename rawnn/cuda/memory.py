"""Device memory from the driver, and the tally of all of it.

`Memory` is at once the simplest allocator, which asks the driver at each use, and the place where
all the others get their memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from rawnn.cuda.errors import check, check_memory

if TYPE_CHECKING:
    from rawnn.cuda.allocators.log import AllocationLog
    from rawnn.cuda.allocators.protocol import Statistics
    from rawnn.cuda.stream import Stream

ALIGNMENT = 256
"""cuMemAlloc aligns to 256 bytes; tensors inside an arena keep the same promise."""


@dataclass(eq=False, slots=True)
class Allocation:
    """`nbytes` of device memory at `address`, got for `purpose`. Not to be changed (a frozen class
    takes 0.6 us longer to make, and the baseline makes seven a step)."""

    address: int
    nbytes: int
    purpose: str


def rounded_up(nbytes: int, unit: int = ALIGNMENT) -> int:
    """`nbytes` rounded up to multiples of `unit`, with at least one byte to spare.

    Nothing writes that byte: a kernel that reads past the end of a tensor reads what was never
    written, which the simulated device reports, and not its neighbour, which nothing would.
    """
    return (nbytes // unit + 1) * unit


class Source(Protocol):
    """Where memory comes from that is held for long."""

    def allocate(self, nbytes: int, purpose: str) -> Allocation: ...

    def free(self, allocation: Allocation) -> None: ...


class Memory:
    """Every byte that rawnn holds on one device goes through here and is counted.

    `current` and `peak` are bytes; `calls` counts the driver's allocations. Where a `log` is set,
    it is told of every call. As an allocator (rawnn.cuda.allocators) it is the baseline:
    each `allocate` is a cuMemAlloc, each `free` a cuMemFree, which waits for the whole device.
    """

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._live: dict[int, Allocation] = {}
        self.current = self.peak = self.calls = 0
        self.log: AllocationLog | None = None

    def allocate(self, nbytes: int, purpose: str, stream: Stream | None = None) -> Allocation:
        """`nbytes` (at least 1) of uninitialised memory, for any stream. Raises OutOfMemory,
        CallFailed."""
        nbytes = max(nbytes, 1)
        address = check_memory(
            self._driver, "cuMemAlloc", self._driver.cuMemAlloc(nbytes), nbytes, purpose
        )
        allocation = Allocation(address, nbytes, purpose)
        self._live[address] = allocation
        self.calls += 1
        self.count(nbytes)
        if self.log is not None:
            self.log.record("cuMemAlloc", nbytes, self.current, address, purpose)
        return allocation

    def free(self, allocation: Allocation) -> None:
        """Give memory back; the driver waits for work that uses it. Harmless where it was given
        back already, as by `free_all`."""
        if self._live.get(allocation.address) is not allocation:
            return
        del self._live[allocation.address]
        self.count(-allocation.nbytes)
        check(self._driver, "cuMemFree", self._driver.cuMemFree(allocation.address),
              f"{allocation.nbytes:,} bytes, {allocation.purpose}")
        if self.log is not None:
            self.log.record("cuMemFree", -allocation.nbytes, self.current, allocation.address,
                            allocation.purpose)

    def used_on(self, allocation: Allocation, stream: Stream) -> None:
        """Nothing to do: cuMemFree waits for all streams."""

    def count(self, nbytes: int) -> None:
        """Let the tally know of bytes that came (or went, if negative) by another call."""
        self.current += nbytes
        self.peak = max(self.peak, self.current)

    def statistics(self) -> Statistics:
        from rawnn.cuda.allocators.protocol import Statistics

        return Statistics(self.current, self.peak, self.current, misses=self.calls)

    def release_cached(self) -> int:
        """Nothing is kept here: 0."""
        return 0

    def reset_peak(self) -> None:
        """Let `peak` count from what is held now."""
        self.peak = self.current

    def free_all(self) -> None:
        """Free what is left, all of it even if one call fails."""
        with ExitStack() as stack:
            for allocation in self._live.copy().values():
                stack.callback(self.free, allocation)

    close = free_all

    def arena(self, sizes: Iterable[tuple[str, int]], purpose: str,
              source: Source | None = None) -> tuple[Allocation, dict[str, int]]:
        """One allocation, of this memory or of `source`, that holds every (name, bytes) at an
        aligned address of its own, with `rounded_up` it."""
        offsets: dict[str, int] = {}
        total = 0
        for name, nbytes in sizes:
            offsets[name] = total
            total += rounded_up(nbytes)
        block = (source or self).allocate(total, purpose)
        return block, {name: block.address + offset for name, offset in offsets.items()}
