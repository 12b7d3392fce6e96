"""Graphs, capture and conditional nodes: what they do, and what the driver refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rawnn.cuda.device import Device
from rawnn.cuda.errors import CallFailed
from rawnn.cuda.launch import Arguments, KernelLaunch
from rawnn.cuda.stream import Event, Stream
from rawnn.graphs import Graph
from rawnn.sim import Race, Simulation, SimulationError, graphs
from rawnn.sim.codes import CODES

from .work import read, relu, sgd, vector

INVALID, NOT_SUPPORTED, CAPTURE_UNSUPPORTED, INVALIDATED = 1, 801, 900, 901


@pytest.fixture
def graph(device: Device) -> Any:
    made = Graph(device.driver, device.context)
    yield made
    made.close()


def run(device: Device, graph: Graph, launches: int = 1) -> None:
    executable = graph.instantiate("a graph")
    for _ in range(launches):
        executable.launch(device.stream)
    device.stream.synchronize()
    executable.close()


def test_every_kind_of_node(device: Device, graph: Graph) -> None:
    host, back = np.full(8, 5, np.float32), np.zeros(8, np.float32)
    z, a, b = vector(device), vector(device), vector(device)
    first = graph.add_memcpy((), "HtoD", z, host.ctypes.data, 32, "in", host)
    second = graph.add_memset((), b, 0, 32, "zero")
    third = relu(device, z, a).add_to(graph, [first], 0)
    fourth = sgd(device, b, a).add_to(graph, [second, *third], 0)
    fifth = graph.add_memcpy(fourth, "DtoD", z, b, 32, "across")
    graph.add_memcpy([fifth], "DtoH", back.ctypes.data, z, 32, "out", back)
    assert graph.size() == (6, 5)
    run(device, graph)
    assert (back == -5).all()


def test_arguments_are_copied_when_the_node_is_added(device: Device, graph: Graph) -> None:
    w, dw = vector(device, 0.0), vector(device, 1.0)
    launch = sgd(device, w, dw, lr=1.0)
    tail = launch.add_to(graph, (), 0)
    launch.arguments.set("lr", 10.0)
    launch.add_to(graph, tail, 0)
    launch.arguments.set("lr", 100.0)
    run(device, graph, launches=2)
    assert (read(device, w) == -22).all()


def test_child_graphs_and_executables_are_copies(device: Device, graph: Graph) -> None:
    w, dw = vector(device, 0.0), vector(device, 1.0)
    child = Graph(device.driver, device.context)
    tail = sgd(device, w, dw).add_to(child, (), 0)
    last = [graph.add_child((), child, "child")]
    sgd(device, w, dw).add_to(child, tail, 0)
    last = [graph.add_child(last, child, "longer child")]
    child.close()
    executable = graph.instantiate("before the last node")
    sgd(device, w, dw).add_to(graph, last, 0)
    executable.launch(device.stream)
    device.stream.synchronize()
    executable.close()
    assert (read(device, w) == -3).all()


def looping(device: Device, graph: Graph, end: int, cursor: int, w: int, dw: int) -> int:
    """A while node whose body does w -= dw; returns its handle."""
    handle = graph.conditional()
    start = graph.add_memset((), cursor, 0, 4, "cursor")
    _, body = graph.add_while([start], handle, "loop")
    tail = sgd(device, w, dw).add_to(body, (), 0)
    device.compile("elementwise/while.cu", ("advance_while",), relocatable=True)
    function = device.function("elementwise/while.cu", "advance_while")
    arguments = Arguments(function.signature,
                          {"cursor": cursor, "steps": 2, "end": end, "handle": handle})
    KernelLaunch(device.driver, device.stream, function.handle, "advance", (1, 1, 1), (1, 1, 1),
                 arguments).add_to(body, tail, 0)
    return handle


def test_while_node_goes_round_until_its_handle_is_zero(device: Device, graph: Graph) -> None:
    w, dw, cursor = vector(device, 0.0), vector(device, 1.0), vector(device, count=1)
    looping(device, graph, 7, cursor, w, dw)
    run(device, graph, launches=2)  # 4 rounds each: the handle's default is set at each launch
    assert (read(device, w) == -8).all()


@pytest.mark.parametrize(("end", "is_refused"), [(7, False), (9, True)])
def test_as_many_rounds_as_are_allowed(device: Device, graph: Graph,
                                       monkeypatch: pytest.MonkeyPatch, end: int,
                                       is_refused: bool) -> None:
    """Two steps a round: four rounds to step 7, five to step 9."""
    monkeypatch.setattr(graphs, "MOST_ITERATIONS", 4)
    w, dw, cursor = vector(device, 0.0), vector(device, 1.0), vector(device, count=1)
    looping(device, graph, end, cursor, w, dw)
    if is_refused:
        with pytest.raises(SimulationError, match="has gone round 4 times"):
            run(device, graph)
    else:
        run(device, graph)
        assert (read(device, w) == -4).all()


def test_while_node_that_never_ends(device: Device, graph: Graph,
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MOST_ITERATIONS", 20)
    w, dw = vector(device, 0.0), vector(device, 1.0)
    _, body = graph.add_while((), graph.conditional(), "loop")
    sgd(device, w, dw).add_to(body, (), 0)
    executable = graph.instantiate("endless")
    executable.launch(device.stream)
    with pytest.raises(SimulationError, match="has gone round 20 times"):
        device.stream.synchronize()


def test_rounds_of_a_loop_follow_each_other_but_its_body_needs_edges() -> None:
    for seed in range(4):
        device = Device(Simulation(seed).backend())
        graph = Graph(device.driver, device.context)
        w, dw, cursor = vector(device, 0.0), vector(device, 1.0), vector(device, count=1)
        looping(device, graph, 4, cursor, w, dw)
        body = device.driver._bodies.popitem()[1]
        body.nodes[0].effect, body.nodes[1].dependencies = sgd_reading(device, cursor, dw), ()
        graph.instantiate("unordered").launch(device.stream)
        with pytest.raises(Race, match=r"advance_while.*round 1 of while node|round 1.*advance"):
            device.stream.synchronize()


def sgd_reading(device: Device, w: int, dw: int) -> Any:
    """The effect of w -= dw on one element."""
    launch = sgd(device, w, dw, count=1)
    function, grid, block, shared = launch._geometry
    return device.driver.launch_effect(function, grid, block, shared,
                                       launch.arguments.address)[1]


# -- refusals ------------------------------------------------------------------------------------


def test_dependencies_must_be_nodes_of_the_graph_each_once(device: Device, graph: Graph) -> None:
    other, z = Graph(device.driver, device.context), vector(device, 1.0)
    foreign = other.add_memset((), z, 0, 4, "elsewhere")
    node = graph.add_memset((), z, 0, 4, "here")
    for after in ([foreign], [node, node], [12345]):
        assert device.driver.cuGraphAddMemsetNode(graph.handle, after, z, 0, 4, None)[0] == INVALID
    assert graph.size() == (1, 0)
    other.close()


def test_destroyed_graphs_are_refused(device: Device) -> None:
    driver, graph = device.driver, Graph(device.driver, device.context)
    executable = graph.instantiate("empty")
    graph.close()
    executable.close()
    stream = device.stream.handle
    assert driver.cuGraphLaunch(executable.handle, stream)[0] == INVALID
    assert driver.cuGraphUpload(executable.handle, stream)[0] == INVALID
    assert driver.cuGraphExecDestroy(executable.handle)[0] == INVALID
    assert driver.cuGraphDestroy(graph.handle)[0] == INVALID
    assert driver.cuGraphInstantiate(graph.handle, 0)[0] == INVALID
    assert driver.cuGraphAddChildGraphNode(graph.handle, [], graph.handle)[0] == INVALID


def test_conditional_handles_belong_to_one_node_of_their_graph(device: Device,
                                                               graph: Graph) -> None:
    driver, other = device.driver, Graph(device.driver, device.context)
    handle = graph.conditional()
    assert driver.cuGraphInstantiate(graph.handle, 0)[0] == INVALID  # no node has it
    assert driver.cuGraphAddConditionalNode(other.handle, [], handle, "IF", None)[0] == INVALID
    _, body = graph.add_while((), handle, "loop")
    assert driver.cuGraphAddConditionalNode(graph.handle, [], handle, "WHILE", None)[0] == INVALID
    assert driver.cuGraphDestroy(body.handle)[0] == INVALID
    assert driver.cuGraphInstantiate(body.handle, 0)[0] == INVALID
    assert driver.cuGraphAddChildGraphNode(other.handle, [], graph.handle)[0] == NOT_SUPPORTED
    other.close()


def test_bodies_may_not_copy_from_pageable_memory(device: Device, graph: Graph) -> None:
    host, z = np.zeros(1, np.float32), vector(device)
    _, body = graph.add_while((), graph.conditional(), "loop")
    body.add_memcpy((), "HtoD", z, host.ctypes.data, 4, "in the loop")
    assert device.driver.cuGraphInstantiate(graph.handle, 0)[0] == NOT_SUPPORTED


@pytest.mark.parametrize(("grid", "block", "shared"), [
    ((0, 1, 1), (1, 1, 1), 0), ((1, 1, 1), (0, 1, 1), 0), ((1, 1, 1), (1025, 1, 1), 0),
    ((1, 1, 1), (32, 33, 1), 0), ((1, 1, 1), (1, 1, 65), 0), ((2**31, 1, 1), (1, 1, 1), 0),
    ((1, 65536, 1), (1, 1, 1), 0), ((1, 1, 1), (1, 1, 1), (48 << 10) + 1),
])
def test_launches_beyond_the_limits(device: Device, graph: Graph, grid: Any, block: Any,
                                    shared: int) -> None:
    z = vector(device, 1.0)
    launch = relu(device, z, z)
    function = launch._geometry[0]
    address = launch.arguments.address
    stream = device.stream.handle
    assert device.driver.cuLaunchKernel(function, *grid, *block, shared, stream, address, 0) \
        == (INVALID,)
    assert device.driver.cuGraphAddKernelNode(graph.handle, [], function, grid, block, shared,
                                              address)[0] == INVALID


def test_shared_memory_and_launch_bounds(device: Device) -> None:
    driver = device.driver
    function = device.function("fused/linear.cu", "linear_forward<10>").handle
    assert driver.cuFuncGetAttribute("MAX_THREADS_PER_BLOCK", function) == (0, 256)
    assert driver.cuLaunchKernel(function, 1, 1, 1, 257, 1, 1, 0, 0, 0, 0) == (701,)
    assert driver.cuFuncSetAttribute(function, "MAX_DYNAMIC_SHARED_SIZE_BYTES", 228 << 10) == (1,)
    assert driver.cuFuncSetAttribute(function, "MAX_DYNAMIC_SHARED_SIZE_BYTES", 64 << 10) == (0,)
    assert driver.cuFuncGetAttribute("MAX_DYNAMIC_SHARED_SIZE_BYTES", function)[1] == 64 << 10
    assert driver.cuLaunchKernel(12345, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0) == (400,)


# -- capture -------------------------------------------------------------------------------------


def test_capture_makes_nodes_behind_the_given_ones(device: Device, graph: Graph) -> None:
    z, a, b = vector(device), vector(device), vector(device)
    start = graph.add_memset((), z, 0, 32, "zero")

    def enqueue() -> None:
        relu(device, z, a).run(0)
        relu(device, a, b).run(0)

    tail = graph.capture([start], device.stream, enqueue, "two kernels")
    assert len(tail) == 1
    assert graph.size() == (3, 2)
    relu(device, b, z).add_to(graph, tail, 0)
    run(device, graph)
    assert (read(device, z) == 0).all()


def test_nothing_captured_leaves_the_dependencies(device: Device, graph: Graph) -> None:
    start = graph.add_memset((), vector(device), 0, 32, "zero")
    assert graph.capture([start], device.stream, lambda: None, "nothing") == [start]


def test_executable_graph_captured_is_a_child(device: Device, graph: Graph) -> None:
    inner, w, dw = Graph(device.driver, device.context), vector(device, 0.0), vector(device, 1.0)
    sgd(device, w, dw).add_to(inner, (), 0)
    executable = inner.instantiate("inner")
    graph.capture((), device.stream, lambda: executable.launch(device.stream), "inner")
    inner.close()
    executable.close()
    run(device, graph)
    assert (read(device, w) == -1).all()


@pytest.mark.parametrize("call", [
    ("cuStreamSynchronize", "stream"), ("cuCtxSynchronize",), ("cuMemAlloc", 16),
    ("cuMemFree", "memory"),
])
def test_calls_that_a_capture_forbids_invalidate_it(device: Device, graph: Graph,
                                                    call: tuple[Any, ...]) -> None:
    known = {"stream": device.stream.handle, "memory": vector(device, 1.0)}
    driver, stream = device.driver, device.stream.handle
    assert driver.cuStreamBeginCaptureToGraph(stream, graph.handle, []) == (0,)
    assert driver.cuStreamBeginCaptureToGraph(stream, graph.handle, [])[0] == 401
    name, *arguments = call
    result = getattr(driver, name)(*[known.get(x, x) for x in arguments])
    assert result[0] == CAPTURE_UNSUPPORTED
    assert driver.cuMemsetD8Async(known["memory"], 0, 4, stream)[0] == INVALIDATED
    assert driver.cuStreamGetCaptureInfo(stream) == (INVALIDATED, [])
    assert driver.cuStreamEndCapture(stream)[0] == INVALIDATED
    assert driver.cuStreamEndCapture(stream)[0] == 401
    assert driver.cuStreamSynchronize(stream) == (0,)


def test_a_synchronisation_inside_capture_is_one_error(device: Device, graph: Graph) -> None:
    with pytest.raises(CallFailed, match="CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"):
        graph.capture((), device.stream, device.stream.synchronize, "a wait")
    device.stream.synchronize()


def test_events_fork_and_join_a_capture(device: Device, graph: Graph) -> None:
    driver, other = device.driver, Stream(device.driver)
    fork, join = Event(driver), Event(driver)
    z, a, b = vector(device, 1.0), vector(device), vector(device)
    side = relu(device, z, b, stream=other)

    def branches(joined: bool) -> None:
        fork.record(device.stream)
        driver.cuStreamWaitEvent(other.handle, fork.handle, 0)
        relu(device, z, a).run(0)
        side.run(0)
        join.record(other)
        if joined:
            driver.cuStreamWaitEvent(device.stream.handle, join.handle, 0)

    with pytest.raises(CallFailed, match="UNJOINED"):
        graph.capture((), device.stream, lambda: branches(False), "open end")
    assert len(graph.capture((), device.stream, lambda: branches(True), "closed")) == 2
    assert driver.cuEventSynchronize(join.handle)[0] == 907
    for thing in (fork, join, other):
        thing.close()


def test_capture_may_not_wait_for_work_outside(device: Device, graph: Graph) -> None:
    event = Event(device.driver)
    event.record(device.stream)
    driver, stream = device.driver, device.stream.handle
    driver.cuStreamBeginCaptureToGraph(stream, graph.handle, [])
    assert driver.cuStreamWaitEvent(stream, event.handle, 0)[0] == 905
    assert driver.cuStreamEndCapture(stream)[0] == INVALIDATED
    event.close()


def test_captures_do_not_merge(device: Device) -> None:
    """A stream that is captured already may not join another capture."""
    driver, others = device.driver, [Stream(device.driver) for _ in range(2)]
    event = Event(driver)
    first, second = (int(other.handle) for other in others)
    for handle in (first, second):
        assert driver.cuStreamBeginCapture(handle) == (0,)
    event.record(others[0])
    assert driver.cuStreamWaitEvent(first, event.handle, 0) == (0,)
    assert driver.cuStreamWaitEvent(second, event.handle, 0)[0] \
        == CODES["cuda"]["CUDA_ERROR_STREAM_CAPTURE_MERGE"][0]
    for handle in (first, second):
        code, graph = driver.cuStreamEndCapture(handle)
        assert code == 0
        driver.cuGraphDestroy(graph)
    for thing in (event, *others):
        thing.close()


def test_event_times(device: Device) -> None:
    start, end = Event(device.driver), Event(device.driver)
    assert device.driver.cuEventElapsedTime(start.handle, end.handle)[0] == 400
    start.record(device.stream)
    device.fill(vector(device), 0, 32, "work")
    end.record(device.stream)
    assert device.driver.cuEventElapsedTime(start.handle, end.handle)[0] == 600
    device._check("cuEventSynchronize", end.handle)
    assert end.milliseconds_since(start) > 0
    start.close()
    end.close()
