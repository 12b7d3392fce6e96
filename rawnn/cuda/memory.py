"""Device memory: allocations that know their size and purpose, and the tally of all of them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from rawnn.cuda.errors import check, check_memory

ALIGNMENT = 256
"""cuMemAlloc aligns to 256 bytes; tensors inside an arena keep the same promise."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """`nbytes` of device memory at `address`, got from the driver for `purpose`."""

    address: int
    nbytes: int
    purpose: str


class Memory:
    """Every byte that rawnn holds on one device goes through here and is counted.

    `current` and `peak` are bytes; `calls` counts the driver's allocations.
    """

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._live: dict[int, Allocation] = {}
        self.current = self.peak = self.calls = 0

    def allocate(self, nbytes: int, purpose: str) -> Allocation:
        """`nbytes` (at least 1) of uninitialised memory. Raises OutOfMemory, CallFailed."""
        nbytes = max(nbytes, 1)
        address = check_memory(
            self._driver, "cuMemAlloc", self._driver.cuMemAlloc(nbytes), nbytes, purpose
        )
        allocation = Allocation(address, nbytes, purpose)
        self._live[address] = allocation
        self.calls += 1
        self.current += nbytes
        self.peak = max(self.peak, self.current)
        return allocation

    def free(self, allocation: Allocation) -> None:
        """Give memory back; the driver waits for work that uses it. Harmless where it was given
        back already, as by `free_all`."""
        if self._live.get(allocation.address) is not allocation:
            return
        del self._live[allocation.address]
        self.current -= allocation.nbytes
        check(self._driver, "cuMemFree", self._driver.cuMemFree(allocation.address),
              f"{allocation.nbytes:,} bytes, {allocation.purpose}")

    def reset_peak(self) -> None:
        """Let `peak` count from what is held now."""
        self.peak = self.current

    def free_all(self) -> None:
        """Free what is left, all of it even if one call fails."""
        with ExitStack() as stack:
            for allocation in self._live.copy().values():
                stack.callback(self.free, allocation)

    def arena(self, sizes: Iterable[tuple[str, int]], purpose: str) -> tuple[Allocation,
                                                                             dict[str, int]]:
        """One allocation that holds every (name, bytes) at an aligned address of its own.

        Behind each there is at least one byte that nothing writes: a kernel that reads past the
        end of a tensor reads what was never written, which the simulated device reports, and not
        its neighbour, which nothing would.
        """
        offsets: dict[str, int] = {}
        total = 0
        for name, nbytes in sizes:
            offsets[name] = total
            total += (nbytes // ALIGNMENT + 1) * ALIGNMENT
        block = self.allocate(total, purpose)
        return block, {name: block.address + offset for name, offset in offsets.items()}
