"""The simulated driver's graph calls: construction, capture, instantiation, update and launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rawnn.cuda.driver import Dim
from rawnn.sim.bindings import Binding
from rawnn.sim.effects import Effects, Geometry, milliseconds
from rawnn.sim.errors import Refused
from rawnn.sim.faults import simulated_call
from rawnn.sim.graphs import Executable, GraphData, Node, dependency_indices
from rawnn.sim.kernels import LoadedKernel
from rawnn.sim.order import Task
from rawnn.sim.simulation import Capture, Simulation

_INVALID = "CUDA_ERROR_INVALID_VALUE"
_USE_NODE_PRIORITY = 8


def kernel_node(kernel: LoadedKernel, effect: Binding, geometry: Geometry) -> Node:
    return Node("kernel", kernel.expression, (), effect, waits=kernel.waits,
                triggers=kernel.triggers, kernel=kernel, geometry=geometry,
                check_cluster=effect.check_cluster)


class GraphCalls(Effects):
    """The graph calls of `rawnn.cuda.driver.Driver`. A destroyed graph or executable graph is
    refused with CUDA_ERROR_INVALID_VALUE."""

    library = "cuda"

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self._bodies: dict[int, GraphData] = {}

    def _graph(self, handle: Any) -> GraphData:
        found: GraphData = self._bodies.get(handle) \
            or self.simulation.find(handle, "graph", _INVALID)
        return found

    def _add(self, graph: Any, dependencies: Sequence[Any], node: Node) -> int:
        data = self._graph(graph)
        node.dependencies = dependency_indices(self.simulation.nodes, data, dependencies)
        return self.simulation.add_node(data, node)

    # -- construction ---------------------------------------------------------------------------
    @simulated_call(None)
    def cuGraphCreate(self, flags: int) -> tuple[Any, Any]:
        if flags:
            raise Refused(_INVALID)
        return 0, self.simulation.create("graph", GraphData)[0]

    @simulated_call()
    def cuGraphDestroy(self, hGraph: Any) -> tuple[Any, ...]:
        """The body of a conditional node belongs to its parent: destroying it is refused."""
        if hGraph in self._bodies:
            raise Refused(_INVALID)
        graph: GraphData = self.simulation.destroy(hGraph, "graph", _INVALID)
        self._forget(graph)
        return (0,)

    def _forget(self, graph: GraphData) -> None:
        for handle in graph.handles:
            del self.simulation.nodes[handle]
        for node in graph.nodes:
            if node.conditional and node.child is not None:
                self._bodies.pop(node.child.number, None)
                self._forget(node.child)

    @simulated_call(None)
    def cuGraphAddKernelNode(
        self, graph: Any, dependencies: Sequence[Any], function: Any,
        grid: Dim, block: Dim, shared_bytes: int, parameters: int,
    ) -> tuple[Any, Any]:
        self._graph(graph)
        launch = self.launch_effect(function, grid, block, shared_bytes, parameters)
        return 0, self._add(graph, dependencies, kernel_node(*launch))

    @simulated_call()
    def cuGraphKernelNodeSetAttribute(self, node: Any, attribute: str,
                                      value: Dim | int) -> tuple[Any, ...]:
        at = self.simulation.nodes.get(node)
        if at is None:
            raise Refused(_INVALID)
        found = at[0].nodes[at[1]]
        if found.kernel is None:
            raise Refused(_INVALID)
        if attribute == "CLUSTER_DIMENSION" and isinstance(value, tuple):
            self.check_cluster(found.kernel, found.geometry.grid, value)
            found.cluster = value
        elif attribute == "COOPERATIVE" and value in (0, 1):
            if value:
                self.check_cooperative(found.kernel, found.geometry)
            found.cooperative = bool(value)
        elif attribute != "PRIORITY" or not isinstance(value, int):
            raise Refused(_INVALID)
        return (0,)

    @simulated_call(None)
    def cuGraphAddMemsetNode(
        self, graph: Any, dependencies: Sequence[Any], address: int, value: int, nbytes: int,
        context: Any,
    ) -> tuple[Any, Any]:
        if nbytes <= 0 or not 0 <= value <= 255:
            raise Refused(_INVALID)
        effect = self.memset_effect(address, value, nbytes)
        return 0, self._add(graph, dependencies, Node("memset", "memset", (), effect))

    @simulated_call(None)
    def cuGraphAddMemcpyNode(
        self, graph: Any, dependencies: Sequence[Any], kind: str, destination: int, source: int,
        nbytes: int, context: Any,
    ) -> tuple[Any, Any]:
        """Host bytes are read and written when the node runs."""
        if nbytes <= 0:
            raise Refused(_INVALID)
        effect = self.copy_effect(kind, destination, source, nbytes)
        host = {"HtoD": source, "DtoH": destination}.get(kind)
        pageable = host is not None and not self.simulation.locked(host, nbytes)
        node = Node("memcpy", f"copy {kind}", (), effect, fixed=kind, host_memory=pageable)
        return 0, self._add(graph, dependencies, node)

    @simulated_call(None)
    def cuGraphAddEventRecordNode(
        self, graph: Any, dependencies: Sequence[Any], event: Any
    ) -> tuple[Any, Any]:
        found = self.simulation.find(event, "event")

        def reached(task: Task) -> None:
            found.task, found.captured = task, None
            found.time = milliseconds(self.simulation.scheduler.ran)

        node = Node("event record", "event record", (), reached, fixed=event)
        return 0, self._add(graph, dependencies, node)

    @simulated_call(None)
    def cuGraphAddChildGraphNode(
        self, graph: Any, dependencies: Sequence[Any], child: Any
    ) -> tuple[Any, Any]:
        """A copy of `child` in its present state; one with conditional nodes is refused."""
        data = self._graph(child)
        if data.has_conditionals or data.conditionals:
            raise Refused("CUDA_ERROR_NOT_SUPPORTED")
        node = Node("child", f"child graph {data.number:#x}", (), child=data.clone())
        return 0, self._add(graph, dependencies, node)

    @simulated_call(0)
    def cuGraphConditionalHandleCreate(
        self, graph: Any, context: Any, default: int
    ) -> tuple[Any, int]:
        handle = self.simulation.new_handle()
        self._graph(graph).conditionals[handle] = default
        return 0, handle

    @simulated_call(None, None)
    def cuGraphAddConditionalNode(
        self, graph: Any, dependencies: Sequence[Any], handle: int, kind: str, context: Any
    ) -> tuple[Any, Any, Any]:
        """Refuses a handle of another graph, and one that already has a node."""
        data = self._graph(graph)
        if handle not in data.conditionals or handle in data.node_handles():
            raise Refused(_INVALID)
        body = GraphData(self.simulation.new_handle(), is_body=True)
        node = Node(kind.lower(), f"{kind.lower()} node", (), child=body, handle=handle)
        added = self._add(graph, dependencies, node)
        self._bodies[body.number] = body
        return 0, added, body.number

    @simulated_call()
    def cuGraphAddDependencies(
        self, graph: Any, producers: Sequence[Any], consumer: Any
    ) -> tuple[Any, ...]:
        """Programmatic edges. Refused are ends that are no kernel nodes, duplicate edges, and an
        edge to a node that was added before its producer."""
        data = self._graph(graph)
        *found, to = dependency_indices(self.simulation.nodes, data, [*producers, consumer])
        node = data.nodes[to]
        there = {*node.dependencies, *node.programmatic}
        if any(data.nodes[i].kind != "kernel" for i in (*found, to)) \
                or any(i in there or i > to for i in found):
            raise Refused(_INVALID)
        node.programmatic += tuple(found)
        return (0,)

    @simulated_call(0)
    def cuGraphGetNodes(self, graph: Any) -> tuple[Any, int]:
        return 0, len(self._graph(graph).nodes)

    @simulated_call(0)
    def cuGraphGetEdges(self, graph: Any) -> tuple[Any, int]:
        return 0, sum(len(node.dependencies) + len(node.programmatic)
                      for node in self._graph(graph).nodes)

    # -- capture --------------------------------------------------------------------------------
    @simulated_call()
    def cuStreamBeginCaptureToGraph(
        self, stream: Any, graph: Any, dependencies: Sequence[Any]
    ) -> tuple[Any, ...]:
        data = self._graph(graph)
        self._begin(stream, data, dependency_indices(self.simulation.nodes, data, dependencies))
        return (0,)

    @simulated_call()
    def cuStreamBeginCapture(self, stream: Any) -> tuple[Any, ...]:
        self._begin(stream, None, ())
        return (0,)

    def _begin(self, stream: Any, graph: GraphData | None, tails: tuple[int, ...]) -> None:
        simulation = self.simulation
        found = simulation.stream(stream)
        if found.handle == 0:
            raise Refused("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED")
        if found.capture is not None:
            raise Refused("CUDA_ERROR_ILLEGAL_STATE")
        data = graph or simulation.create("graph", GraphData)[1]
        found.capture = Capture(data, found.handle, {found.handle: tails}, owns_graph=graph is None)
        simulation.captures.append(found.capture)

    @simulated_call([])
    def cuStreamGetCaptureInfo(self, stream: Any) -> tuple[Any, list[Any]]:
        capture = self.simulation.stream(stream).capture
        if capture is None:
            return 0, []
        if capture.invalid:
            raise Refused("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED")
        return 0, [capture.graph.handles[i] for i in capture.tails[int(stream)]]

    @simulated_call(None)
    def cuStreamEndCapture(self, hStream: Any) -> tuple[Any, Any]:
        """The stream leaves capture mode, whatever the result."""
        simulation = self.simulation
        stream = simulation.stream(hStream)
        capture = stream.capture
        if capture is None:
            raise Refused("CUDA_ERROR_ILLEGAL_STATE")
        if capture.origin != stream.handle:
            raise Refused("CUDA_ERROR_STREAM_CAPTURE_UNMATCHED")
        simulation.captures.remove(capture)
        for handle in capture.tails:
            simulation.stream(handle).capture = None
        if capture.invalid:
            if capture.owns_graph:
                self.cuGraphDestroy(capture.graph.number)
            raise Refused("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED")
        joined = capture.graph.reachable(capture.tails[stream.handle])
        if any(not set(tails) <= joined for tails in capture.tails.values()):
            raise Refused("CUDA_ERROR_STREAM_CAPTURE_UNJOINED")
        return 0, capture.graph.number

    # -- execution ------------------------------------------------------------------------------
    @simulated_call(None)
    def cuGraphInstantiate(self, hGraph: Any, flags: int) -> tuple[Any, Any]:
        graph = self._graph(hGraph)
        if flags not in (0, _USE_NODE_PRIORITY) or graph.is_body:
            raise Refused(_INVALID)
        graph.check_instantiable()
        copy = graph.clone()
        return 0, self.simulation.create(
            "executable graph",
            lambda handle: Executable(copy, defaults=copy.all_conditionals()),
        )[0]

    @simulated_call(None)
    def cuGraphExecUpdate(self, hGraphExec: Any, hGraph: Any) -> tuple[Any, Any]:
        """Later launches are of `hGraph` in its present state; earlier ones are not affected."""
        executable: Executable = self.simulation.find(hGraphExec, "executable graph", _INVALID)
        graph = self._graph(hGraph)
        if graph.is_body:
            raise Refused(_INVALID)
        graph.check_instantiable()
        if not executable.graph.same_topology(graph):
            raise Refused("CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE")
        executable.graph = graph.clone()
        executable.defaults = executable.graph.all_conditionals()
        return 0, None

    @simulated_call()
    def cuGraphUpload(self, hGraphExec: Any, hStream: Any) -> tuple[Any, ...]:
        self.simulation.find(hGraphExec, "executable graph", _INVALID)
        self.simulation.stream(hStream)
        return (0,)

    @simulated_call()
    def cuGraphLaunch(self, hGraphExec: Any, hStream: Any) -> tuple[Any, ...]:
        """Runs after all work on the stream and after the graph's previous launch; in a capture it
        becomes a child graph."""
        simulation = self.simulation
        simulation.still_runs()
        executable: Executable = simulation.find(hGraphExec, "executable graph", _INVALID)
        stream = simulation.stream(hStream)
        graph = executable.graph
        label = f"graph {graph.number:#x}"
        if stream.capture is not None:
            if graph.has_conditionals:
                raise Refused("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED")
            simulation.captured(stream, Node("child", label, (), child=graph.clone()))
            return (0,)
        end = simulation.launcher.launch(
            executable, label, f"stream {stream.handle:#x}", simulation.behind(stream)
        )
        stream.tail, stream.opening = end, None
        simulation.limit_queue()
        return (0,)

    @simulated_call()
    def cuGraphExecDestroy(self, hGraphExec: Any) -> tuple[Any, ...]:
        """Pending launches still run."""
        self.simulation.destroy(hGraphExec, "executable graph", _INVALID)
        return (0,)
