"""An explicit CUDA graph: nodes are added with the nodes they wait for, then it is instantiated.

The graph owns what its nodes refer to: objects passed as `keep` live as long as the graph and all
executable graphs made from it. Kernel arguments need no owner, because the driver copies them when
the node is added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rawnn.cuda.driver import Dim
from rawnn.cuda.errors import check
from rawnn.cuda.stream import Event, Stream

Nodes = Sequence[Any]

_USE_NODE_PRIORITY = 8  # CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY


class Graph:
    """A graph under construction. Close it once it is instantiated, or add it to a parent that owns
    it (the `body` graphs of conditional nodes belong to their parent and must not be closed).
    `label` names it in errors."""

    def __init__(self, driver: Any, context: Any, label: str = "a graph", *,
                 handle: Any = None) -> None:
        self._driver, self._label = driver, label
        self._context = context
        self._owned = handle is None
        self._prioritized = False  # whether nodes other than those of bodies have priorities
        self._bodies: list[Graph] = []
        self._broken = False  # whether a failed capture may have invalidated the graph
        self.handle = handle if handle is not None else check(
            driver, "cuGraphCreate", driver.cuGraphCreate(0), label
        )
        self.kept: list[object] = []

    def add_kernel(self, after: Nodes, function: Any, grid: Dim, block: Dim, shared_bytes: int,
                   arguments: int, label: str, programmatic_after: Nodes = (),
                   cluster: Dim | None = None, cooperative: bool = False,
                   priority: int = 0) -> Any:
        """A kernel node. `arguments` is the address of the packed pointer array, `cluster` the
        shape of a thread block cluster in blocks. All blocks of a `cooperative` launch run at the
        same time. With a `priority` below 0 they get the next free multiprocessors.

        The kernel may begin before the kernel nodes `programmatic_after` end: as soon as all of
        them have called cudaTriggerProgrammaticLaunchCompletion(), or ended without. It must call
        cudaGridDependencySynchronize() (PTX: griddepcontrol.wait, from sm_90 on) before it
        touches what they read or write. (Programmatic dependent launch, CUDA C++ Programming
        Guide; edges of the type CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC.)

        Raises CallFailed if the driver refuses the node, its clusters, that many blocks at the same
        time or a programmatic edge: one from a node that is no kernel, or that is also in `after`.
        The driver may have added the node without the edges then, so the graph is unusable.
        """
        node = check(self._driver, "cuGraphAddKernelNode", self._driver.cuGraphAddKernelNode(
            self.handle, after, function, grid, block, shared_bytes, arguments), label)
        wanted: dict[str, Dim | int] = {}
        if cluster is not None:
            wanted["CLUSTER_DIMENSION"] = cluster
        if cooperative:
            wanted["COOPERATIVE"] = 1
        if priority:
            wanted["PRIORITY"] = priority
            self._prioritized = True
        for attribute, value in wanted.items():
            check(self._driver, "cuGraphKernelNodeSetAttribute",
                  self._driver.cuGraphKernelNodeSetAttribute(node, attribute, value), label)
        if programmatic_after:
            result = self._driver.cuGraphAddDependencies(self.handle, programmatic_after, node)
            check(self._driver, "cuGraphAddDependencies", result,
                  f"programmatic edges to {label}")
        return node

    def add_memset(self, after: Nodes, address: int, value: int, nbytes: int, label: str) -> Any:
        """A node that sets `nbytes` bytes to `value`."""
        return check(self._driver, "cuGraphAddMemsetNode", self._driver.cuGraphAddMemsetNode(
            self.handle, after, address, value, nbytes, self._context), label)

    def add_memcpy(self, after: Nodes, kind: str, destination: int, source: int, nbytes: int,
                   label: str, keep: object = None) -> Any:
        """A copy node; `kind` is "HtoD", "DtoH" or "DtoD"; `keep` owns the host memory."""
        self.kept.append(keep)
        return check(self._driver, "cuGraphAddMemcpyNode", self._driver.cuGraphAddMemcpyNode(
            self.handle, after, kind, destination, source, nbytes, self._context), label)

    def add_event(self, after: Nodes, event: Event, label: str) -> Any:
        """A node that records `event`, which the graph keeps alive. Two of them measure the time
        between them."""
        self.kept.append(event)
        return check(self._driver, "cuGraphAddEventRecordNode",
                     self._driver.cuGraphAddEventRecordNode(self.handle, after, event.handle),
                     label)

    def add_child(self, after: Nodes, child: Graph, label: str) -> Any:
        """A node that runs a copy of `child` in its present state."""
        self.kept.append(child.kept)
        self._prioritized |= child.has_priorities
        result = self._driver.cuGraphAddChildGraphNode(self.handle, after, child.handle)
        return check(self._driver, "cuGraphAddChildGraphNode", result, label)

    def conditional(self, default: int = 1) -> int:
        """A conditional handle, reset to `default` at each launch; kernels set its value."""
        return int(check(
            self._driver, "cuGraphConditionalHandleCreate",
            self._driver.cuGraphConditionalHandleCreate(self.handle, self._context, default),
            "this needs a driver for CUDA 12.3 or newer",
        ))

    def add_while(self, after: Nodes, handle: int, label: str) -> tuple[Any, Graph]:
        """A node that runs its body graph until the value of `handle` is 0; returns both."""
        return self._add_conditional(after, handle, "WHILE", label)

    def add_if(self, after: Nodes, handle: int, label: str) -> tuple[Any, Graph]:
        """A node that runs its body graph once if the value of `handle` is not 0; returns both.

        The value is read when the node runs: it is the default, unless a kernel of the same launch
        has called cudaGraphSetConditional.
        """
        return self._add_conditional(after, handle, "IF", label)

    def _add_conditional(self, after: Nodes, handle: int, kind: str,
                         label: str) -> tuple[Any, Graph]:
        result = self._driver.cuGraphAddConditionalNode(self.handle, after, handle, kind,
                                                        self._context)
        node, body = check(self._driver, "cuGraphAddNode", result, label)
        inner = Graph(self._driver, self._context, label, handle=body)
        self.kept.append(inner.kept)
        self._bodies.append(inner)
        return node, inner

    def capture(self, after: Nodes, stream: Stream, enqueue: Callable[[], None],
                label: str) -> list[Any]:
        """Capture what `enqueue` puts on `stream` into this graph, after the nodes `after`.

        Returns the nodes that successors must wait for. The calls of cuBLASLt and cuDNN, which
        launch kernels of their own, enter an explicit graph this way.
        """
        driver = self._driver
        check(driver, "cuStreamBeginCaptureToGraph",
              driver.cuStreamBeginCaptureToGraph(stream.handle, self.handle, after), label)
        try:
            enqueue()
            tail = check(driver, "cuStreamGetCaptureInfo",
                         driver.cuStreamGetCaptureInfo(stream.handle), label)
        except BaseException:
            self._broken = True
            driver.cuStreamEndCapture(stream.handle)
            raise
        check(driver, "cuStreamEndCapture", driver.cuStreamEndCapture(stream.handle), label)
        self._prioritized |= stream.urgent
        return list(tail)

    def capture_as_child(self, after: Nodes, stream: Stream, enqueue: Callable[[], None],
                         label: str) -> list[Any]:
        """Like `capture`, but into a new graph, which becomes a child node of this one.

        NCCL needs it, because it cannot be captured into an existing graph (2.28: "dependency
        created on uncaptured work in another stream").
        """
        driver = self._driver
        check(driver, "cuStreamBeginCapture", driver.cuStreamBeginCapture(stream.handle), label)
        try:
            enqueue()
        except BaseException:
            code, handle = driver.cuStreamEndCapture(stream.handle)
            if not code:
                driver.cuGraphDestroy(handle)
            raise
        handle = check(driver, "cuStreamEndCapture", driver.cuStreamEndCapture(stream.handle),
                       label)
        child = Graph(driver, self._context, label, handle=handle)
        child._owned, child._prioritized = True, stream.urgent
        try:
            return [self.add_child(after, child, label)]
        finally:
            child.close()

    def size(self) -> tuple[int, int]:
        """(nodes, edges) of this graph without its children, as the driver counts them."""
        nodes = check(self._driver, "cuGraphGetNodes", self._driver.cuGraphGetNodes(self.handle),
                      self._label)
        edges = check(self._driver, "cuGraphGetEdges", self._driver.cuGraphGetEdges(self.handle),
                      self._label)
        return nodes, edges

    @property
    def has_priorities(self) -> bool:
        """Whether a node has a priority: of this graph, of a child graph, or of a body, to which
        nodes may still be added. Instantiation needs a flag for the driver to respect them.
        """
        return self._prioritized or any(body.has_priorities for body in self._bodies)

    def instantiate(self, label: str) -> ExecutableGraph:
        return ExecutableGraph(self._driver, self, label)

    def close(self) -> None:
        """Destroy the graph; executable graphs made from it stay valid."""
        if self._owned:
            self._owned = False
            result = self._driver.cuGraphDestroy(self.handle)
            if not self._broken:
                check(self._driver, "cuGraphDestroy", result, self._label)


class ExecutableGraph:
    """A graph ready to launch any number of times. Owns what its nodes refer to."""

    def __init__(self, driver: Any, graph: Graph, label: str) -> None:
        self._driver = driver
        self.label = label
        self.kept = list(graph.kept)
        flags = _USE_NODE_PRIORITY if graph.has_priorities else 0
        self.handle = check(driver, "cuGraphInstantiate",
                            driver.cuGraphInstantiate(graph.handle, flags), label)
        self._launch = driver.cuGraphLaunch

    def upload(self, stream: Stream) -> None:
        """Upload the graph to the device before its first launch."""
        check(self._driver, "cuGraphUpload",
              self._driver.cuGraphUpload(self.handle, stream.handle), self.label)

    def launch(self, stream: Stream) -> None:
        result = self._launch(self.handle, stream.handle)
        if result[0]:
            check(self._driver, "cuGraphLaunch", result, self.label)

    def update(self, graph: Graph) -> None:
        """Replace the parameters of the nodes by those of `graph`: kernels with their arguments and
        geometry, addresses and sizes of copies and fills, defaults of conditional handles. Earlier
        launches are not affected; what they refer to stays alive until `close`.

        Raises CallFailed, and changes nothing, unless `graph` has the same nodes and edges, added
        in the same order, as the graph that this one was made from. The direction of a copy and the
        handle of a conditional node may not change either.
        """
        result = self._driver.cuGraphExecUpdate(self.handle, graph.handle)
        check(self._driver, "cuGraphExecUpdate", result,
              f"{self.label}: an update needs a graph with the same nodes and edges, added in the "
              f"same order")
        known = {id(thing) for thing in self.kept}
        self.kept += [thing for thing in graph.kept if id(thing) not in known]

    def close(self) -> None:
        check(self._driver, "cuGraphExecDestroy", self._driver.cuGraphExecDestroy(self.handle),
              self.label)
