"""The simulated CUDA driver: device, launches, streams and events. Memory, modules and graphs have
modules of their own.

The calls and their results are those of rawnn.cuda.driver.Driver. Work that a GPU would compute
wrongly, or would report long after the mistake, raises SimulationError as it runs; what the driver
refuses returns its code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from rawnn.cuda.driver import Dim
from rawnn.sim.codes import describe
from rawnn.sim.driver_graphs import GraphCalls, kernel_node
from rawnn.sim.driver_memory import MemoryCalls
from rawnn.sim.driver_modules import ModuleCalls
from rawnn.sim.effects import milliseconds
from rawnn.sim.errors import Refused, SimulationError
from rawnn.sim.faults import simulated_call
from rawnn.sim.order import Task
from rawnn.sim.simulation import SimEvent, SimStream
from rawnn.sim.tensormap import SimMap

_DEFAULT_STREAM, _NON_BLOCKING = 0, 1


@dataclass(frozen=True)
class LaunchConfig:
    """The configuration of a launch by cuLaunchKernelEx, without kernel and arguments."""

    grid: Dim
    block: Dim
    shared_bytes: int
    stream: Any
    cluster: Dim | None
    programmatic: bool
    cooperative: bool


class SimDriver(GraphCalls, MemoryCalls, ModuleCalls):
    """`rawnn.cuda.driver.Driver` for a simulated GPU."""

    bindings_version = 13000

    def error_text(self, code: Any) -> tuple[str, str]:
        return describe("cuda", int(code))

    # -- device ---------------------------------------------------------------------------------
    @simulated_call()
    def cuInit(self, Flags: int) -> tuple[Any, ...]:
        if Flags:
            raise Refused("CUDA_ERROR_INVALID_VALUE")
        self.simulation.initialised = True
        return (0,)

    @simulated_call(0)
    def cuDriverGetVersion(self) -> tuple[Any, int]:
        return 0, self.bindings_version

    @simulated_call(0)
    def cuDeviceGetCount(self) -> tuple[Any, int]:
        return 0, 1

    @simulated_call(None)
    def cuDeviceGet(self, ordinal: int) -> tuple[Any, Any]:
        if ordinal != 0:
            raise Refused("CUDA_ERROR_INVALID_DEVICE")
        return 0, ordinal

    @simulated_call("")
    def cuDeviceGetName(self, device: Any) -> tuple[Any, str]:
        self._device(device)
        return 0, "simulated GPU"

    @simulated_call(0)
    def cuDeviceGetAttribute(self, attribute: str, device: Any) -> tuple[Any, int]:
        self._device(device)
        if attribute not in self.simulation.attributes:
            raise SimulationError(f"the simulated GPU has no value for the attribute {attribute}")
        return 0, self.simulation.attributes[attribute]

    @simulated_call(0)
    def cuDeviceTotalMem(self, dev: Any) -> tuple[Any, int]:
        self._device(dev)
        return 0, self.simulation.memory.total

    @staticmethod
    def _device(device: Any) -> None:
        if device != 0:
            raise Refused("CUDA_ERROR_INVALID_DEVICE")

    @simulated_call(None)
    def cuDevicePrimaryCtxRetain(self, dev: Any) -> tuple[Any, Any]:
        self._device(dev)
        self.simulation.retained += 1
        return 0, 1

    @simulated_call()
    def cuDevicePrimaryCtxRelease(self, dev: Any) -> tuple[Any, ...]:
        self._device(dev)
        if not self.simulation.retained:
            raise Refused("CUDA_ERROR_INVALID_CONTEXT")
        self.simulation.retained -= 1
        if not self.simulation.retained:
            self.simulation.destroy_context()
        return (0,)

    @simulated_call()
    def cuCtxSetCurrent(self, ctx: Any) -> tuple[Any, ...]:
        if ctx and not self.simulation.retained:
            raise Refused("CUDA_ERROR_INVALID_CONTEXT")
        self.simulation.set_current(bool(ctx))
        return (0,)

    @simulated_call()
    def cuCtxSynchronize(self) -> tuple[Any, ...]:
        self.simulation.still_runs()
        self.simulation.unless_capturing()
        self.simulation.scheduler.run_all()
        self.simulation.memory.pool.shrink()
        return (0,)

    @simulated_call(0)
    def cuCtxGetLimit(self, limit: str) -> tuple[Any, int]:
        return 0, self.simulation.limits.get(limit, 0)

    @simulated_call()
    def cuCtxSetLimit(self, limit: str, value: int) -> tuple[Any, ...]:
        if value < 0:
            raise Refused("CUDA_ERROR_INVALID_VALUE")
        self.simulation.limits[limit] = value
        return (0,)

    @simulated_call()
    def cuCtxResetPersistingL2Cache(self) -> tuple[Any, ...]:
        return (0,)

    @simulated_call(b"")
    def cuTensorMapEncodeTiled(
        self, dtype: str, address: int, extents: Sequence[int], strides: Sequence[int],
        box: Sequence[int], swizzle: str, promotion: str,
    ) -> tuple[Any, bytes]:
        if self.simulation.compute_capability < (9, 0):
            raise SimulationError("tensor maps need compute capability 9.0")
        return 0, SimMap(dtype, address, tuple(extents), tuple(strides), tuple(box), swizzle,
                         promotion).encoded()

    # -- launches -------------------------------------------------------------------------------
    @simulated_call(0)
    def cuOccupancyMaxActiveBlocksPerMultiprocessor(
        self, func: Any, blockSize: int, dynamicSMemSize: int
    ) -> tuple[Any, int]:
        kernel = self.function(func)
        if not 0 < blockSize <= kernel.most_threads or dynamicSMemSize < 0:
            raise Refused("CUDA_ERROR_INVALID_VALUE")
        return 0, self.blocks_at_once(kernel, blockSize, dynamicSMemSize)

    @simulated_call(0)
    def cuOccupancyMaxActiveClusters(self, func: Any, config: Any) -> tuple[Any, int]:
        """As if multiprocessors formed groups of any size."""
        kernel = self.function(func)
        self.check_cluster(kernel, config.grid, config.cluster)
        attributes = self.simulation.attributes
        blocks = self.blocks_at_once(kernel, prod(config.block), config.shared_bytes)
        return 0, attributes["MULTIPROCESSOR_COUNT"] * blocks // prod(config.cluster or (1,))

    @simulated_call()
    def cuLaunchKernel(self, f: Any, gridDimX: int, gridDimY: int, gridDimZ: int, blockDimX: int,
                       blockDimY: int, blockDimZ: int, sharedMemBytes: int, hStream: Any,
                       kernelParams: Any, extra: Any) -> tuple[Any, ...]:
        self.simulation.still_runs()
        launch = self.launch_effect(
            f, (gridDimX, gridDimY, gridDimZ), (blockDimX, blockDimY, blockDimZ), sharedMemBytes,
            kernelParams,
        )
        launch[1].check_cluster(None)
        self.simulation.enqueue(hStream, kernel_node(*launch))
        return (0,)

    def launch_config(self, grid: Dim, block: Dim, shared_bytes: int, stream: Any,
                      cluster: Dim | None, programmatic: bool, cooperative: bool) -> LaunchConfig:
        return LaunchConfig(grid, block, shared_bytes, stream, cluster, programmatic, cooperative)

    @simulated_call()
    def cuLaunchKernelEx(self, config: Any, f: Any, kernelParams: Any,
                         extra: Any) -> tuple[Any, ...]:
        self.simulation.still_runs()
        if config.programmatic and self.simulation.compute_capability < (9, 0):
            raise Refused("CUDA_ERROR_NOT_SUPPORTED")
        launch = self.launch_effect(f, config.grid, config.block, config.shared_bytes,
                                    kernelParams, config.cluster, config.cooperative)
        launch[1].check_cluster(config.cluster)
        self.simulation.enqueue(config.stream, kernel_node(*launch), config.programmatic)
        return (0,)

    # -- streams and events ---------------------------------------------------------------------
    @simulated_call(None)
    def cuStreamCreate(self, Flags: int) -> tuple[Any, Any]:
        if Flags not in (_DEFAULT_STREAM, _NON_BLOCKING):
            raise Refused("CUDA_ERROR_INVALID_VALUE")
        return 0, self.simulation.create("stream", lambda h: SimStream(h, not Flags))[0]

    @simulated_call(0, 0)
    def cuCtxGetStreamPriorityRange(self) -> tuple[Any, int, int]:
        """(code, least priority, greatest priority) of an H200."""
        return 0, 0, -5

    @simulated_call(None)
    def cuStreamCreateWithPriority(self, flags: int, priority: int) -> tuple[Any, Any]:
        """Priorities have no effect here: every order that is allowed is equally likely."""
        if flags not in (_DEFAULT_STREAM, _NON_BLOCKING):
            raise Refused("CUDA_ERROR_INVALID_VALUE")
        return 0, self.simulation.create("stream", lambda h: SimStream(h, not flags))[0]

    @simulated_call()
    def cuStreamDestroy(self, hStream: Any) -> tuple[Any, ...]:
        """Pending work on the stream still runs."""
        if self.simulation.stream(hStream).capture is not None:
            self.simulation.unless_capturing()
        self.simulation.destroy(hStream, "stream")
        return (0,)

    @simulated_call()
    def cuStreamSynchronize(self, hStream: Any) -> tuple[Any, ...]:
        stream = self.simulation.stream(hStream)
        if stream.capture is not None:
            self.simulation.unless_capturing()
        self.simulation.wait(stream.tail)
        self.simulation.memory.pool.shrink()
        return (0,)

    @simulated_call(None)
    def cuEventCreate(self, Flags: int) -> tuple[Any, Any]:
        if Flags & ~0b111:
            raise Refused("CUDA_ERROR_INVALID_VALUE")
        return 0, self.simulation.create("event", SimEvent)[0]

    @simulated_call()
    def cuEventDestroy(self, hEvent: Any) -> tuple[Any, ...]:
        self.simulation.destroy(hEvent, "event")
        return (0,)

    @simulated_call()
    def cuEventRecord(self, hEvent: Any, hStream: Any) -> tuple[Any, ...]:
        simulation = self.simulation
        event: SimEvent = simulation.find(hEvent, "event")
        stream = simulation.stream(hStream)
        if stream.capture is not None:
            event.captured = (stream.capture, stream.capture.tails[stream.handle])
            return (0,)

        def reached(task: Task) -> None:
            event.time = milliseconds(simulation.scheduler.ran)

        event.captured = None
        event.task = Task("event record", f"stream {stream.handle:#x}", reached, counted=False)
        simulation.append(stream, event.task, simulation.behind(stream))
        return (0,)

    @simulated_call()
    def cuStreamWaitEvent(self, hStream: Any, hEvent: Any, Flags: int) -> tuple[Any, ...]:
        simulation = self.simulation
        event: SimEvent = simulation.find(hEvent, "event")
        stream = simulation.stream(hStream)
        if event.captured is not None:
            capture, tails = event.captured
            if stream.capture not in (None, capture):
                raise Refused("CUDA_ERROR_STREAM_CAPTURE_MERGE")
            before = capture.tails.get(stream.handle, ())
            stream.capture = capture
            capture.tails[stream.handle] = tuple(dict.fromkeys((*before, *tails)))
        elif stream.capture is not None:
            stream.capture.invalid = True
            raise Refused("CUDA_ERROR_STREAM_CAPTURE_ISOLATION")
        elif event.task is not None:
            wait = Task("event wait", f"stream {stream.handle:#x}", None, counted=False)
            simulation.append(stream, wait, [*simulation.behind(stream), event.task])
        return (0,)

    @simulated_call()
    def cuEventQuery(self, hEvent: Any) -> tuple[Any, ...]:
        """Each query lets time pass: one task runs."""
        event: SimEvent = self.simulation.find(hEvent, "event")
        if event.captured is not None:
            raise Refused("CUDA_ERROR_CAPTURED_EVENT")
        scheduler = self.simulation.scheduler
        if event.task is not None and not event.task.done:
            scheduler.run_down(scheduler.pending - 1)
            if not event.task.done:
                raise Refused("CUDA_ERROR_NOT_READY")
        if event.task is not None:
            self.simulation.wait(event.task)  # later work of the host comes after it
        return (0,)

    @simulated_call()
    def cuEventSynchronize(self, hEvent: Any) -> tuple[Any, ...]:
        event: SimEvent = self.simulation.find(hEvent, "event")
        if event.captured is not None:
            raise Refused("CUDA_ERROR_CAPTURED_EVENT")
        self.simulation.wait(event.task)
        return (0,)

    @simulated_call(0.0)
    def cuEventElapsedTime(self, hStart: Any, hEnd: Any) -> tuple[Any, float]:
        start: SimEvent = self.simulation.find(hStart, "event")
        end: SimEvent = self.simulation.find(hEnd, "event")
        if start.task is None or end.task is None:
            raise Refused("CUDA_ERROR_INVALID_HANDLE")
        if not (start.task.done and end.task.done):
            raise Refused("CUDA_ERROR_NOT_READY")
        return 0, end.time - start.time
