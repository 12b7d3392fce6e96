"""The pieces of the caching pool: segments from the driver, blocks within them, and the free
blocks of each stream."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from rawnn.cuda.memory import Allocation
from rawnn.cuda.stream import OrderingEvent, Stream


@dataclass(eq=False, slots=True)
class Block:
    """`nbytes` at `address` inside a segment, between its neighbours there.

    `need` is what was asked for when it was given out last. `lane` is the stream whose order makes
    it safe to give out again; `ticket` the number of that stream's last free of the block, `users`
    other streams that work on it, `out` the allocation that it serves now.
    """

    segment: Allocation
    address: int
    nbytes: int
    large: bool
    lane: Lane
    need: int = 0
    before: Block | None = None
    behind: Block | None = None
    out: Allocation | None = None
    ticket: int = 0
    users: dict[int, Stream] = field(default_factory=dict)

    def split(self, nbytes: int) -> Block:
        """Keep the first `nbytes`; the rest becomes a block of its own behind this one."""
        rest = Block(self.segment, self.address + nbytes, self.nbytes - nbytes, self.large,
                     self.lane, before=self, behind=self.behind, ticket=self.ticket)
        if self.behind is not None:
            self.behind.before = rest
        self.behind, self.nbytes = rest, nbytes
        return rest

    def absorb(self, other: Block) -> None:
        """Take in the block behind this one."""
        self.nbytes += other.nbytes
        self.ticket = max(self.ticket, other.ticket)
        self.behind = other.behind
        if self.behind is not None:
            self.behind.before = self


class FreeList:
    """Free blocks by size, then address: the best fit is found by bisection."""

    def __init__(self) -> None:
        self._keys: list[tuple[int, int]] = []
        self._blocks: dict[int, Block] = {}

    def __iter__(self) -> Iterator[Block]:
        return iter(self._blocks.values())

    def __contains__(self, block: Block) -> bool:
        return self._blocks.get(block.address) is block

    def add(self, block: Block) -> None:
        insort(self._keys, (block.nbytes, block.address))
        self._blocks[block.address] = block

    def remove(self, block: Block) -> None:
        del self._keys[bisect_left(self._keys, (block.nbytes, block.address))]
        del self._blocks[block.address]

    def best(self, nbytes: int, ticket: int | None = None) -> Block | None:
        """The smallest block of at least `nbytes`, the lowest address among equals; with `ticket`
        one that was freed no later than that. None where there is no such block."""
        for at in range(bisect_left(self._keys, (nbytes, 0)), len(self._keys)):
            block = self._blocks[self._keys[at][1]]
            if ticket is None or block.ticket <= ticket:
                return block
        return None


class Lane:
    """What the pool knows of one stream: its free blocks, small and large, and how far the device
    has come on it. Frees are numbered; those up to `done` lie behind the device. `quick` holds, by
    size, blocks that were freed and not yet joined with their neighbours."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.quick: dict[int, list[Block]] = {}
        self.free = {False: FreeList(), True: FreeList()}
        self.ticket = self.done = 0
        self.pending: tuple[OrderingEvent, int] | None = None
