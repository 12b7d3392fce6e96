"""`async`: the driver's own pool. cuMemAllocAsync and cuMemFreeAsync act in the order of a stream
and wait for nothing."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from rawnn.common.errors import DeviceError
from rawnn.cuda.allocators.protocol import Statistics
from rawnn.cuda.errors import check, check_memory
from rawnn.cuda.memory import Allocation, Memory
from rawnn.cuda.stream import OrderingEvent, Stream

KEEP_ALL = 2**64 - 1
"""Release threshold of the pool: release nothing. With the driver's default of 0 each
synchronization releases all unused memory, and the next step has to allocate it again."""


def unsupported(driver: Any, device: Any) -> str | None:
    """Why a device does not support stream-ordered allocation; None if it does."""
    context = "MEMORY_POOLS_SUPPORTED"
    result = driver.cuDeviceGetAttribute("MEMORY_POOLS_SUPPORTED", device)
    if check(driver, "cuDeviceGetAttribute", result, context):
        return None
    return "needs a GPU and driver with memory pools (CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)"


class StreamOrdered:
    """The device's default memory pool, its release threshold raised until `close`.

    `stream` is used if a request names none. `memory` counts what is allocated; its log, if set,
    gets only the requests for which the pool grew. Raises DeviceError if the device has no memory
    pools; CallFailed.
    """

    def __init__(self, driver: Any, device: Any, memory: Memory, stream: Stream) -> None:
        reason = unsupported(driver, device)
        if reason:
            raise DeviceError(f"the allocator 'async' cannot be used here: it {reason}")
        self._driver, self._memory, self._stream = driver, memory, stream
        self._out: dict[int, tuple[Allocation, Stream]] = {}
        self._users: dict[int, dict[int, Stream]] = {}
        self._events: list[OrderingEvent] = []
        self._current = self._peak = self._hits = self._misses = 0
        self._pool = self._check("cuDeviceGetDefaultMemPool", device)
        self._before = self._check("cuMemPoolGetAttribute", self._pool, "RELEASE_THRESHOLD")
        self._check("cuMemPoolSetAttribute", self._pool, "RELEASE_THRESHOLD", KEEP_ALL)
        self._reserved = self._reserved_now()
        self._closed = False

    def _check(self, call: str, *arguments: Any) -> Any:
        return check(self._driver, call, getattr(self._driver, call)(*arguments),
                     "the device's memory pool")

    def _reserved_now(self) -> int:
        return int(self._check("cuMemPoolGetAttribute", self._pool, "RESERVED_MEM_CURRENT"))

    def allocate(self, nbytes: int, purpose: str, stream: Stream | None = None) -> Allocation:
        """`nbytes` (at least 1) for later work on `stream`. Raises OutOfMemory, CallFailed."""
        nbytes, stream = max(nbytes, 1), stream or self._stream
        result = self._driver.cuMemAllocAsync(nbytes, stream.handle)
        address = check_memory(self._driver, "cuMemAllocAsync", result, nbytes, purpose)
        allocation = Allocation(address, nbytes, purpose)
        self._out[address] = allocation, stream
        self._memory.count(nbytes)
        self._current += nbytes
        self._peak = max(self._peak, self._current)
        if self._memory.log is not None:
            self._log_growth(allocation)
        return allocation

    def _log_growth(self, allocation: Allocation) -> None:
        """Log the request if the driver had to grow the pool for it."""
        reserved = self._reserved_now()
        grown, self._reserved = reserved - self._reserved, reserved
        self._misses += grown > 0
        self._hits += grown <= 0
        if grown > 0 and self._memory.log is not None:
            self._memory.log.record("cuMemAllocAsync", grown, reserved, allocation.address,
                                    f"the pool grew for {allocation.purpose}")

    def used_on(self, allocation: Allocation, stream: Stream) -> None:
        """Declare that another stream also works on the memory."""
        _, own = self._out.get(allocation.address, (None, stream))
        if own is not stream:
            self._users.setdefault(allocation.address, {})[int(stream.handle)] = stream

    def free(self, allocation: Allocation) -> None:
        """Free memory after all work enqueued on its stream and on others that use it. A second
        call has no effect."""
        found, stream = self._out.get(allocation.address, (None, self._stream))
        if found is not allocation:
            return
        for other in self._users.pop(allocation.address, {}).values():
            event = OrderingEvent(self._driver)
            self._events.append(event)
            event.record(other)
            stream.wait_for(event)
        del self._out[allocation.address]
        self._memory.count(-allocation.nbytes)
        self._current -= allocation.nbytes
        check(self._driver, "cuMemFreeAsync",
              self._driver.cuMemFreeAsync(allocation.address, stream.handle),
              f"{allocation.nbytes:,} bytes, {allocation.purpose}")
        while self._events:  # an event may be destroyed once no recording of it is pending
            self._events.pop().close()

    def statistics(self) -> Statistics:
        """Hits and misses are counted only while a log is written: telling them apart takes a call
        to the driver for each request."""
        reserved = self._reserved_now()
        free = max(reserved - self._current, 0)
        return Statistics(self._current, self._peak, reserved, self._hits, self._misses,
                          free=free, largest_free=free)

    def release_cached(self) -> int:
        """Let the driver release unused memory; returns the bytes."""
        before = self._reserved_now()
        self._stream.synchronize("giving back the memory pool")
        self._check("cuMemPoolTrimTo", self._pool, 0)
        self._reserved = self._reserved_now()
        if self._memory.log is not None and before != self._reserved:
            self._memory.log.record("cuMemPoolTrimTo", self._reserved - before, self._reserved, 0,
                                    "the pool's unused memory")
        return before - self._reserved

    def close(self) -> None:
        """Free everything, release the pool's memory and restore its threshold."""
        if self._closed:
            return
        self._closed = True
        with ExitStack() as closing:
            closing.callback(self._check, "cuMemPoolSetAttribute", self._pool,
                             "RELEASE_THRESHOLD", self._before)
            closing.callback(self.release_cached)
            while self._events:
                closing.callback(self._events.pop().close)
            for allocation, _ in list(self._out.values()):
                closing.callback(self.free, allocation)
