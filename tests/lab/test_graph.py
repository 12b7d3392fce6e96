"""Graphs of a user's kernels: what is recorded, in which order it runs, messages about mistakes."""

from __future__ import annotations

import gc
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import rawnn
from rawnn.common.errors import ConfigError, RawnnError
from rawnn.cuda.compiling.launch_proof import Proof
from rawnn.cuda.device import Device
from rawnn.cuda.errors import CallFailed
from rawnn.lab.arrays import check_not_recording
from rawnn.lab.nodes import Edges, Node, Span, edges_of
from rawnn.sim import Fault, Faults, Race, Simulation, register
from tests import requires

SOURCE = """
#include <cuda_device_runtime_api.h>
__global__ void add_to(float* y, const float* x, float a, int n) {
  cudaGridDependencySynchronize();
  y[threadIdx.x] += a * x[threadIdx.x];
}
__global__ void count_down(int* flag) { flag[0] -= 1; }
"""
N = 8


@pytest.fixture
def device() -> Iterator[Device]:
    register("add_to", lambda t, a: t.y.__iadd__(a["a"] * t.x), {"y": ("n",), "x": ("n",)},
             reads=("y", "x"), writes=("y",))
    register("count_down", lambda t, a: t.flag.__isub__(1), {"flag": ("1",)}, reads=("flag",),
             writes=("flag",))
    simulation = Simulation(2)
    made = Device(simulation.backend())
    yield made
    assert not simulation.errors
    made.close()


def kernels(device: Device) -> tuple[Any, Any]:
    made = (rawnn.Kernel(SOURCE, name, device=device) for name in ("add_to", "count_down"))
    add, count = made
    return add[1, N], count[1, 1]


def vector(device: Device, *values: float, dtype: Any = np.float32) -> rawnn.lab.Array:
    return rawnn.array(np.resize(np.array(values, dtype), N), dtype, device=device)


def test_each_thread_records_a_graph_of_its_own(device: Device) -> None:
    """Two threads record at the same time, each in turns with the other, and a third launches."""
    add, _ = kernels(device)
    x, y, z = vector(device, 1), vector(device, 0), vector(device, 0)
    bound = add.bind(y, x, 1.0, N)
    graphs, turn = {"a": rawnn.Graph(), "b": rawnn.Graph()}, threading.Barrier(3, timeout=20)

    def record(name: str) -> None:
        with graphs[name]:
            for _ in range(2):
                turn.wait()
                add(y, x, 2.0, N)
                bound()
        turn.wait()  # the other may end first
        turn.wait()

    threads = [threading.Thread(target=record, args=(name,)) for name in graphs]
    for thread in threads:
        thread.start()
    for _ in range(2):
        turn.wait()
        add(z, x, 1.0, N)
    turn.wait()
    add(z, x, 1.0, N)
    turn.wait()
    for thread in threads:
        thread.join(20)
    assert [len(graph.nodes) for graph in graphs.values()] == [4, 4]
    assert (z.numpy()[0], y.numpy()[0]) == (3, 0)


def test_of_graphs_within_each_other_the_innermost_gets_the_launch(device: Device) -> None:
    add, _ = kernels(device)
    x, y = vector(device, 1), vector(device, 0)
    outer, inner = rawnn.Graph(), rawnn.Graph()
    with outer:
        add(y, x, 1.0, N)
        with inner:
            add(y, x, 1.0, N)
            add(y, x, 1.0, N)
        add(y, x, 1.0, N)
    add(y, x, 7.0, N)
    assert (len(outer.nodes), len(inner.nodes), y.numpy()[0]) == (2, 2, 7)


def test_launches_become_nodes_and_what_they_touch_edges(device: Device) -> None:
    add, _ = kernels(device)
    x, y, z = vector(device, 1), vector(device, 0), vector(device, 5)
    out = np.zeros(N, np.float32)
    with rawnn.Graph() as g:
        g.fill(y, 0)
        add(y, x, 2.0, N)
        add(z, x, 1.0, N)
        last = add.bind(z, y, 10.0, N)()
        g.copy(out, z)
    assert (y.numpy() == 0).all()  # recorded, not run
    assert [(e.full, e.programmatic) for e in g.edges()] == [
        ((), ()), ((0,), ()), ((), ()), ((1, 2), ()), ((3,), ())]
    assert last.why(g.nodes[1]) == "wrote y"
    assert last.why(g.nodes[2]) == "wrote y"
    for round_ in (1, 2):
        g.launch()
        device.stream.synchronize()
        np.testing.assert_array_equal(out, 5 + 21 * round_)
    assert repr(g) == "rawnn.Graph(5 nodes, 4 edges)"
    g.close()


