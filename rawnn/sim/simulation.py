"""The state of one simulated GPU, which its driver, NVRTC, cuBLASLt, cuDNN and NCCL share."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rawnn.common.words import counted
from rawnn.cuda.backend import Backend
from rawnn.sim.errors import Refused, SimulationError
from rawnn.sim.faults import Faults
from rawnn.sim.graphs import GraphData, Launcher, Node
from rawnn.sim.memory import POISON, Memory
from rawnn.sim.order import Scheduler, Task
from rawnn.sim.properties import attributes_of

T = TypeVar("T")
_QUEUE = 1024  # tasks that a launch queue holds before the host has to wait
_WITHOUT_DRIVER = {"cuInit", "cuDriverGetVersion"}
_WITHOUT_CONTEXT = {
    "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetAttribute",
    "cuDeviceTotalMem", "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease", "cuCtxSetCurrent",
}
_BY_THE_SIMULATION = ("rawnn.sim", "rawnn.cuda", "rawnn.graphs", "rawnn.lab",
                      "contextlib")


@dataclass(eq=False)
class Capture:
    """A capture into `graph`: for each participating stream, the nodes (by index) that its next
    operation depends on. `origin` is the stream on which it began. With `owns_graph` it has created
    its graph."""

    graph: GraphData
    origin: int
    tails: dict[int, tuple[int, ...]]
    invalid: bool = False
    owns_graph: bool = False


@dataclass(eq=False)
class SimStream:
    """`tail` is the last task. `opening` is what a kernel launched with the programmatic attribute
    starts after, None if the last task is no kernel."""

    handle: int
    blocking: bool
    tail: Task | None = None
    capture: Capture | None = None
    opening: list[Task] | None = None


@dataclass(eq=False)
class SimEvent:
    """`task` is the marker of the last record, `time` when it ran (ms). `captured` is its position
    if it was last recorded on a capturing stream."""

    handle: int
    task: Task | None = None
    time: float = 0.0
    captured: tuple[Capture, tuple[int, ...]] | None = None


@dataclass(frozen=True)
class Leak:
    """A live resource that should have been released: what, and where it was created."""

    kind: str
    handle: int
    site: str
    nbytes: int = 0

    def __str__(self) -> str:
        size = f" of {self.nbytes:,} bytes" if self.nbytes else ""
        return f"{self.kind}{size} {self.handle:#x} made at {self.site}"


@dataclass(eq=False)
class _Resource:
    kind: str
    value: Any
    site: str = field(default="")


class Simulation:
    """State of one simulated GPU. A Device is opened with `backend()`.

    `seed` selects the order of unordered work, `faults` the calls that fail. The GPU reports
    `compute_capability`, `memory` (bytes) and `memory_pools`, and the resulting `attributes`.
    `errors` holds the SimulationErrors raised so far: after the first, no more work runs.
    """

    def __init__(self, seed: int = 0, faults: Faults | None = None,
                 compute_capability: tuple[int, int] = (9, 0), memory: int = 16 << 30,
                 memory_pools: bool = True) -> None:
        self.memory_pools = memory_pools
        self.attributes = attributes_of(compute_capability, memory_pools)
        self.faults = faults or Faults()
        self.compute_capability = compute_capability
        self.scheduler = Scheduler(seed)
        self.memory = Memory(memory)
        self.launcher = Launcher(self.scheduler)
        self.errors: list[SimulationError] = []
        self.limits: dict[str, int] = {}
        self.initialised = False
        self.retained = 0
        self.nodes: dict[int, tuple[GraphData, int]] = {}
        self.captures: list[Capture] = []
        self.default_stream = SimStream(0, blocking=True)
        self._streams: dict[int, SimStream] = {0: self.default_stream}
        self._resources: dict[int, _Resource] = {}
        self._locked: dict[int, tuple[int, Any]] = {}  # address -> (handle, buffer)
        self._destroyed_with_context: list[Leak] = []
        self._thread = threading.local()
        self._next = 0x1000

    # -- the libraries --------------------------------------------------------------------------
    def backend(self) -> Backend:
        """The simulated libraries, all on this one GPU."""
        from rawnn.sim.cublaslt import SimCublasLt
        from rawnn.sim.cudnn import SimCudnn
        from rawnn.sim.driver import SimDriver
        from rawnn.sim.nccl import SimNccl
        from rawnn.sim.nvrtc import SimNvrtc

        driver, nvrtc = SimDriver(self), SimNvrtc(self)
        cublaslt, cudnn, nccl = SimCublasLt(self), SimCudnn(self), SimNccl(self)
        return Backend("sim", lambda: driver, lambda: nvrtc, lambda: cublaslt, lambda: cudnn,
                       lambda: nccl, lambda: b"device runtime", lambda package: True,
                       cache=False,
                       caution="the simulated device computes with NumPy: its times say nothing "
                               "of a GPU")

    @property
    def calls(self) -> list[str]:
        """Names of all calls so far, of all libraries, in order."""
        return [name for _, name in self.faults.calls]

    def enter(self, library: str, call: str) -> int:
        """Called at the start of every simulated call: its result code, 0 to continue."""
        code = self.faults.enter(library, call)
        if code and call == "cuStreamEndCapture":
            self.end_captures()  # a stream leaves capture mode even if the call fails
        if not code and library == "cuda" and call not in _WITHOUT_DRIVER:
            if not self.initialised:
                return 3  # CUDA_ERROR_NOT_INITIALIZED
            if call not in _WITHOUT_CONTEXT and not self.current:
                return 201  # CUDA_ERROR_INVALID_CONTEXT
        return code

    @property
    def current(self) -> bool:
        """Whether the calling thread has a context."""
        return self.retained > 0 and getattr(self._thread, "current", False)

    def set_current(self, current: bool) -> None:
        self._thread.current = current

    # -- handles --------------------------------------------------------------------------------
    def new_handle(self) -> int:
        self._next += 0x10
        return self._next

    def create(self, kind: str, make: Callable[[int], T]) -> tuple[int, T]:
        """A resource with a handle of its own, which `destroy` must release."""
        handle = self.new_handle()
        value = make(handle)
        self._resources[handle] = _Resource(kind, value, self.site())
        if isinstance(value, SimStream):
            self._streams[handle] = value
        return handle, value

    def find(self, handle: Any, kind: str, code: str = "CUDA_ERROR_INVALID_HANDLE") -> Any:
        """The resource; refuses a handle that is not, or no longer, of this kind."""
        resource = self._resources.get(int(handle)) if handle is not None else None
        if resource is None or resource.kind != kind:
            raise Refused(code)
        return resource.value

    def destroy(self, handle: Any, kind: str, code: str = "CUDA_ERROR_INVALID_HANDLE") -> Any:
        value = self.find(handle, kind, code)
        del self._resources[int(handle)]
        self._streams.pop(int(handle), None)
        return value

    @staticmethod
    def site() -> str:
        """file:line (function) of the nearest caller outside the driver layer."""
        frame = sys._getframe(1)
        while frame.f_back and frame.f_globals.get("__name__", "").startswith(_BY_THE_SIMULATION):
            frame = frame.f_back
        code = frame.f_code
        path = code.co_filename
        _, package, below = path.rpartition("/rawnn/")
        file = f"rawnn/{below}" if package else "/".join(path.split("/")[-3:])
        return f"{file}:{frame.f_lineno} ({code.co_name})"

    # -- streams --------------------------------------------------------------------------------
    def stream(self, handle: Any) -> SimStream:
        try:
            return self._streams[int(handle)]
        except (KeyError, TypeError):
            raise Refused("CUDA_ERROR_INVALID_HANDLE") from None

    def unless_capturing(self) -> None:
        """Refuse a call that captures forbid, and invalidate all captures."""
        if self.captures:
            for capture in self.captures:
                capture.invalid = True
            raise Refused("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED")

    def end_captures(self) -> None:
        """Every stream leaves capture mode; graphs that captures created are destroyed."""
        for stream in self._streams.values():
            stream.capture = None
        for capture in self.captures:
            if capture.owns_graph:
                self.destroy(capture.graph.number, "graph")
        self.captures.clear()

    def enqueue(self, handle: Any, node: Node, programmatic: bool = False) -> Task:
        """Put the work of `node` on a stream, or the node into the graph that the stream is
        captured into; in that case the task never runs. With `programmatic` a kernel gets a
        programmatic edge to the kernel before it; after anything else the attribute has no
        effect."""
        stream = self.stream(handle)
        if stream.capture is not None:
            self.captured(stream, node, programmatic)
            return Task(node.label, "captured", None)
        where = f"stream {stream.handle:#x}"
        task = Task(node.label, where, node.effect)
        before = self.behind(stream)
        producer, opening = stream.tail, stream.opening
        if programmatic and producer is not None and opening is not None:
            begun = Task(f"start of {node.label}", where, None, counted=False)
            others = [t for t in before if t is not producer]
            self.scheduler.add(begun, [*opening, *others])
            before = [begun, producer] if node.waits else [begun]
            opening = [begun] if node.triggers or not node.waits else before
            if not node.waits:
                task.unwaited += (producer,)
                producer.unwaited += (task,)
        else:
            opening = before
        self.append(stream, task, before)
        stream.opening = opening if node.kind == "kernel" else None
        return task

    def behind(self, stream: SimStream) -> list[Task]:
        """What the next operation on `stream` waits for: its last one, and between the legacy
        default stream and blocking streams each other's."""
        others = [stream]
        if stream.handle == 0:
            others += [s for s in self._streams.values() if s.blocking and s is not stream]
        elif stream.blocking:
            others.append(self.default_stream)
        return [s.tail for s in others if s.tail is not None]

    def append(self, stream: SimStream, task: Task, predecessors: list[Task]) -> None:
        """Make `task` the last one on the stream."""
        self.scheduler.add(task, predecessors)
        stream.tail, stream.opening = task, None
        self.limit_queue()

    def limit_queue(self) -> None:
        """A host that is far ahead of the device waits for it."""
        if self.scheduler.pending > _QUEUE:
            self.scheduler.run_down(_QUEUE // 2)

    def captured(self, stream: SimStream, node: Node, programmatic: bool = False) -> int:
        """Add `node` to the graph that `stream` is captured into, after its last operation."""
        capture = stream.capture
        assert capture is not None
        if capture.invalid:
            raise Refused("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED")
        tails = capture.tails[stream.handle]
        if programmatic and all(capture.graph.nodes[i].kind == "kernel" for i in tails):
            node.programmatic = tails
        else:
            node.dependencies = tails
        added = self.add_node(capture.graph, node)
        capture.tails[stream.handle] = (len(capture.graph.nodes) - 1,)
        return added

    def add_node(self, graph: GraphData, node: Node) -> int:
        """Add the node to the graph; returns its handle."""
        graph.nodes.append(node)
        handle = self.new_handle()
        graph.handles.append(handle)
        self.nodes[handle] = (graph, len(graph.nodes) - 1)
        return handle

    def still_runs(self) -> None:
        """Raises SimulationError once an error has stopped the GPU. Like a real one after an
        illegal access, it launches nothing and returns no memory's content from then on."""
        if self.scheduler.broken:
            raise SimulationError(f"the simulated GPU stopped at an earlier error and runs nothing "
                                  f"more; make a new one by rawnn.lab.simulated() "
                                  f"({self.scheduler.broken})")

    def wait(self, task: Task | None) -> None:
        """Run until the task is done."""
        if task is not None:
            self.scheduler.run_until(task)

    # -- page-locked host memory ----------------------------------------------------------------
    def lock_pages(self, nbytes: int) -> int:
        """Address of host memory that counts as page-locked; its content is undefined."""
        buffer = (ctypes.c_ubyte * nbytes)()
        address = ctypes.addressof(buffer)
        ctypes.memset(address, POISON, nbytes)
        handle, _ = self.create("page-locked memory", lambda handle: nbytes)
        self._locked[address] = (handle, buffer)
        return address

    def unlock_pages(self, address: int) -> None:
        if address not in self._locked:
            raise Refused("CUDA_ERROR_INVALID_VALUE")
        handle, _ = self._locked.pop(address)
        self.destroy(handle, "page-locked memory")

    def locked(self, address: int, nbytes: int) -> bool:
        """Whether the bytes are page-locked. Raises SimulationError if only some are."""
        for start, (_, buffer) in self._locked.items():
            end = start + len(buffer)
            if start < address + nbytes and address < end:
                if start <= address and address + nbytes <= end:
                    return True
                raise SimulationError(f"a copy of {nbytes:,} host bytes at {address:#x} reaches "
                                      f"past page-locked memory of {len(buffer):,} bytes")
        return False

    # -- leaks ----------------------------------------------------------------------------------
    def leaks(self) -> list[Leak]:
        """All live resources, and those that were live when the context was destroyed."""
        found = [Leak(r.kind, handle, r.site) for handle, r in self._resources.items()]
        found += [Leak("allocation", a.address, a.site, a.nbytes)
                  for a in self.memory.live.values()]
        if self.retained:
            found.append(Leak("primary context", self.retained, counted(self.retained, 'retain')))
        return self._destroyed_with_context + found

    def assert_clean(self) -> None:
        """Raise SimulationError that lists every leak."""
        leaks = self.leaks()
        if leaks:
            raise SimulationError(
                f"{counted(len(leaks), 'leak')} on the simulated GPU:\n"
                + "\n".join(f"  {leak}" for leak in leaks)
            )

    def destroy_context(self) -> None:
        """The last release of the primary context destroys all remaining resources: each is a
        leak."""
        self.scheduler.run_all()
        self.retained = 0
        self._destroyed_with_context = self.leaks()
        self._resources.clear()
        self._streams = {0: self.default_stream}
        self.default_stream.tail = self.default_stream.opening = None
        self._locked.clear()
        self.captures.clear()
        for address in list(self.memory.live):
            self.memory.free(address, "the context's end")
        self.memory.pool.shrink(0)
