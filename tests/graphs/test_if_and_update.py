"""IF nodes, and the update of an executable graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rawnn.cuda.device import Device
from rawnn.cuda.errors import CallFailed
from rawnn.cuda.launch import Arguments, KernelLaunch
from rawnn.graphs import ExecutableGraph, Graph
from tests.sim.work import read, relu, sgd, vector


def run(device: Device, executable: ExecutableGraph) -> None:
    executable.launch(device.stream)
    device.stream.synchronize()


# -- IF nodes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("default", [0, 1])
def test_the_body_runs_once_or_not_at_all(device: Device, graph: Graph, default: int) -> None:
    w, dw = vector(device, 0.0), vector(device, 1.0)
    node, body = graph.add_if((), graph.conditional(default), "perhaps")
    sgd(device, w, dw).add_to(body, (), 0)
    sgd(device, w, dw, lr=10.0).add_to(graph, [node], 0)
    assert graph.size() == (2, 1)
    executable = graph.instantiate("if")
    for _ in range(2):
        executable.launch(device.stream)
    assert (read(device, w) == -2 * (10 + default)).all()
    executable.close()


def test_a_kernel_sets_the_condition(device: Device, graph: Graph) -> None:
    """The cursor goes 2, 4, 6 over three launches, and the body runs as long as it is below 5."""
    w, dw, cursor = vector(device, 0.0), vector(device, 1.0), vector(device, 0, count=1)
    handle = graph.conditional(default=0)
    device.compile("elementwise/while.cu", ("advance_while",), relocatable=True)
    function = device.function("elementwise/while.cu", "advance_while")
    arguments = Arguments(function.signature,
                          {"cursor": cursor, "steps": 2, "end": 5, "handle": handle})
    decide = KernelLaunch(device.driver, device.stream, function.handle, "decide", (1, 1, 1),
                          (1, 1, 1), arguments).add_to(graph, (), 0)
    _, body = graph.add_if(decide, handle, "perhaps")
    sgd(device, w, dw).add_to(body, (), 0)
    executable = graph.instantiate("if")
    for _ in range(3):
        executable.launch(device.stream)
    assert (read(device, w) == -2).all()
    executable.close()


def test_conditional_nodes_nest(device: Device, graph: Graph) -> None:
    w, dw = vector(device, 0.0), vector(device, 1.0)
    _, outer = graph.add_if((), graph.conditional(1), "outer")
    for default in (0, 1):
        _, inner = outer.add_if((), outer.conditional(default), f"inner {default}")
        sgd(device, w, dw, lr=1.0 + default).add_to(inner, (), 0)
    executable = graph.instantiate("nested")
    run(device, executable)
    assert (read(device, w) == -2).all()
    executable.close()


def test_refused_if_nodes(device: Device, graph: Graph) -> None:
    other, handle = Graph(device.driver, device.context), graph.conditional()
    with pytest.raises(CallFailed, match=r"cuGraphAddNode failed with CUDA_ERROR_INVALID_VALUE.*"
                                         r"elsewhere"):
        other.add_if((), handle, "elsewhere")
    _, body = graph.add_if((), handle, "perhaps")
    with pytest.raises(CallFailed, match="cuGraphAddNode failed with CUDA_ERROR_INVALID_VALUE"):
        graph.add_while((), handle, "the same handle")
    with pytest.raises(CallFailed, match=r"cuGraphAddChildGraphNode failed .*NOT_SUPPORTED"):
        other.add_child((), graph, "a conditional inside a child graph")
    host = np.zeros(8, np.float32)
    body.add_memcpy((), "HtoD", vector(device), host.ctypes.data, 32, "in", host)
    with pytest.raises(CallFailed, match=r"cuGraphInstantiate failed .*NOT_SUPPORTED"):
        graph.instantiate("a copy from pageable memory in a body")
    other.close()


# -- update --------------------------------------------------------------------------------------


def updated(device: Device, *build: Callable[[Graph], Any]) -> ExecutableGraph:
    """An executable graph of what the first builds, updated with what each of the others does."""
    first, *others = (Graph(device.driver, device.context) for _ in build)
    build[0](first)
    executable = first.instantiate("the steps")
    first.close()
    for graph, make in zip(others, build[1:], strict=True):
        make(graph)
        try:
            executable.update(graph)
        except CallFailed:
            executable.close()
            raise
        finally:
            graph.close()
    return executable


def test_arguments_addresses_and_sizes_are_taken_over(device: Device) -> None:
    w, v, dw = vector(device, 0.0), vector(device, 0.0), vector(device, 1.0)
    z, a = vector(device, 5.0), vector(device, 7.0)
    host = [np.full(8, value, np.float32) for value in (2, 3)]

    def build(graph: Graph, target: int, lr: float, clear: int, nbytes: int, copy: Any) -> None:
        tail = graph.add_memcpy((), "HtoD", dw, copy.ctypes.data, 32, "in", copy)
        child = Graph(device.driver, device.context)
        sgd(device, target, dw, lr=lr).add_to(child, (), 0)
        graph.add_child([tail], child, "step")
        child.close()
        graph.add_memset((), clear, 0, nbytes, "clear")

    executable = updated(device, lambda g: build(g, w, 1.0, z, 32, host[0]),
                         lambda g: build(g, v, 10.0, a, 16, host[1]))
    run(device, executable)
    assert (read(device, w) == 0).all()
    assert (read(device, v) == -30).all()
    assert (read(device, z) == 5).all()
    assert read(device, a).tolist() == [0] * 4 + [7] * 4
    executable.close()


def test_launches_made_before_keep_what_they_had(device: Device, graph: Graph) -> None:
    w, dw = vector(device, 0.0), vector(device, 1.0)
    sgd(device, w, dw).add_to(graph, (), 0)
    executable = graph.instantiate("one step")
    executable.launch(device.stream)
    faster = Graph(device.driver, device.context)
    sgd(device, w, dw, lr=10.0).add_to(faster, (), 0)
    executable.update(faster)
    faster.close()
    executable.launch(device.stream)
    assert (read(device, w) == -11).all()
    executable.close()


def test_the_executable_owns_what_both_graphs_kept(device: Device, graph: Graph) -> None:
    z, hosts = vector(device), [np.zeros(8, np.float32) for _ in range(2)]
    graph.add_memcpy((), "HtoD", z, hosts[0].ctypes.data, 32, "in", hosts[0])
    executable = graph.instantiate("copies")
    other = Graph(device.driver, device.context)
    other.add_memcpy((), "HtoD", z, hosts[1].ctypes.data, 32, "in", hosts[1])
    for _ in range(3):
        executable.update(other)
    assert [id(kept) for kept in executable.kept] == [id(host) for host in hosts]
    other.close()
    executable.close()


def test_a_body_and_the_default_of_its_handle(device: Device, graph: Graph) -> None:
    w, dw = vector(device, 0.0), vector(device, 1.0)
    _, body = graph.add_if((), graph.conditional(1), "perhaps")
    sgd(device, w, dw).add_to(body, (), 0)
    executable = graph.instantiate("if")
    executable.update(graph)  # the graph itself, unchanged
    run(device, executable)
    assert (read(device, w) == -1).all()
    sgd(device, w, dw).add_to(body, (), 0)
    with pytest.raises(CallFailed, match="UPDATE_FAILURE"):
        executable.update(graph)
    executable.close()


@pytest.mark.parametrize("other", [
    "fewer nodes", "more nodes", "an edge", "a kind", "a child's node", "a copy's direction",
    "a conditional", "a programmatic edge",
])
def test_another_topology_is_refused_and_changes_nothing(device: Device, other: str) -> None:
    w, dw, host = vector(device, 0.0), vector(device, 1.0), np.ones(8, np.float32)
    nowhere, spare = vector(device, 0.0), vector(device, 0.0)

    def build(graph: Graph, change: str = "") -> None:
        lr, target = (100.0, nowhere) if change else (1.0, w)
        kind, to, of = ("DtoH", host.ctypes.data, dw) if change == "a copy's direction" \
            else ("HtoD", dw, host.ctypes.data)
        start = graph.add_memcpy((), kind, to, of, 32, "in", host)
        first = sgd(device, target, dw, lr=lr).add_to(graph, [start], 0)
        launch = sgd(device, target, dw, lr=lr)
        if change == "a programmatic edge":
            graph.add_kernel((), *launch._geometry, launch.arguments.address, "second", first)
        elif change == "a conditional":
            graph.add_if(first, graph.conditional(), "second")
        elif change == "a kind":
            graph.add_memset(first, nowhere, 0, 32, "second")
        elif change != "fewer nodes":
            launch.add_to(graph, [] if change == "an edge" else first, 0)
        if change == "more nodes":
            launch.add_to(graph, first, 0)
        child = Graph(device.driver, device.context)
        inside = relu(device, spare, spare).add_to(child, (), 0)
        if change == "a child's node":
            child.add_memset(inside, spare, 0, 32, "more")
        graph.add_child([start], child, "child")
        child.close()

    graph = Graph(device.driver, device.context)
    build(graph)
    executable = graph.instantiate("the steps")
    graph.close()
    changed = Graph(device.driver, device.context)
    build(changed, other)
    kept = list(executable.kept)
    with pytest.raises(CallFailed, match=r"^cuGraphExecUpdate failed with "
                                         r"CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE \[910\].*the steps:"
                                         r" an update needs a graph with the same nodes"):
        executable.update(changed)
    changed.close()
    assert executable.kept == kept
    run(device, executable)
    assert (read(device, w) == -2).all()
    assert (read(device, nowhere) == 0).all()
    executable.close()


def test_other_handles_of_the_conditional_are_refused(device: Device) -> None:
    with pytest.raises(CallFailed, match="UPDATE_FAILURE"):
        updated(device, *[lambda g: g.add_if((), g.conditional(), "perhaps")] * 2)


def test_handles_that_are_no_graph_any_more(device: Device, graph: Graph) -> None:
    executable, closed = graph.instantiate("empty"), Graph(device.driver, device.context)
    closed.close()
    update = device.driver.cuGraphExecUpdate
    assert update(executable.handle, closed.handle) == (1, None)
    executable.close()
    assert update(executable.handle, graph.handle) == (1, None)
    _, body = graph.add_if((), graph.conditional(), "perhaps")
    executable = graph.instantiate("if")
    assert update(executable.handle, body.handle) == (1, None)
    graph.conditional()  # a handle that no node has
    assert update(executable.handle, graph.handle) == (1, None)
    executable.close()
