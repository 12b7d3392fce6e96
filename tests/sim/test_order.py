from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rawnn.cuda.device import Device
from rawnn.cuda.stream import Event, Stream
from rawnn.graphs import Graph
from rawnn.sim import Race, Simulation
from rawnn.sim.order import Scheduler, Task

from .work import read, relu, vector

SEEDS = range(6)


def two_streams(seed: int, record: bool, wait: bool) -> None:
    """z -> a on one stream, a -> b on another, with or without the event between them."""
    device = Device(Simulation(seed).backend())
    z, a, b = vector(device, 3.0), vector(device), vector(device)
    other, event = Stream(device.driver), Event(device.driver)
    relu(device, z, a).run(0)
    if record:
        event.record(device.stream)
    if wait:
        device._check("cuStreamWaitEvent", other.handle, event.handle, 0)
    relu(device, a, b, stream=other).run(0)
    other.synchronize()
    device.stream.synchronize()
    assert (read(device, b) == 3).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_an_event_orders_two_streams(seed: int) -> None:
    two_streams(seed, record=True, wait=True)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("record", "wait"), [(True, False), (False, True), (False, False)])
def test_without_the_event_the_race_is_reported(seed: int, record: bool, wait: bool) -> None:
    with pytest.raises(Race) as caught:
        two_streams(seed, record, wait)
    text = str(caught.value)
    assert text.count("activate<float,float,Relu> (stream 0x") >= 2
    assert "'a'" in text
    assert "'z'" in text
    assert "nothing orders the two" in text


@pytest.mark.parametrize("ordered", [(), (0,), (1,), (0, 1)])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_write_has_to_follow_every_reader(seed: int, ordered: tuple[int, ...]) -> None:
    """Two streams read z, a third writes it behind the events of those that are `ordered`."""
    device = Device(Simulation(seed).backend())
    z, other, *outs = vector(device, 3.0), vector(device, 5.0), vector(device), vector(device)
    readers = [Stream(device.driver), Stream(device.driver)]
    for number, (stream, out) in enumerate(zip(readers, outs, strict=True)):
        relu(device, z, out, stream=stream).run(0)
        if number in ordered:
            event = Event(device.driver)
            event.record(stream)
            device._check("cuStreamWaitEvent", device.stream.handle, event.handle, 0)
    relu(device, other, z).run(0)
    if len(ordered) == 2:
        device._check("cuCtxSynchronize")
        assert (read(device, outs[0]) == 3).all()
    else:
        with pytest.raises(Race, match=r"'z'.*nothing orders the two"):
            device._check("cuCtxSynchronize")


@pytest.mark.parametrize(("begin", "meets"), [(0, True), (4, True), (7, True), (8, False)])
@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("seed", SEEDS[:2])
def test_accesses_meet_where_any_of_their_bytes_do(seed: int, reads: bool, begin: int,
                                                   meets: bool) -> None:
    """One stream writes the first 8 of 24 numbers, another reads or writes 8 from `begin` on."""
    device = Device(Simulation(seed).backend())
    source, found, both = vector(device, 3.0), vector(device), vector(device, 1.0, 24)
    other = Stream(device.driver)
    relu(device, source, both).run(0)
    part = both + 4 * begin
    (relu(device, part, found, stream=other) if reads else
     relu(device, source, part, stream=other)).run(0)
    if meets:
        with pytest.raises(Race, match="nothing orders the two"):
            device._check("cuCtxSynchronize")
    else:
        device._check("cuCtxSynchronize")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_wait_of_the_host_orders_what_follows(seed: int) -> None:
    device = Device(Simulation(seed).backend())
    z, a, b = vector(device, 3.0), vector(device), vector(device)
    other = Stream(device.driver)
    relu(device, z, a).run(0)
    device.stream.synchronize()
    relu(device, a, b, stream=other).run(0)
    other.synchronize()
    assert (read(device, b) == 3).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_blocking_streams_and_the_default_stream_wait_for_each_other(seed: int) -> None:
    device = Device(Simulation(seed).backend())
    z, a, b = vector(device, 3.0), vector(device), vector(device)
    blocking = Stream(device.driver)
    blocking.handle = device._check("cuStreamCreate", 0)
    relu(device, z, a, stream=blocking).run(0)
    device._check("cuMemcpyDtoDAsync", b, a, 32, 0)
    device._check("cuStreamSynchronize", 0)
    assert (read(device, b) == 3).all()
    graph = Graph(device.driver, device.context)
    relu(device, b, z).add_to(graph, [], 0)
    device._check("cuMemcpyDtoDAsync", b, a, 32, 0)
    executable = graph.instantiate("one kernel")
    executable.launch(blocking)
    blocking.synchronize()
    assert (read(device, z) == 3).all()
    executable.close()
    graph.close()


