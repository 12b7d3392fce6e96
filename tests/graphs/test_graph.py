"""Building graphs through the driver: each kind of node, ownership, and every failing path. (What
the simulated driver does with them: tests/sim/test_graphs.py.)"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rawnn.cuda.device import Device
from rawnn.cuda.errors import CallFailed
from rawnn.cuda.launch import KernelLaunch
from rawnn.cuda.stream import Event, Stream
from rawnn.graphs import ExecutableGraph, Graph
from rawnn.sim import Fault, Faults, Simulation
from tests.cuda.failing import each_call_fails
from tests.sim.work import read, relu, sgd, vector


def run(device: Device, executable: ExecutableGraph) -> None:
    executable.launch(device.stream)
    device.stream.synchronize()


def test_a_graph_runs_as_often_as_it_is_launched(device: Device, graph: Graph) -> None:
    w, dw = vector(device, 0.0), vector(device, 1.0)
    sgd(device, w, dw).add_to(graph, (), 0)
    executable = graph.instantiate("steps")
    executable.upload(device.stream)
    for _ in range(3):
        executable.launch(device.stream)
    assert (read(device, w) == -3).all()
    executable.close()


def test_nodes_wait_for_those_they_are_given(device: Device, graph: Graph) -> None:
    host, back = np.full(8, -3, np.float32), np.zeros(8, np.float32)
    z, a = vector(device), vector(device)
    first = graph.add_memcpy((), "HtoD", z, host.ctypes.data, 32, "in", host)
    other = graph.add_memset((), a, 0, 32, "clear")
    tail = relu(device, z, a).add_to(graph, [first, other], 0)
    graph.add_memcpy(tail, "DtoH", back.ctypes.data, a, 32, "out", back)
    assert graph.size() == (4, 3)
    executable = graph.instantiate("all")
    back[:] = 9
    run(device, executable)
    assert (back == 0).all()
    host[:] = 4  # read when the node runs, not when it was added
    run(device, executable)
    assert (back == 4).all()
    executable.close()


def test_child_graphs(device: Device, graph: Graph) -> None:
    w, dw = vector(device, 0.0), vector(device, 1.0)
    child = Graph(device.driver, device.context)
    sgd(device, w, dw).add_to(child, (), 0)
    last: list[Any] = []
    for number in range(3):
        last = [graph.add_child(last, child, f"step {number}")]
    child.close()
    assert graph.size() == (3, 2)
    executable = graph.instantiate("three")
    run(device, executable)
    assert (read(device, w) == -3).all()
    executable.close()


def test_while_nodes(device: Device, graph: Graph) -> None:
    w, dw = vector(device, 0.0), vector(device, 1.0)
    handle = graph.conditional(default=0)
    _, body = graph.add_while((), handle, "loop")
    sgd(device, w, dw).add_to(body, (), 0)
    assert graph.size() == (1, 0)
    assert body.size() == (1, 0)
    body.close()  # it belongs to its parent: nothing is destroyed
    assert body.size() == (1, 0)
    executable = graph.instantiate("never")
    run(device, executable)
    assert (read(device, w) == 0).all()
    executable.close()


def test_close_twice_is_harmless_and_executables_live_on(sim: Simulation, device: Device) -> None:
    graph = Graph(device.driver, device.context)
    w, dw = vector(device, 0.0), vector(device, 1.0)
    sgd(device, w, dw).add_to(graph, (), 0)
    executable = graph.instantiate("one")
    graph.close()
    graph.close()
    assert sim.faults.count("cuGraphDestroy") == 1
    run(device, executable)
    executable.close()
    assert (read(device, w) == -1).all()


class Owner:
    """Something that a node points at."""


@pytest.mark.parametrize("nest", ["itself", "child", "body"])
def test_what_nodes_point_at_lives_as_long_as_the_executable(device: Device, nest: str) -> None:
    graph, host, owner = Graph(device.driver, device.context), np.zeros(8, np.float32), Owner()
    target = graph
    if nest == "child":
        target = Graph(device.driver, device.context)
    elif nest == "body":
        _, target = graph.add_while((), graph.conditional(0), "loop")
    z = vector(device)
    if nest == "body":
        target.kept.append(owner)  # added behind the node, as the nodes of a body are
    else:
        target.add_memcpy((), "HtoD", z, host.ctypes.data, 32, "in", owner)
    if nest == "child":
        graph.add_child((), target, "child")
        target.close()
    executable = graph.instantiate("keeps")
    graph.close()
    alive = weakref.ref(owner)
    del owner, target, graph
    gc.collect()
    assert alive() is not None
    executable.close()
    del executable
    gc.collect()
    assert alive() is None


# -- capture -------------------------------------------------------------------------------------


def test_capture_returns_what_must_be_waited_for(device: Device, graph: Graph) -> None:
    z, a, b = vector(device, -1.0), vector(device), vector(device)
    start = graph.add_memset((), b, 0, 32, "clear")
    tail = graph.capture([start], device.stream, lambda: relu(device, z, a).run(0), "library call")
    sgd(device, b, a).add_to(graph, tail, 0)
    assert graph.size() == (3, 2)
    device.stream.synchronize()  # the stream is out of capture
    executable = graph.instantiate("captured")
    run(device, executable)
    assert (read(device, b) == 0).all()
    executable.close()


class Broken(Exception):
    """Raised by what is captured."""


@pytest.mark.parametrize("way", ["capture", "capture_as_child"])
def test_whatever_is_raised_inside_ends_the_capture(sim: Simulation, device: Device, graph: Graph,
                                                    way: str) -> None:
    def fail() -> None:
        raise Broken

    with pytest.raises(Broken):
        getattr(graph, way)((), device.stream, fail, "failing")
    assert sim.captures == []
    assert sim.faults.count("cuStreamEndCapture") == 1
    vector(device, 1.0)  # copies and waits, which a capture forbids


@pytest.mark.parametrize(("way", "call"), [
    *(("capture", call) for call in ("cuStreamBeginCaptureToGraph", "cuLaunchKernel",
                                     "cuStreamGetCaptureInfo", "cuStreamEndCapture")),
    *(("capture_as_child", call) for call in ("cuStreamBeginCapture", "cuLaunchKernel",
                                           "cuStreamEndCapture", "cuGraphAddChildGraphNode"))])
def test_each_call_of_a_capture_can_fail(way: str, call: str) -> None:
    simulation = Simulation(faults=Faults())
    device = Device(simulation.backend())
    launch = relu(device, vector(device, 1.0), vector(device))
    graph = Graph(device.driver, device.context)
    simulation.faults.add(Fault(call=call, nth=simulation.faults.count(call)))
    with pytest.raises(CallFailed, match=rf"{call} failed .*\((softmax|relu)"):
        getattr(graph, way)((), device.stream, lambda: launch.run(0), "softmax")
    assert simulation.captures == []
    device.stream.synchronize()
    graph.close()
    device.close()
    simulation.assert_clean()


def test_two_events_time_what_is_between(device: Device) -> None:
    source, destination = vector(device, 1.0), vector(device)
    graph = Graph(device.driver, device.context)
    begin, end = Event(device.driver), Event(device.driver)
    first = graph.add_event((), begin, "the begin")
    work = relu(device, source, destination).add_to(graph, [first], 0)
    graph.add_event(work, end, "the end")
    executable = graph.instantiate("timed")
    graph.close()
    for _ in range(2):
        executable.launch(device.stream)
        device.stream.synchronize()
        assert end.milliseconds_since(begin) > 0
    executable.close()
    begin.close()
    end.close()


# -- errors --------------------------------------------------------------------------------------

BUILDING: dict[str, Callable[[Device, Graph, Graph, int], Any]] = {
    "cuGraphAddKernelNode": lambda d, g, c, z: relu(d, z, z).add_to(g, (), 0),
    "cuGraphAddMemsetNode": lambda d, g, c, z: g.add_memset((), z, 0, 4, "the label"),
    "cuGraphAddMemcpyNode": lambda d, g, c, z: g.add_memcpy((), "DtoD", z, z, 4, "the label"),
    "cuGraphAddChildGraphNode": lambda d, g, c, z: g.add_child((), c, "the label"),
    "cuGraphAddEventRecordNode": lambda d, g, c, z: recorded(d, g),
    "cuGraphAddConditionalNode": lambda d, g, c, z: g.add_while((), g.conditional(), "the label"),
    "cuGraphConditionalHandleCreate": lambda d, g, c, z: g.conditional(),
    "cuGraphAddDependencies": lambda d, g, c, z: joined(d, g, z),
    "cuGraphExecUpdate": lambda d, g, c, z: using(g, lambda e: e.update(c)),
    "cuGraphInstantiate": lambda d, g, c, z: g.instantiate("the label"),
    "cuGraphGetNodes": lambda d, g, c, z: g.size(),
    "cuGraphGetEdges": lambda d, g, c, z: g.size(),
    "cuGraphUpload": lambda d, g, c, z: using(g, lambda e: e.upload(d.stream)),
    "cuGraphLaunch": lambda d, g, c, z: using(g, lambda e: e.launch(d.stream)),
}


def using(graph: Graph, action: Callable[[ExecutableGraph], None]) -> None:
    executable = graph.instantiate("the label")
    try:
        action(executable)
    finally:
        executable.close()


def recorded(device: Device, graph: Graph) -> None:
    event = Event(device.driver)
    try:
        graph.add_event((), event, "the label")
    finally:
        event.close()


def joined(device: Device, graph: Graph, z: int) -> None:
    """Two kernel nodes with a programmatic edge between them."""
    first = relu(device, z, z).add_to(graph, (), 0)
    launch = relu(device, z, z)
    graph.add_kernel((), *launch._geometry, launch.arguments.address, "the label", first)


@pytest.mark.parametrize("call", BUILDING)
def test_every_failing_call_is_named_with_what_it_was_for(call: str) -> None:
    simulation = Simulation(faults=Faults(Fault("CUDA_ERROR_OUT_OF_MEMORY", call=call)))
    device = Device(simulation.backend())
    graph, child = (Graph(device.driver, device.context) for _ in range(2))
    # The bindings name the calls that make conditional nodes "cuGraphAddNode".
    shown = "cuGraphAddNode" if call == "cuGraphAddConditionalNode" else call
    with pytest.raises(CallFailed, match=f"^{shown} failed with CUDA_ERROR_OUT_OF_MEMORY") as bad:
        BUILDING[call](device, graph, child, vector(device, 1.0))
    expected = {"cuGraphGetNodes": "", "cuGraphGetEdges": "", "cuGraphAddKernelNode": "relu",
                "cuGraphConditionalHandleCreate": "CUDA 12.3 or newer"}
    assert expected.get(call, "the label") in str(bad.value)
    for made in (child, graph):
        made.close()
    device.close()
    simulation.assert_clean()


def test_a_graph_that_cannot_be_made() -> None:
    simulation = Simulation(faults=Faults(Fault(call="cuGraphCreate")))
    device = Device(simulation.backend())
    with pytest.raises(CallFailed, match="cuGraphCreate failed"):
        Graph(device.driver, device.context)
    device.close()
    simulation.assert_clean()


@pytest.mark.parametrize("urgent", [False, True])
def test_priorities_of_nodes_count_where_some_have_one(urgent: bool) -> None:
    """CU_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY is 8; without it the driver leaves them out."""
    asked: list[int] = []

    def instantiate(handle: int, flags: int) -> tuple[int, int]:
        asked.append(flags)
        return 0, 1

    driver = SimpleNamespace(cuGraphInstantiate=instantiate, cuGraphLaunch=None)
    graph = SimpleNamespace(kept=[], handle=1, has_priorities=urgent)
    ExecutableGraph(driver, graph, "a graph")  # type: ignore[arg-type]
    assert asked == [8 if urgent else 0]


@pytest.mark.parametrize("place", ["none", "node", "captured", "captured apart", "child", "while",
                                   "if", "if in a while", "child of an if"])
def test_a_priority_of_a_node_counts_where_its_graph_is_instantiated(
        sim: Simulation, device: Device, graph: Graph, monkeypatch: pytest.MonkeyPatch,
        place: str) -> None:
    """The driver ignores priorities of nodes in a graph that is instantiated without the flag."""
    asked: list[int] = []
    instantiate = device.driver.cuGraphInstantiate

    def recorded(handle: Any, flags: int) -> Any:
        asked.append(flags)
        return instantiate(handle, flags)

    monkeypatch.setattr(device.driver, "cuGraphInstantiate", recorded, raising=False)
    ordinary = relu(device, vector(device, 1.0), vector(device))
    function = ordinary._geometry[0]
    urgent = KernelLaunch(device.driver, device.stream, function, "relu", (1, 1, 1), (256, 1, 1),
                          ordinary.arguments, priority=-5)
    ordinary.add_to(graph, (), 0)
    bodies = {kind: getattr(graph, f"add_{kind}")((), graph.conditional(0), "a body")[1]
              for kind in ("while", "if")}
    inner = bodies["while"].add_if((), bodies["while"].conditional(0), "a body within")[1]
    child = Graph(device.driver, device.context)
    if place.startswith("captured"):
        stream = Stream(device.driver, urgent=True)
        again = relu(device, vector(device, 1.0), vector(device), stream=stream)
        capture = graph.capture if place == "captured" else graph.capture_as_child
        capture((), stream, lambda: again.run(0), "a call")
        stream.close()
    elif place != "none":
        places = {"node": graph, "if in a while": inner, **bodies}
        urgent.add_to(places.get(place, child), (), 0)
    (bodies["if"] if place == "child of an if" else graph).add_child((), child, "a child")
    child.close()
    graph.instantiate("a graph").close()
    assert asked == [0 if place == "none" else 8]


def test_each_call_of_a_graph_that_fails_is_named() -> None:
    def use(simulation: Simulation) -> None:
        with ExitStack() as held:
            device = Device(simulation.backend())
            held.callback(device.close)
            w, dw = vector(device, 0.0), vector(device, 1.0)
            event = Event(device.driver)
            held.callback(event.close)
            graph = Graph(device.driver, device.context, "all kinds")
            held.callback(graph.close)
            child = Graph(device.driver, device.context, "a child")
            held.callback(child.close)
            last = graph.add_memset((), w, 0, 32, "a fill")
            last = graph.add_memcpy((last,), "DtoD", w, dw, 32, "a copy")
            last = graph.add_event((last,), event, "an event")
            sgd(device, w, dw).add_to(child, (), 0)
            last = graph.add_child((last,), child, "a child")
            _, body = graph.add_if((last,), graph.conditional(1), "perhaps")
            sgd(device, w, dw).add_to(body, (), 0)
            graph.size()
            executable = graph.instantiate("all kinds")
            held.callback(executable.close)
            executable.upload(device.stream)
            run(device, executable)
            assert (read(device, w) == -1).all()

    assert {"cuGraphDestroy", "cuGraphExecDestroy", "cuGraphLaunch", "cuGraphUpload",
            "cuGraphAddChildGraphNode"} <= set(each_call_fails(use))
