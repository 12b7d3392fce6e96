"""Device memory from the driver, and the count of all of it.

`Memory` is the simplest allocator, which calls the driver at each use, and also the source from
which all other allocators get their memory.
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
"""Alignment of cuMemAlloc in bytes; tensors inside an arena have the same."""


@dataclass(eq=False, slots=True)
class Allocation:
    """`nbytes` of device memory at `address`, allocated for `purpose`. Do not modify it: the class
    is not frozen only because that takes 0.6 us longer to construct, seven times a baseline
    step."""

    address: int
    nbytes: int
    purpose: str


def rounded_up(nbytes: int, unit: int = ALIGNMENT) -> int:
    """`nbytes` rounded up to multiples of `unit`, with at least one byte to spare.

    Nothing writes that byte. A kernel that reads past the end of a tensor therefore reads
    uninitialised memory, which the simulated device reports, instead of the next tensor.
    """
    return (nbytes // unit + 1) * unit


class Source(Protocol):
    """A source of memory that is held for a long time."""

    def allocate(self, nbytes: int, purpose: str) -> Allocation: ...

    def free(self, allocation: Allocation) -> None: ...


class Memory:
    """Allocates and counts all device memory that rawnn holds on one device.

    `current` and `peak` are bytes; `calls` counts the driver's allocations. A `log`, if set,
    records every call. As an allocator (rawnn.cuda.allocators) it is the baseline: each `allocate`
    is a cuMemAlloc, each `free` a cuMemFree, which waits for the whole device.
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
        """Free memory; the driver waits for work that uses it. It has no effect on memory that was
        already freed, such as by `free_all`."""
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
        """Count bytes that another call allocated (or freed, if negative)."""
        self.current += nbytes
        self.peak = max(self.peak, self.current)

    def statistics(self) -> Statistics:
        from rawnn.cuda.allocators.protocol import Statistics

        return Statistics(self.current, self.peak, self.current, misses=self.calls)

    def release_cached(self) -> int:
        """Nothing is cached here: returns 0."""
        return 0

    def reset_peak(self) -> None:
        """Restart `peak` from the bytes held now."""
        self.peak = self.current

    def free_all(self) -> None:
        """Free all remaining memory, even if one call fails."""
        with ExitStack() as stack:
            for allocation in self._live.copy().values():
                stack.callback(self.free, allocation)

    close = free_all

    def arena(self, sizes: Iterable[tuple[str, int]], purpose: str,
              source: Source | None = None) -> tuple[Allocation, dict[str, int]]:
        """One allocation, from this memory or from `source`, that holds every (name, bytes) at an
        aligned address of its own, with sizes rounded up by `rounded_up`."""
        offsets: dict[str, int] = {}
        total = 0
        for name, nbytes in sizes:
            offsets[name] = total
            total += rounded_up(nbytes)
        block = (source or self).allocate(total, purpose)
        return block, {name: block.address + offset for name, offset in offsets.items()}