def diamond(device: Device, drop: tuple[int, int] | None) -> None:
    """a and b from z, then c from both: nodes 0, 1 and 2, 3 in a graph, less one edge."""
    z, a, b = vector(device, 3.0), vector(device), vector(device)
    graph = Graph(device.driver, device.context)
    nodes: list[object] = []
    for index, (launch, before) in enumerate((
        (relu(device, z, a), ()), (relu(device, z, b), ()),
        (relu(device, a, z), (0, 1)), (relu(device, b, a), (1, 2)),
    )):
        after = [nodes[i] for i in before if (i, index) != drop]
        nodes += launch.add_to(graph, after, 0)
    executable = graph.instantiate("diamond")
    for _ in range(3):
        executable.launch(device.stream)
    try:
        device.stream.synchronize()
    finally:
        executable.close()
        graph.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_edges_order_a_graphs_nodes_and_its_launches_follow_each_other(seed: int) -> None:
    device = Device(Simulation(seed).backend())
    diamond(device, None)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("edge", [(0, 2), (1, 2), (2, 3)])
def test_a_dropped_edge_is_reported_with_both_nodes(seed: int, edge: tuple[int, int]) -> None:
    device = Device(Simulation(seed).backend())
    with pytest.raises(Race, match=rf"node ({edge[0]}|{edge[1]}) of graph .* and .*"
                                   rf"node ({edge[0]}|{edge[1]}) of graph"):
        diamond(device, edge)


def test_an_edge_that_others_imply_may_go(device: Device) -> None:
    diamond(device, (1, 3))


def test_launches_of_one_graph_on_two_streams_are_serialised() -> None:
    device = Device(Simulation(1).backend())
    z, a = vector(device, 3.0), vector(device)
    graph = Graph(device.driver, device.context)
    relu(device, z, a).add_to(graph, (), 0)
    executable = graph.instantiate("one node")
    other = Stream(device.driver)
    for stream in (device.stream, other, device.stream):
        executable.launch(stream)
    device._check("cuCtxSynchronize")
    assert (read(device, a) == 3).all()


@given(st.integers(2, 14), st.floats(0, 0.6), st.integers(0, 10_000))
def test_clocks_agree_with_reachability(count: int, density: float, seed: int) -> None:
    rng = random.Random(seed)
    edges = {(i, j) for j in range(count) for i in range(j) if rng.random() < density}
    scheduler = Scheduler(seed)
    order: list[Task] = []
    tasks: list[Task] = []
    for j in range(count):
        task = Task(str(j), "test", order.append)
        tasks.append(scheduler.add(task, [tasks[i] for i in range(j) if (i, j) in edges]))
    scheduler.run_all()
    ancestors: list[set[int]] = []
    for j in range(count):
        direct = [i for i in range(j) if (i, j) in edges]
        ancestors.append(set(direct).union(*(ancestors[i] for i in direct)))
        assert all(order.index(tasks[i]) < order.index(tasks[j]) for i in direct)
    for j, later in enumerate(tasks):
        for i, earlier in enumerate(tasks):
            assert later.after(earlier.lane, earlier.index) == (i == j or i in ancestors[j])


def test_seeds_give_different_orders_of_unordered_work() -> None:
    found = set()
    for seed in range(20):
        scheduler, order = Scheduler(seed), list[str]()
        for name in "abc":
            scheduler.add(Task(name, "test", lambda task, o=order: o.append(task.label)), ())
        scheduler.run_all()
        found.add("".join(order))
    assert len(found) == 6


@pytest.mark.parametrize("way", ["query", "synchronize", "nothing"])
@pytest.mark.parametrize("seed", SEEDS)
def test_what_the_host_does_behind_an_event_that_it_has_seen_comes_after_it(seed: int,
                                                                           way: str) -> None:
    """Another stream may then write what the first one read, without an event of the driver's."""
    device = Device(Simulation(seed).backend())
    z, other, a = vector(device, 3.0), vector(device, 5.0), vector(device)
    second, event = Stream(device.driver), Event(device.driver)
    relu(device, z, a).run(0)
    event.record(device.stream)
    if way == "query":
        while device.driver.cuEventQuery(event.handle)[0]:
            pass
    elif way == "synchronize":
        device._check("cuEventSynchronize", event.handle)
    relu(device, other, z, stream=second).run(0)
    if way == "nothing":
        with pytest.raises(Race, match="nothing orders the two"):
            device._check("cuCtxSynchronize")
    else:
        device._check("cuCtxSynchronize")
        assert (read(device, a) == 3).all()
        assert (read(device, z) == 5).all()


@given(st.integers(1, 12), st.integers(0, 14), st.integers(0, 99))
def test_a_queue_is_run_down_to_as_many_as_are_asked_for(count: int, most: int, seed: int) -> None:
    scheduler, done = Scheduler(seed), []
    chain = [scheduler.add(Task("held", "", None), (), held=True)]
    for number in range(count):
        chain.append(scheduler.add(Task(str(number), "", lambda task: done.append(task.label)),
                                   chain[1:][-1:]))
    scheduler.run_down(most + 1)  # beside the one that cannot run
    assert scheduler.pending == 1 + min(count, most)
    assert done == [str(number) for number in range(max(count - most, 0))]
    scheduler.run_all()
    assert (len(done), scheduler.pending, scheduler.run_another()) == (count, 1, False)
    scheduler.release(chain[0], chain[-1])
    assert scheduler.run_another()
    assert chain[0].after(chain[-1].lane, chain[-1].index)
    assert not scheduler.pending