def test_an_update_keeps_the_arrays_that_a_node_was_told(device: Device) -> None:
    add, _ = kernels(device)
    x, y, z = (vector(device, v) for v in (1, 0, 5))
    with rawnn.Graph() as g:
        told = add(z, y, 1.0, N).touches(reads=[x], writes=[z])
        add(y, x, 1.0, N)
    kept = told.reads, told.writes
    assert [(span.address, span.nbytes) for spans in kept for span in spans] == [
        (x.address, x.nbytes), (z.address, z.nbytes)]
    assert (kept[0][0].name, kept[1][0].name) == ("array 1", "array 1")
    g.update(told, z, x, 2.0, N)
    assert (told.reads, told.writes) == kept
    g.launch()
    assert (z.numpy() == 7).all()
    g.close()


def test_an_update_changes_arguments_and_keeps_edges(device: Device) -> None:
    add, _ = kernels(device)
    x, y, other, fresh = (vector(device, v) for v in (1, 0, 100, 3))
    with rawnn.Graph() as g:
        first = add(y, x, 1.0, N)
        second = add(y, x, 1.0, N)
    g.launch()
    g.update(first, y, other, 2.0, N)
    g.launch()
    assert (y.numpy() == 203).all()
    with pytest.raises(ConfigError, match="other edges are needed, and an update keeps them"):
        g.update(second, fresh, x, 1.0, N)
    with pytest.raises(ConfigError, match="takes 4 arguments"):
        g.update(second, y)
    g.launch()
    assert (y.numpy() == 404).all()


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_a_loop_runs_as_long_as_its_flag(device: Device, rounds: int) -> None:
    add, count = kernels(device)
    x, y = vector(device, 1), vector(device, 0)
    flag = rawnn.array([rounds], np.int32, device=device)
    with rawnn.Graph() as g:
        with g.while_(flag):
            add(y, x, 1.0, N)
            count(flag)
        add(y, x, 100.0, N)
    g.check().launch()
    assert (y.numpy() == 100 + rounds).all()
    assert "subgraph cluster_n1" in g.dot()


def test_a_graph_may_begin_with_a_loop_or_a_branch(device: Device) -> None:
    add, count = kernels(device)
    x, y = vector(device, 1), vector(device, 0)
    for kind in ("while_", "if_"):
        flag = rawnn.array([1], np.int32, device=device)
        with rawnn.Graph() as g, getattr(g, kind)(flag):
            add(y, x, 1.0, N)
            count(flag)
        assert g.device is device
        g.launch()
    assert (y.numpy() == 2).all()


@pytest.mark.parametrize("flag", [0, 7])
def test_a_branch_runs_if_its_flag_is_set_within_a_loop(device: Device, flag: int) -> None:
    add, count = kernels(device)
    x, y = vector(device, 1), vector(device, 0)
    times, once = (rawnn.array([n], np.int32, device=device) for n in (2, flag))
    with rawnn.Graph() as g, g.while_(times):
        with g.if_(once):
            add(y, x, 1.0, N)
        count(times)
    g.check().launch()
    assert (y.numpy() == (2 if flag else 0)).all()


def test_a_kernel_that_waits_begins_early(device: Device) -> None:
    add, _ = kernels(device)
    early = add.using(programmatic=True)
    x, y = vector(device, 1), vector(device, 0)
    with rawnn.Graph() as g:
        g.fill(y, 0)
        early(y, x, 1.0, N)
        early(y, x, 1.0, N)
    assert [(e.full, e.programmatic) for e in g.edges()] == [((), ()), ((0,), ()), ((), (1,))]
    assert "style=dashed" in g.dot()
    g.check().launch()
    assert (y.numpy() == 2).all()


def test_edges_by_hand_and_what_is_missing_of_them(device: Device) -> None:
    add, _ = kernels(device)
    x, y = vector(device, 1), vector(device, 0)
    with rawnn.Graph(derive=False) as g:
        first = add(y, x, 1.0, N)
        second = add(y, x, 1.0, N)
    with pytest.raises(Race, match="nothing orders the two: an edge or event between add_to"):
        g.check()
    second.after(first)
    g.check().launch()
    with pytest.raises(ConfigError, match="is not ahead of it in the same block"):
        first.after(second).after(second) and g.edges()


