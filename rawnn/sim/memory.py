"""Device memory: bytes with addresses, their allocations, whether they were ever written, and their
last accesses.

Every access is to a region: rows of bytes at a pitch. A known region is found by its key, together
with the other regions that share bytes with it, so that a training loop computes the geometry once.
Addresses are never reused, so that every use after free is detected.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.common.words import counted
from rawnn.sim.errors import Race, ReadBeforeWrite, Refused, SimulationError
from rawnn.sim.order import Task

BASE = 1 << 56
"""First device address: higher than all host addresses, so that the two cannot be confused."""
_GAP = 1 << 16
_ALIGNMENT = 256
POISON = 0xFF  # as a float: NaN
POOL_STEP = 2 << 20  # bytes by which the memory pool grows
_REMEMBERED = 4096  # freed allocations, for the message of a use after free


@dataclass(eq=False)
class Allocation:
    """`nbytes` at `address`, allocated at `site` (file:line of the caller); `pooled` if they are
    reserved by the memory pool."""

    address: int
    nbytes: int
    site: str
    data: NDArray[np.uint8] = field(repr=False)
    written: NDArray[np.bool_] = field(repr=False)
    regions: list[Region] = field(default_factory=list, repr=False)
    pooled: bool = False

    def __str__(self) -> str:
        return f"allocation of {self.nbytes:,} bytes at {self.address:#x} made at {self.site}"


@dataclass(slots=True)
class Access:
    """One past access: the operand's name and the task, by its position in the order."""

    operand: str
    label: str
    where: str
    lane: int
    index: int


