"""Programmatic edges between kernel nodes: what they order, and what they do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from rawnn.cuda.compiling.signature import parse_kernels
from rawnn.cuda.device import Device
from rawnn.cuda.errors import CallFailed
from rawnn.cuda.launch import Arguments
from rawnn.graphs import Graph
from rawnn.sim import Race, Simulation
from tests.sim.work import plus_one, read, register_plus_one, vector

SEEDS = range(6)
WAIT = 'asm volatile("griddepcontrol.wait;" ::: "memory");'
TRIGGER = "cudaTriggerProgrammaticLaunchCompletion();"
KERNELS = {"plain": "", "waiting": WAIT, "triggering": TRIGGER, "both": TRIGGER + WAIT}
SOURCE = plus_one(KERNELS)


@pytest.fixture(autouse=True)
def _references(own_meanings: None) -> None:
    register_plus_one(KERNELS)


class Line:
    """A graph of kernels y = x + 1 on a simulated GPU, run in the order that `seed` picks."""

    def __init__(self, seed: int) -> None:
        self.simulation = Simulation(seed)
        self.device = Device(self.simulation.backend())
        self.device.load(SOURCE, "edges.cu", parse_kernels(SOURCE), tuple(KERNELS))
        self.graph = Graph(self.device.driver, self.device.context)

    def add(self, name: str, x: int, y: int, after: Sequence[Any] = (),
            programmatic_after: Sequence[Any] = ()) -> Any:
        function = self.device.function("edges.cu", name)
        arguments = Arguments(function.signature, {"x": x, "y": y, "n": 8})
        return self.graph.add_kernel(after, function.handle, (1, 1, 1), (32, 1, 1), 0,
                                     arguments.address, name, programmatic_after)

    def run(self, launches: int = 3) -> None:
        executable = self.graph.instantiate("a line")
        for _ in range(launches):
            executable.launch(self.device.stream)
        self.device.stream.synchronize()
        executable.close()
        self.graph.close()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("producer", KERNELS)
def test_a_consumer_that_waits_sees_what_its_producer_wrote(producer: str, seed: int) -> None:
    line = Line(seed)
    x, y, z = vector(line.device, 1.0), vector(line.device), vector(line.device)
    first = line.add(producer, x, y)
    line.add("waiting", y, z, programmatic_after=[first])
    assert line.graph.size() == (2, 1)
    line.run()
    assert (read(line.device, z) == 3).all()
    line.device.close()
    line.simulation.assert_clean()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("producer", KERNELS)
def test_without_the_wait_the_race_names_it(producer: str, seed: int) -> None:
    line = Line(seed)
    x, y, z = vector(line.device, 1.0), vector(line.device), vector(line.device)
    first = line.add(producer, x, y)
    line.add("plain", y, z, programmatic_after=[first])
    with pytest.raises(Race, match=r"race: .*the programmatic edge between them orders nothing.*"
                                   r"cudaGridDependencySynchronize\(\) is missing"):
        line.run()


@pytest.mark.parametrize("seed", SEEDS)
def test_kernels_that_share_nothing_need_no_wait(seed: int) -> None:
    line = Line(seed)
    x, y, z = vector(line.device, 1.0), vector(line.device), vector(line.device)
    first = line.add("triggering", x, y)
    line.add("plain", x, z, programmatic_after=[first])
    line.run()
    assert (read(line.device, y) == 2).all()
    assert (read(line.device, z) == 2).all()


def three(seed: int, names: tuple[str, str, str], last_is_full: bool) -> None:
    """a writes y, b writes z from x behind a programmatic edge, c reads y behind b."""
    line = Line(seed)
    x, y, z, end = vector(line.device, 1.0), *(vector(line.device) for _ in range(3))
    a = line.add(names[0], x, y)
    b = line.add(names[1], x, z, programmatic_after=[a])
    line.add(names[2], y, end, *(([b],) if last_is_full else ((), [b])))
    line.run()
    assert (read(line.device, end) == 3).all()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("names", "last_is_full"), [
    (("plain", "waiting", "plain"), True), (("triggering", "both", "plain"), True),
    (("plain", "waiting", "waiting"), False), (("plain", "both", "waiting"), False),
    (("plain", "waiting", "plain"), False),  # b opens its edge at its end, behind its wait
])
def test_edges_are_transitive_where_the_consumer_between_waits(
    seed: int, names: tuple[str, str, str], last_is_full: bool
) -> None:
    three(seed, names, last_is_full)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("names", "last_is_full"), [
    (("plain", "plain", "plain"), True), (("plain", "triggering", "waiting"), False),
    (("plain", "both", "plain"), False),  # b triggers ahead of its wait, and c does not wait
])
def test_edges_are_not_transitive_where_nobody_waits(
    seed: int, names: tuple[str, str, str], last_is_full: bool
) -> None:
    with pytest.raises(Race, match="nothing orders the two"):
        three(seed, names, last_is_full)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_graph_ends_behind_all_of_its_kernels(seed: int) -> None:
    line = Line(seed)
    x, y, z = vector(line.device, 1.0), vector(line.device), vector(line.device)
    first = line.add("triggering", x, y)
    line.add("plain", x, z, programmatic_after=[first])
    executable = line.graph.instantiate("ends")
    executable.launch(line.device.stream)
    assert (read(line.device, y) == 2).all()  # behind the launch on its stream


@pytest.mark.parametrize("seed", SEEDS)
def test_what_comes_before_the_producer_comes_before_the_consumer(seed: int) -> None:
    line = Line(seed)
    x, y, z = vector(line.device), vector(line.device), vector(line.device)
    start = line.graph.add_memset((), x, 0, 32, "clear")
    first = line.add("triggering", x, y, [start])
    line.add("plain", x, z, programmatic_after=[first])
    line.run()
    assert (read(line.device, z) == 1).all()


@pytest.mark.parametrize("case", ["no kernel", "both kinds", "twice", "foreign"])
def test_refused_edges(case: str) -> None:
    line = Line(0)
    x, y = vector(line.device, 1.0), vector(line.device)
    other = Graph(line.device.driver, line.device.context)
    clear = line.graph.add_memset((), y, 0, 32, "clear")
    first = line.add("plain", x, y)
    after, programmatic_after = {
        "no kernel": ([], [clear]), "both kinds": ([first], [first]), "twice": ([], [first] * 2),
        "foreign": ([], [other.add_memset((), y, 0, 32, "elsewhere")]),
    }[case]
    with pytest.raises(CallFailed, match=r"^cuGraphAddDependencies failed with "
                                         r"CUDA_ERROR_INVALID_VALUE.*edges to waiting"):
        line.add("waiting", y, x, after, programmatic_after)


def test_an_edge_may_not_lead_to_itself_or_back() -> None:
    line = Line(0)
    x, y = vector(line.device, 1.0), vector(line.device)
    first, second = line.add("plain", x, y), line.add("waiting", y, x)
    add = line.device.driver.cuGraphAddDependencies
    assert add(line.graph.handle, [first], first) == (1,)
    assert add(line.graph.handle, [second], first) == (1,)
    assert add(line.graph.handle, [first], second) == (0,)
    assert add(line.graph.handle, [first], second) == (1,)