def test_what_nodes_touch_by_hand(device: Device) -> None:
    add, _ = kernels(device)
    x, y, z = vector(device, 1), vector(device, 0), vector(device, 0)
    with rawnn.Graph() as g:
        add(y, x, 1.0, N)
        add(z, y, 1.0, N).touches(reads=[x], writes=[z])
    assert [e.full for e in g.edges()] == [(), ()]
    assert g.check() is g


def test_what_is_wrong_is_said(device: Device) -> None:
    add, _ = kernels(device)
    x, y = vector(device, 1), vector(device, 0)
    g = rawnn.Graph()
    with pytest.raises(ConfigError, match="the graph has no nodes"):
        g.launch()
    with pytest.raises(ConfigError, match="nodes are added within `with graph:`"):
        g.fill(x, 0)
    other = Device(Simulation().backend())
    with g:
        add(y, x, 1.0, N)
        for wrong, message in (
                (lambda: add(y, x, 1.0), "takes 4 arguments"),
                (lambda: g.copy(y, np.zeros(3, np.float32)), "does not fit float32"),
                (lambda: g.copy(np.zeros(3), np.zeros(3)), "two rawnn arrays, or one and"),
                (lambda: g.fill(y, 256), "a byte, 0 to 255"),
                (lambda: g.while_(x).__enter__(), "an int32 array of at least one element"),
                (lambda: g.fill(vector(other, 1), 0), "a graph is of one device"),
                (lambda: g.while_(vector(other, 1, dtype=np.int32)).__enter__(),
                 "a graph is of one device"),
                (lambda: g.launch(), "the graph is still being written")):
            with pytest.raises(ConfigError, match=message):
                wrong()
        flag = rawnn.array([1], np.int32, device=device)
        with pytest.raises(ConfigError, match="if_ has no nodes"), g.if_(flag):
            pass
    other.close()
    del g.nodes[1:]
    g.launch()
    with pytest.raises(ConfigError, match="the graph is made: record another"), g:
        pass


def test_a_failing_call_leaves_nothing_behind(device: Device) -> None:
    simulation = Simulation(faults=Faults(Fault("CUDA_ERROR_OUT_OF_MEMORY",
                                                call="cuGraphInstantiate")))
    mine = Device(simulation.backend())
    add, _ = kernels(mine)
    x, y = vector(mine, 1), vector(mine, 0)
    with rawnn.Graph() as g:
        add(y, x, 1.0, N)
    with pytest.raises(CallFailed):
        g.launch()
    g.launch()
    assert (y.numpy() == 1).all()
    g.close()
    del x, y, g
    mine.close()
    simulation.assert_clean()


def test_whichever_call_fails_nothing_is_left_behind(device: Device) -> None:
    """The first and the last of each kind of call, from recording to the end of two graphs, one of
    them with a loop. `device` registers what kernels compute."""
    def flow(opened: Device) -> None:
        with ExitStack() as closing:
            add, count = kernels(opened)
            x, y, flag = vector(opened, 1), vector(opened, 0), rawnn.array(
                [2], np.int32, device=opened)
            for loop in (False, True):
                g = rawnn.Graph()
                closing.callback(g.close)
                with g:
                    filled = g.fill(y, 0)
                    add(y, x, 1.0, N)
                    if loop:
                        with g.while_(flag):
                            count(flag)
                    g.copy(x, y)
                g.launch()
                g.update(filled, y, 1)
                g.launch()
            opened.stream.synchronize()

    whole = Simulation(faults=Faults())
    opened = Device(whole.backend())
    begin = len(whole.faults.calls)
    flow(opened)
    calls = [(index, name) for index, (_, name) in enumerate(whole.faults.calls)
             if index >= begin and not re.search("Destroy|Free|Unload", name)]
    opened.close()
    last, first = ({name: index for index, name in each} for each in (calls, calls[::-1]))
    for index in sorted({*first.values(), *last.values()}):
        failing = Simulation(faults=Faults(Fault(index=index)))
        opened = Device(failing.backend())
        with pytest.raises(RawnnError):
            flow(opened)
        opened.close()
        assert failing.leaks() == [], whole.faults.calls[index]


def test_a_closed_device_has_taken_its_graphs_along() -> None:
    """Told to destroy one of them again, the driver crashes."""
    simulation = Simulation(faults=Faults())
    device = Device(simulation.backend())
    x = vector(device, 1)
    with rawnn.Graph() as g:
        g.fill(x, 0)
    g.launch()
    device.close()
    g.close()
    assert simulation.faults.count("cuGraphExecDestroy") == 0


