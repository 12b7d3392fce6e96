"""`pool`: a caching allocator, which reuses freed memory.

Sizes are rounded up to 512 bytes (with a byte to spare). Blocks below 1 MiB are cut from segments
of 2 MiB; a larger request gets a segment of its own, rounded up to 2 MiB. A request is served by
the smallest free block that fits; the rest stays a block if it is large enough. A freed block first
waits for a request of exactly its size. It is merged with its free neighbours when a request of
another size comes. A training step repeats its requests, so that most cost a look-up, not a search.

On its own stream a block is reused at once: the order of the stream puts earlier users first.
Another stream gets it only once an event shows that the device has passed its last use.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from rawnn.common.errors import OutOfMemory
from rawnn.cuda.allocators.blocks import Block, Lane
from rawnn.cuda.allocators.protocol import Statistics
from rawnn.cuda.memory import Allocation, Memory, rounded_up
from rawnn.cuda.stream import OrderingEvent, Stream

SMALL_UNIT = 512
SEGMENT = 2 << 20
LARGE = 1 << 20
"""Bytes from which a request has a segment of its own, and below which no rest is split off it."""


class Pool:
    """The caching allocator over `memory`. `stream` is used if a request names none."""

    def __init__(self, driver: Any, memory: Memory, stream: Stream) -> None:
        self._driver, self._memory, self._stream = driver, memory, stream
        self._lanes: dict[int, Lane] = {}
        self._out: dict[int, Block] = {}
        self._deferred: list[tuple[Block, list[OrderingEvent]]] = []
        self._spare: list[OrderingEvent] = []
        self._segments: dict[int, Allocation] = {}
        self._current = self._peak = 0
        self._hits = self._misses = self._splits = self._merges = self._retries = 0

    # -- allocating -------------------------------------------------------------------------------
    def allocate(self, nbytes: int, purpose: str, stream: Stream | None = None) -> Allocation:
        """At least `nbytes` for work on `stream`. Raises OutOfMemory, after everything cached was
        returned and the driver still lacks memory; CallFailed."""
        nbytes = max(nbytes, 1)
        need = rounded_up(nbytes, SMALL_UNIT)
        lane = self._lane(stream or self._stream)
        if self._deferred:
            self._reclaim()
        waiting = lane.quick.get(need)
        if waiting:
            block = waiting.pop()
            self._hits += 1
        else:
            block = self._search(lane, nbytes >= LARGE, need, purpose)
        block.out = Allocation(block.address, nbytes, purpose)
        self._out[block.address] = block
        self._current += nbytes
        self._peak = max(self._peak, self._current)
        return block.out

    def _lane(self, stream: Stream) -> Lane:
        key = int(stream.handle)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(stream)
        return lane

    def _search(self, lane: Lane, large: bool, need: int, purpose: str) -> Block:
        """A block of `need` bytes: the smallest that fits, of this stream or one that another
        stream has finished with, else a new one. What exceeds `need` is split off."""
        self._join_all()
        block = lane.free[large].best(need)
        if block is None and len(self._lanes) > 1:
            block = self._from_others(lane, large, need)
        if block is not None:
            self._hits += 1
            block.lane.free[large].remove(block)
            block.lane = lane
        else:
            self._misses += 1
            block = self._grow(lane, large, need, purpose)
        if block.nbytes - need >= (LARGE if large else SMALL_UNIT):
            self._put_back(block.split(need))
            self._splits += 1
        block.need = need
        return block

    def _grow(self, lane: Lane, large: bool, need: int, purpose: str) -> Block:
        nbytes = -(-need // SEGMENT) * SEGMENT
        what = f"pool, for {purpose}"
        try:
            segment = self._memory.allocate(nbytes, what)
        except OutOfMemory:
            if not self.release_cached():
                raise
            self._retries += 1
            segment = self._memory.allocate(nbytes, what)
        self._segments[segment.address] = segment
        return Block(segment, segment.address, nbytes, large, lane)

    def _from_others(self, lane: Lane, large: bool, need: int) -> Block | None:
        """A free block of another stream that the device has finished with."""
        for other in self._lanes.values():
            if other is lane:
                continue
            if other.pending is None:
                wanted = other.free[large].best(need)
                if wanted is None:
                    continue
                if wanted.ticket > other.done:
                    other.pending = self._record_event(other.stream), other.ticket
            if other.pending is not None and other.pending[0].reached():
                event, other.done = other.pending
                self._spare.append(event)
                other.pending = None
            found = other.free[large].best(need, other.done)
            if found is not None:
                return found
        return None

    def _record_event(self, stream: Stream) -> OrderingEvent:
        """An event recorded on `stream` now."""
        event = self._spare.pop() if self._spare else OrderingEvent(self._driver)
        try:
            event.record(stream)
        except BaseException:
            self._spare.append(event)
            raise
        return event

    # -- freeing ----------------------------------------------------------------------------------
    def used_on(self, allocation: Allocation, stream: Stream) -> None:
        """Declare that another stream also works on the memory."""
        block = self._out.get(allocation.address)
        if block is not None and block.out is allocation and stream is not block.lane.stream:
            block.users[int(stream.handle)] = stream

    def free(self, allocation: Allocation) -> None:
        """Keep the memory for later requests. A second call has no effect."""
        block = self._out.get(allocation.address)
        if block is None or block.out is not allocation:
            return
        events = self._events_of(block) if block.users else []
        del self._out[allocation.address]
        block.out = None
        self._current -= allocation.nbytes
        lane = block.lane
        lane.ticket += 1
        block.ticket = lane.ticket
        if events:
            block.users = {}
            self._deferred.append((block, events))
        else:
            lane.quick.setdefault(block.need, []).append(block)

    def _events_of(self, block: Block) -> list[OrderingEvent]:
        """Events on all other streams that use the block."""
        events: list[OrderingEvent] = []
        try:
            for stream in block.users.values():
                events.append(self._record_event(stream))
        except BaseException:
            self._spare += events
            raise
        return events

    def _reclaim(self) -> None:
        """Reclaim the blocks whose other users have finished on the device."""
        waiting = []
        for block, events in self._deferred:
            left = [event for event in events if not event.reached()]
            self._spare += [event for event in events if event not in left]
            if left:
                waiting.append((block, left))
            else:
                block.lane.quick.setdefault(block.need, []).append(block)
        self._deferred = waiting

    def _join_all(self) -> None:
        """Merge every block that waits for a request of its size, and list it with the others."""
        for lane in self._lanes.values():
            for blocks in lane.quick.values():
                while blocks:
                    self._put_back(blocks.pop())
            lane.quick = {}

    def _put_back(self, block: Block) -> None:
        """Merge a free block with its free neighbours, and list the result."""
        free = block.lane.free[block.large]
        if block.following is not None and block.following in free:
            free.remove(block.following)
            block.absorb(block.following)
            self._merges += 1
        if block.previous is not None and block.previous in free:
            free.remove(block.previous)
            block, gone = block.previous, block
            block.absorb(gone)
            self._merges += 1
        free.add(block)

    def release_cached(self) -> int:
        """Return every unused segment to the driver. Waits for blocks that other streams still use;
        cuMemFree waits for the rest. Returns the bytes."""
        for _, events in self._deferred:
            for event in events:
                event.synchronize()
        self._reclaim()
        self._join_all()
        pieces: dict[int, list[Block]] = {}
        for block in self._free_blocks():
            pieces.setdefault(block.segment.address, []).append(block)
        released = 0
        for address, blocks in pieces.items():
            segment = self._segments[address]
            if sum(block.nbytes for block in blocks) == segment.nbytes:
                for block in blocks:
                    block.lane.free[block.large].remove(block)
                del self._segments[address]
                self._memory.free(segment)
                released += segment.nbytes
        return released

    def _free_blocks(self) -> list[Block]:
        return [b for lane in self._lanes.values() for f in lane.free.values() for b in f]

    # -- statistics -------------------------------------------------------------------------------
    def statistics(self) -> Statistics:
        self._join_all()
        free = [block.nbytes for block in self._free_blocks()]
        return Statistics(
            self._current, self._peak, sum(s.nbytes for s in self._segments.values()), self._hits,
            self._misses, self._splits, self._merges, self._retries, sum(free),
            max(free, default=0),
        )

    def close(self) -> None:
        """Return everything to the driver, even memory that is still allocated."""
        events = [*self._spare, *(m for _, found in self._deferred for m in found),
                  *(lane.pending[0] for lane in self._lanes.values() if lane.pending)]
        segments = list(self._segments.values())
        self._lanes, self._out, self._segments = {}, {}, {}
        self._deferred, self._spare = [], []
        with ExitStack() as closing:
            for event in events:
                closing.callback(event.close)
            for segment in segments:
                closing.callback(self._memory.free, segment)