class Region:
    """`rows` rows of `row_bytes` bytes, `pitch` bytes apart, from `address` on."""

    __slots__ = ("address", "allocation", "end", "initialised", "offset", "overlapping", "pitch",
                 "reads", "row_bytes", "rows", "writes")

    def __init__(self, allocation: Allocation, address: int, row_bytes: int, pitch: int,
                 rows: int) -> None:
        self.allocation, self.address = allocation, address
        self.offset = address - allocation.address
        self.row_bytes, self.pitch, self.rows = row_bytes, pitch, rows
        self.end = address + (rows - 1) * pitch + row_bytes
        self.initialised = False
        self.overlapping: list[Region] = [self]
        self.reads: list[Access] = []
        self.writes: list[Access] = []

    def mask(self) -> NDArray[np.bool_]:
        """[rows, row_bytes] view: which bytes were ever written."""
        return np.ndarray((self.rows, self.row_bytes), np.bool_, self.allocation.written,
                          self.offset, (self.pitch, 1))

    def array(self, dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        """The bytes as a vector, or as a matrix whose rows are `pitch` apart."""
        itemsize = np.dtype(dtype).itemsize
        strides = (self.pitch, itemsize) if len(shape) == 2 else (itemsize,)
        return np.ndarray(shape, dtype, self.allocation.data, self.offset, strides)

    def bytes(self) -> NDArray[np.uint8]:
        return np.ndarray((self.rows, self.row_bytes), np.uint8, self.allocation.data,
                          self.offset, (self.pitch, 1))

    def shares_bytes_with(self, other: Region) -> bool:
        if self.end <= other.address or other.end <= self.address:
            return False
        if self.rows > 1 and other.rows > 1 and self.pitch != other.pitch:
            few, many = sorted((self, other), key=lambda region: region.rows)
            return any(
                _rows_meet(few.address + row * few.pitch, few.row_bytes, 1, many.address,
                           many.row_bytes, many.rows, many.pitch)
                for row in range(few.rows)
            )
        pitch = self.pitch if self.rows > 1 else other.pitch
        return _rows_meet(self.address, self.row_bytes, self.rows, other.address, other.row_bytes,
                          other.rows, pitch)


def _rows_meet(a: int, a_bytes: int, a_rows: int, b: int, b_bytes: int, b_rows: int,
               pitch: int) -> bool:
    """Whether two sets of rows at one pitch share a byte: some difference k of row numbers, with
    -a_rows < k < b_rows, has -b_bytes < (b - a) + k * pitch < a_bytes."""
    low = -((b_bytes - 1 + b - a) // pitch)
    high = (a_bytes - 1 - (b - a)) // pitch
    return max(low, 1 - a_rows) <= min(high, b_rows - 1)


class Pool:
    """The device's default memory pool: the bytes that it has `reserved` and `used`, and the
    `threshold` down to which a synchronization releases the rest. Freed memory can be reused at
    once: the driver, too, reuses it in the order of the stream. The bytes that are `freeing` are
    released only once their stream has reached the free."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.threshold = self.reserved = self.used = self.freeing = 0

    def take(self, nbytes: int) -> None:
        missing = self.used + nbytes - self.reserved
        if missing > 0:
            grown = -(-missing // POOL_STEP) * POOL_STEP
            if grown > self._memory.total - self._memory.used:
                raise Refused("CUDA_ERROR_OUT_OF_MEMORY")
            self.reserved += grown
            self._memory.used += grown
        self.used += nbytes

    def shrink(self, keep: int | None = None) -> None:
        """Release what is reserved and unused, down to `keep` (default: the threshold)."""
        remaining = max(-(-(self.used + self.freeing) // POOL_STEP) * POOL_STEP,
                        self.threshold if keep is None else keep)
        if remaining < self.reserved:
            self._memory.used -= self.reserved - remaining
            self.reserved = remaining


class Memory:
    """The device's `total` bytes. `generation` changes whenever something is freed."""

    def __init__(self, total: int) -> None:
        self.total, self.used, self.generation = total, 0, 0
        self.pool = Pool(self)
        self._next = BASE + _ALIGNMENT  # never aligned to more than the guaranteed alignment
        self._bases: list[int] = []
        self.live: dict[int, Allocation] = {}
        self._unpooled: set[int] = set()
        self._freed: OrderedDict[int, tuple[int, str, str]] = OrderedDict()
        self._regions: dict[tuple[int, int, int, int], Region] = {}

    def allocate(self, nbytes: int, site: str, pooled: bool = False) -> int:
        if nbytes <= 0:
            raise Refused("CUDA_ERROR_INVALID_VALUE")
        if pooled:
            self.pool.take(nbytes)
        elif nbytes > self.total - self.used:
            raise Refused("CUDA_ERROR_OUT_OF_MEMORY")
        else:
            self.used += nbytes
        address = self._next
        self._next += -(-(nbytes + _GAP) // (2 * _ALIGNMENT)) * 2 * _ALIGNMENT
        self.live[address] = Allocation(address, nbytes, site, np.full(nbytes, POISON, np.uint8),
                                        np.zeros(nbytes, np.bool_), pooled=pooled)
        self._bases.append(address)
        return address

    def free(self, address: int, site: str) -> None:
        """Raises SimulationError for an address that is not, or no longer, an allocation."""
        allocation = self.live.pop(address, None)
        if allocation is None:
            if address in self._freed:
                nbytes, origin, freed = self._freed[address]
                raise SimulationError(f"double free of {nbytes:,} bytes at {address:#x} made at "
                                      f"{origin}: freed at {freed}, and again at {site}")
            raise SimulationError(f"free of {address:#x} at {site}: {self._nearby(address)}")
        del self._bases[bisect_right(self._bases, address) - 1]
        for region in allocation.regions:
            del self._regions[region.address, region.row_bytes, region.pitch, region.rows]
        if allocation.pooled:
            self.pool.used -= allocation.nbytes
        elif address in self._unpooled:
            self.pool.freeing -= allocation.nbytes
        else:
            self.used -= allocation.nbytes
        self._unpooled.discard(address)
        self.generation += 1
        self._freed[address] = (allocation.nbytes, allocation.site, site)
        if len(self._freed) > _REMEMBERED:
            self._freed.popitem(last=False)

    def unpool(self, address: int, site: str) -> None:
        """The pool takes the allocation back; it is freed when the stream reaches that point.
        Refuses other allocations. Raises SimulationError for a double free."""
        allocation = self.live.get(address)
        if allocation is None or address in self._unpooled:
            origin = allocation.site if allocation else self._nearby(address)
            raise SimulationError(f"double free of {address:#x} at {site}: made at {origin}")
        if not allocation.pooled:
            raise Refused("CUDA_ERROR_INVALID_VALUE")
        allocation.pooled = False
        self.pool.used -= allocation.nbytes
        self.pool.freeing += allocation.nbytes
        self._unpooled.add(address)

    def region(self, address: int, row_bytes: int, pitch: int, rows: int, what: str) -> Region:
        """The region, which must lie in one live allocation; `what` names it in messages.

        Raises SimulationError otherwise.
        """
        if rows == 1 or pitch == row_bytes:
            row_bytes, rows = row_bytes * rows, 1
            pitch = row_bytes
        found = self._regions.get((address, row_bytes, pitch, rows))
        if found is not None:
            return found
        at = bisect_right(self._bases, address) - 1
        allocation = self.live[self._bases[at]] if at >= 0 else None
        end = address + (rows - 1) * pitch + row_bytes
        if allocation is None or address >= allocation.address + allocation.nbytes:
            raise SimulationError(f"{what} at {address:#x}: {self._nearby(address)}")
        past = end - allocation.address - allocation.nbytes
        if past > 0:
            raise SimulationError(
                f"{what} at {address:#x} reaches {counted(past, 'byte')} past the end of the "
                f"{allocation}"
            )
        region = Region(allocation, address, row_bytes, pitch, rows)
        for other in allocation.regions:
            if region.shares_bytes_with(other):
                region.overlapping.append(other)
                other.overlapping.append(region)
        allocation.regions.append(region)
        self._regions[address, row_bytes, pitch, rows] = region
        return region

    def _nearby(self, address: int) -> str:
        """A description of an address in no live allocation."""
        if address == 0:
            return "null pointer"
        if address < BASE:
            return "not a device address (a host address?)"
        for base, (nbytes, origin, freed) in reversed(self._freed.items()):
            if base <= address < base + nbytes:
                return (f"use after free: inside {nbytes:,} bytes made at {origin} and freed at "
                        f"{freed}")
        at = bisect_right(self._bases, address) - 1
        if at >= 0:
            allocation = self.live[self._bases[at]]
            past = address - allocation.address - allocation.nbytes
            if past < _GAP:
                return f"out of bounds: {counted(past, 'byte')} past the end of the {allocation}"
        return "in no allocation"

    # -- accesses -------------------------------------------------------------------------------
    def read(self, task: Task, region: Region, operand: str) -> None:
        """`task` reads the region. Raises SimulationError for uninitialised bytes, and if the task
        is unordered with a write."""
        for other in region.overlapping:
            for past in other.writes:
                if not task.after(past.lane, past.index):
                    raise _race(past, "writes", task, operand, "reads", other, region)
        remaining = [past for past in region.reads if not task.after(past.lane, past.index)]
        remaining.append(Access(operand, task.label, task.where, task.lane, task.index))
        region.reads = remaining
        if not region.initialised:
            self._initialised(task, region, operand)

    def write(self, task: Task, region: Region, operand: str) -> None:
        """`task` is about to write the region. Raises SimulationError if it is unordered with
        another access."""
        for other in region.overlapping:
            for past in other.writes:
                if not task.after(past.lane, past.index):
                    raise _race(past, "writes", task, operand, "writes", other, region)
            for past in other.reads:
                if not task.after(past.lane, past.index):
                    raise _race(past, "reads", task, operand, "writes", other, region)
        # A task that is unordered with an earlier access is also unordered with this one.
        region.reads.clear()
        region.writes = [Access(operand, task.label, task.where, task.lane, task.index)]

    def mark_written(self, region: Region) -> None:
        """Mark the bytes of the region as initialised."""
        if not region.initialised:
            region.mask()[...] = True
            region.initialised = True

    def scribble(self, region: Region) -> None:
        """Mark the bytes as uninitialised: scratch memory after its use."""
        region.bytes()[...] = POISON
        region.mask()[...] = False
        for other in region.overlapping:
            other.initialised = False

    def _initialised(self, task: Task, region: Region, operand: str) -> None:
        mask = region.mask()
        if mask.all():
            region.initialised = True
            return
        row, column = np.unravel_index(int(mask.argmin()), mask.shape)
        raise ReadBeforeWrite(
            f"{task}: operand '{operand}' is read before it was written: byte {column} of row "
            f"{row} ({counted(region.rows, 'row')} of {region.row_bytes:,} bytes, pitch "
            f"{region.pitch:,}) in the {region.allocation}; {int((~mask).sum()):,} of "
            f"{mask.size:,} bytes were never written"
        )


def _race(past: Access, did: str, task: Task, operand: str, does: str, other: Region,
          region: Region) -> Race:
    first = max(other.address, region.address)
    last = min(other.end, region.end)
    missing = f"an edge or event between {past.label} ({past.where}) and {task} is missing"
    if any((t.lane, t.index) == (past.lane, past.index) for t in task.unwaited):
        missing = ("the programmatic edge between them orders nothing, for its consumer does not "
                   "always wait: cudaGridDependencySynchronize() is missing")
    return Race(
        f"race: {past.label} ({past.where}) {did} '{past.operand}' and {task} {does} '{operand}', "
        f"bytes {first:#x} to {last:#x} of the {region.allocation}, and nothing orders the two: "
        f"{missing}"
    )