@pytest.mark.parametrize("failing", [False, True])
def test_the_garbage_collector_destroys_a_graph_and_reports_nothing(
        monkeypatch: pytest.MonkeyPatch, failing: bool) -> None:
    reported: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    monkeypatch.setattr(sys, "excepthook", lambda *error: reported.append(error))
    faults = Faults(*[Fault(call="cuGraphExecDestroy")] * failing)
    device = Device(Simulation(faults=faults).backend())
    x = vector(device, 1)
    with rawnn.Graph() as g:
        g.fill(x, 0)
    g.launch()
    assert faults.count("cuGraphExecDestroy") == 0
    del g
    gc.collect()
    assert faults.count("cuGraphExecDestroy") == 1
    device.close()
    assert not reported


@pytest.mark.parametrize("reads_written", [False, True])
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("begins_early", [True, False])
@pytest.mark.parametrize("reads_early", [True, False])
def test_a_kernel_that_reads_ahead_of_its_wait_overtakes_only_what_is_safe(
        reads_early: bool, begins_early: bool, ordered: bool, reads_written: bool) -> None:
    """Of three kernels in a row the last one may read `w` while the first still writes it, if the
    second began early and triggers before its own wait: then its edge has to be a full one."""
    w, x, y = (Span(name, 1024 * (i + 1), 64) for i, name in enumerate("wxy"))

    def kernel(name: str, reads: tuple[Span, ...], writes: Span, **more: Any) -> Node:
        return Node("kernel", name, reads, (writes,), lambda *_: None, **more)

    first = kernel("first", (), w)
    second = kernel("second", (w,), x, programmatic=begins_early,
                    proof=Proof(waits=True, triggers=True, ordered=ordered))
    ahead = (x if reads_written else w,) if reads_early else ()
    third = kernel("third", (w, x), y, programmatic=True, early=ahead)
    edges = edges_of([first, second, third], derive=True)
    assert edges[1] == (Edges((), (0,)) if begins_early else Edges((0,), ()))
    unsafe = reads_early and (reads_written or (begins_early and not ordered))
    assert edges[2] == (Edges((1,), ()) if unsafe else Edges((), (1,)))


def test_a_graph_for_graphviz_has_every_node_and_edge_with_its_quotes_escaped(device: Device
                                                                             ) -> None:
    add, _ = kernels(device)
    x, y, z = vector(device, 1), vector(device, 0), vector(device, 5)
    with rawnn.Graph() as g:
        g.fill(y, 0)
        add(y, x, 2.0, N)
        add(z, y, 1.0, N)
    object.__setattr__(g.nodes[1], "label", 'the "second" node')
    lines = [line.strip() for line in g.dot().splitlines()]
    assert [line for line in lines if "[label=" in line] == [
        f'n{i} [label="{node.label}"];'.replace('the "second" node', 'the \\"second\\" node')
        for i, node in enumerate(g.nodes)]
    assert [line.partition(" [")[0] for line in lines if "->" in line] == [
        f"n{i} -> n{k}" for k, edges in enumerate(g.edges()) for i in edges.full]
    g.close()


@pytest.mark.parametrize("value", [1.5, None, "a", 256])
def test_a_fill_is_a_byte(value: Any) -> None:
    array = rawnn.empty(4, device=rawnn.lab.simulated())
    with pytest.raises(ConfigError, match=r"fill takes a rawnn array and a byte"), \
            rawnn.Graph() as graph:
        graph.fill(array, value)


def test_a_flag_and_what_is_touched_are_arrays() -> None:
    array = rawnn.empty(4, device=rawnn.lab.simulated())
    with pytest.raises(ConfigError, match="the flag of while_ is an int32 array"), \
            rawnn.Graph() as graph, graph.while_(None):  # type: ignore[arg-type]
        pass
    with pytest.raises(ConfigError, match="reads is a int: give a list of arrays"), \
            rawnn.Graph() as graph:
        graph.fill(array, 0).touches(reads=3)  # type: ignore[arg-type]


