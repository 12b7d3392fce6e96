"""The data structures of the caching pool: blocks of a segment, and the free blocks of each
stream."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from rawnn.cuda.memory import Allocation
from rawnn.cuda.stream import OrderingEvent, Stream


@dataclass(eq=False, slots=True)
class Block:
    """`nbytes` at `address` inside a segment, between its neighbours there.

    need: bytes of the last request that it served.
    previous, following: its neighbours in the segment.
    out: the allocation that it serves now.
    lane: the stream on which it can be reused without waiting.
    ticket: number of that stream's last free of the block.
    users: other streams that work on it.
    """

    segment: Allocation
    address: int
    nbytes: int
    large: bool
    lane: Lane
    need: int = 0
    previous: Block | None = None
    following: Block | None = None
    out: Allocation | None = None
    ticket: int = 0
    users: dict[int, Stream] = field(default_factory=dict)

    def split(self, nbytes: int) -> Block:
        """Keep the first `nbytes`; the rest becomes a block of its own after this one."""
        rest = Block(self.segment, self.address + nbytes, self.nbytes - nbytes, self.large,
                     self.lane, previous=self, following=self.following, ticket=self.ticket)
        if self.following is not None:
            self.following.previous = rest
        self.following, self.nbytes = rest, nbytes
        return rest

    def absorb(self, other: Block) -> None:
        """Merge the next block into this one."""
        self.nbytes += other.nbytes
        self.ticket = max(self.ticket, other.ticket)
        self.following = other.following
        if self.following is not None:
            self.following.previous = self


class FreeList:
    """Free blocks sorted by size, then address; the best fit is found by bisection."""

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
        """The smallest block of at least `nbytes`, at the lowest address among equals; with
        `ticket` one that was freed no later than that. None if there is none."""
        for at in range(bisect_left(self._keys, (nbytes, 0)), len(self._keys)):
            block = self._blocks[self._keys[at][1]]
            if ticket is None or block.ticket <= ticket:
                return block
        return None


class Lane:
    """The pool's state of one stream: its free blocks, small and large, and the progress of the
    device. Frees are numbered; the device has passed those up to `done`. `quick` holds, by size,
    freed blocks that are not yet merged with their neighbours."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.quick: dict[int, list[Block]] = {}
        self.free = {False: FreeList(), True: FreeList()}
        self.ticket = self.done = 0
        self.pending: tuple[OrderingEvent, int] | None = None
