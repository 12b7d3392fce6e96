"""The simulated driver's memory calls: device memory, stream-ordered memory, page-locked host
memory, fills and copies."""

from __future__ import annotations

from typing import Any

from rawnn.sim.effects import Effects
from rawnn.sim.errors import Refused, SimulationError
from rawnn.sim.faults import simulated_call
from rawnn.sim.graphs import Node
from rawnn.sim.memory import BASE
from rawnn.sim.order import Task

_INVALID = "CUDA_ERROR_INVALID_VALUE"
_POOL = 0x20  # handle of the device's default memory pool
_HOST_FLAGS = 0b111  # PORTABLE, DEVICEMAP, WRITECOMBINED


class MemoryCalls(Effects):
    """The memory calls of `rawnn.cuda.driver.Driver`."""

    @simulated_call(0, 0)
    def cuMemGetInfo(self) -> tuple[Any, int, int]:
        memory = self.simulation.memory
        return 0, memory.total - memory.used, memory.total

    @simulated_call(0)
    def cuMemAlloc(self, nbytes: int) -> tuple[Any, int]:
        self.simulation.unless_capturing()
        return 0, self.simulation.memory.allocate(nbytes, self.simulation.site())

    @simulated_call()
    def cuMemFree(self, dptr: Any) -> tuple[Any, ...]:
        """Waits for all work on the device first, as the driver does."""
        self.simulation.unless_capturing()
        self.simulation.scheduler.run_all()
        self.simulation.memory.free(int(dptr), self.simulation.site())
        return (0,)

    # -- stream-ordered -------------------------------------------------------------------------
    @simulated_call(None)
    def cuDeviceGetDefaultMemPool(self, dev: Any) -> tuple[Any, Any]:
        if dev != 0:
            raise Refused("CUDA_ERROR_INVALID_DEVICE")
        if not self.simulation.memory_pools:
            raise Refused("CUDA_ERROR_NOT_SUPPORTED")
        return 0, _POOL

    def _pool(self, handle: Any) -> Any:
        if handle != _POOL:
            raise Refused(_INVALID)
        return self.simulation.memory.pool

    @simulated_call()
    def cuMemPoolSetAttribute(self, pool: Any, attribute: str, value: int) -> tuple[Any, ...]:
        if attribute != "RELEASE_THRESHOLD" or not 0 <= value < 1 << 64:
            raise Refused(_INVALID)
        self._pool(pool).threshold = value
        return (0,)

    @simulated_call(0)
    def cuMemPoolGetAttribute(self, pool: Any, attribute: str) -> tuple[Any, int]:
        found = self._pool(pool)
        values = {"RELEASE_THRESHOLD": found.threshold, "RESERVED_MEM_CURRENT": found.reserved,
                  "USED_MEM_CURRENT": found.used}
        if attribute not in values:
            raise SimulationError(f"the simulated pool has no value for the attribute {attribute}")
        return 0, values[attribute]

    @simulated_call()
    def cuMemPoolTrimTo(self, pool: Any, minBytesToKeep: int) -> tuple[Any, ...]:
        self._pool(pool).shrink(minBytesToKeep)
        return (0,)

    @simulated_call(0)
    def cuMemAllocAsync(self, nbytes: int, stream: Any) -> tuple[Any, int]:
        """The memory is available to later work on the stream; other streams must be ordered after
        it. In a capture it would become a node, which is not simulated."""
        if not self.simulation.memory_pools:
            raise Refused("CUDA_ERROR_NOT_SUPPORTED")
        self.simulation.stream(stream)
        self.simulation.unless_capturing()
        memory = self.simulation.memory
        address = memory.allocate(nbytes, self.simulation.site(), pooled=True)
        self.simulation.enqueue(stream, Node(
            "allocation", "cuMemAllocAsync", (), lambda task: self._access_all(task, address)))
        return 0, address

    @simulated_call()
    def cuMemFreeAsync(self, dptr: Any, hStream: Any) -> tuple[Any, ...]:
        """The memory is unavailable to later work on the stream; earlier accesses on other streams
        must be ordered before."""
        address, memory, site = int(dptr), self.simulation.memory, self.simulation.site()
        self.simulation.stream(hStream)
        self.simulation.unless_capturing()
        memory.unpool(address, site)

        def release(task: Task) -> None:
            self._access_all(task, address)
            memory.free(address, site)

        self.simulation.enqueue(hStream, Node("free", "cuMemFreeAsync", (), release))
        return (0,)

    def _access_all(self, task: Task, address: int) -> None:
        """Access all of an allocation, so that its other accesses must be ordered with this."""
        memory = self.simulation.memory
        nbytes = memory.live[address].nbytes
        memory.write(task, memory.region(address, nbytes, nbytes, 1, str(task)), "all of it")

    # -- host memory ----------------------------------------------------------------------------
    @simulated_call(0)
    def cuMemHostAlloc(self, nbytes: int, flags: int) -> tuple[Any, int]:
        if nbytes <= 0 or flags & ~_HOST_FLAGS:
            raise Refused(_INVALID)
        return 0, self.simulation.lock_pages(nbytes)

    @simulated_call()
    def cuMemFreeHost(self, p: Any) -> tuple[Any, ...]:
        """Waits for all work on the device first, as the driver does."""
        self.simulation.scheduler.run_all()
        self.simulation.unlock_pages(int(p))
        return (0,)

    # -- fills and copies -----------------------------------------------------------------------
    @simulated_call()
    def cuMemsetD8Async(self, dstDevice: Any, uc: int, N: int, hStream: Any) -> tuple[Any, ...]:
        if N:
            self.simulation.enqueue(
                hStream, Node("memset", "memset", (), self.memset_effect(int(dstDevice), uc, N)))
        return (0,)

    @simulated_call()
    def cuMemcpyHtoDAsync(self, dstDevice: Any, srcHost: Any, ByteCount: int,
                          hStream: Any) -> tuple[Any, ...]:
        """Pageable memory: the driver stages the bytes before it returns (outside a capture).
        Page-locked memory is read when the copy runs, and must not change before."""
        if ByteCount:
            locked = self.simulation.locked(int(srcHost), ByteCount)
            captured = self.simulation.stream(hStream).capture is not None
            effect = self.copy_effect("HtoD", int(dstDevice), int(srcHost), ByteCount,
                                      staged=not captured and not locked,
                                      unchanged=not captured and locked)
            self.simulation.enqueue(hStream, Node("memcpy", "copy from the host", (), effect,
                                                  fixed="HtoD", host_memory=not locked))
        return (0,)

    @simulated_call()
    def cuMemcpyDtoHAsync(self, dstHost: Any, srcDevice: Any, ByteCount: int,
                          hStream: Any) -> tuple[Any, ...]:
        """Pageable memory: returns once the copy is complete (outside a capture). Page-locked
        memory is undefined until the copy was waited for."""
        self.simulation.still_runs()
        if ByteCount:
            locked = self.simulation.locked(int(dstHost), ByteCount)
            captured = self.simulation.stream(hStream).capture is not None
            effect = self.copy_effect("DtoH", int(dstHost), int(srcDevice), ByteCount)
            task = self.simulation.enqueue(hStream, Node("memcpy", "copy to the host", (), effect,
                                                         fixed="DtoH", host_memory=not locked))
            if locked and not captured:
                self.scribble_host(int(dstHost), ByteCount)
            elif not captured:
                self.simulation.wait(task)
        return (0,)

    @simulated_call()
    def cuMemcpyDtoDAsync(self, dstDevice: Any, srcDevice: Any, ByteCount: int,
                          hStream: Any) -> tuple[Any, ...]:
        if min(int(dstDevice), int(srcDevice)) < BASE:
            raise Refused(_INVALID)
        if ByteCount:
            effect = self.copy_effect("DtoD", int(dstDevice), int(srcDevice), ByteCount)
            self.simulation.enqueue(hStream, Node("memcpy", "copy on the device", (), effect,
                                                  fixed="DtoD"))
        return (0,)