def test_a_graph_is_drawn_node_by_node_with_what_each_waits_for(device: Device) -> None:
    """Grids and blocks, the direction and bytes of copies, bodies inside, and why an edge is."""
    add, count = kernels(device)
    x, y = vector(device, 1), vector(device, 0)
    times, back = rawnn.array([2], np.int32, device=device), np.zeros(N, np.float32)
    with rawnn.Graph() as g:
        g.fill(y, 7)
        g.copy(x, np.full(N, 2, np.float32))
        add(y, x, 1.0, N)
        with g.while_(times):
            count(times)
        g.copy(back, y)
    lines = [line.strip() for line in g.dot().splitlines()]
    assert lines == [
        "digraph g {", "node [shape=box, fontname=monospace];",
        'n0 [label="fill with 7, 32 bytes"];',
        'n1 [label="copy HtoD, 32 bytes"];',
        f'n2 [label="add_to (1, 1, 1) x ({N}, 1, 1)"];',
        'n0 -> n2 [tooltip="wrote array"];', 'n1 -> n2 [tooltip="wrote destination"];',
        'n3 [label="flag[0] != 0"];', 'n4 [label="while"];', 'n3 -> n4 [tooltip="read flag"];',
        'subgraph cluster_n4 { label="while";',
        'n4_0 [label="count_down (1, 1, 1) x (1, 1, 1)"];', 'n4_1 [label="flag[0] != 0"];',
        'n4_0 -> n4_1 [tooltip="wrote flag"];', "}",
        'n5 [label="copy DtoH, 32 bytes"];', 'n2 -> n5 [tooltip="wrote y"];', "}"]
    g.close()


def test_what_a_recorded_node_writes_cannot_be_read_yet(device: Device) -> None:
    """Its values would be those from before the graph. Other arrays can be read, and so can all
    in a thread that records nothing."""
    add, count = kernels(device)
    x, y, flag = vector(device, 1), vector(device, 0), rawnn.array([2], np.int32, device=device)
    found: list[Any] = []
    with rawnn.Graph() as g:
        assert y.numpy().tolist() == [0.0] * N  # nothing is recorded yet
        add(y, x, 1.0, N)
        assert x.numpy().tolist() == [1.0] * N
        with pytest.raises(ConfigError, match=r"add_to.* is recorded and has not run: read it "
                                              r"behind the block, after launch\(\)"):
            y.numpy()
        with g.while_(flag):
            count(flag)
            with pytest.raises(ConfigError, match=r"count_down.* is recorded"):
                flag.numpy()
        with rawnn.Graph(), pytest.raises(ConfigError, match=r"add_to.* is recorded"):
            y.numpy()  # of the outer graph
        part = rawnn.lab.Array.at(y.address + 8, (1,), np.float32, device)
        with pytest.raises(ConfigError, match="is recorded"):
            part.numpy()
        other = threading.Thread(target=lambda: found.append(g.check_read(y)))
        other.start()
        other.join()
    assert found == [None]
    g.launch()
    assert y.numpy().tolist() == [1.0] * N
    assert flag.numpy().tolist() == [0]


def test_nothing_that_launches_and_waits_runs_while_a_graph_is_recorded(
        device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[Any] = []
    kernel = rawnn.Kernel(SOURCE, "add_to", device=device)
    work = rawnn.lab.Work(reference=lambda y, x, a: y + a * x, grid=1, block=N)
    for name in ("check", "time"):
        with rawnn.Graph() as g, pytest.raises(ConfigError, match=f"rawnn.{name} launches kernels, "
                                                                  f"which a .with rawnn.Graph"):
            getattr(rawnn, name)(kernel, work)
        assert not g.nodes
        with rawnn.Graph() as g:  # which another thread does not
            thread = threading.Thread(target=check_not_recording, args=(name,))
            monkeypatch.setattr(threading, "excepthook", failed.append)
            thread.start()
            thread.join()
    assert not failed


def test_symbols_are_not_touched_behind_a_recorded_launch() -> None:
    """All recorded launches would use the last of the values."""
    requires.module("cuda.bindings.nvrtc")
    source = "__constant__ float factor;\n__global__ void times(float* y) { y[0] *= factor; }"
    device = rawnn.lab.simulated()
    kernel = rawnn.Kernel(source, "times", device=device)
    factor, y = kernel.symbol("factor"), vector(device, 1)
    with rawnn.Graph():
        factor[:] = 2.0
        kernel[1, 1](y)
        for touch in (lambda: factor.__setitem__(slice(None), 3.0), factor.numpy):
            with pytest.raises(ConfigError, match=r"factor.*is read or written at once, while tim"):
                touch()
    assert factor.numpy() == 2.0
    device.close()
