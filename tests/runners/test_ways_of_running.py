"""Allocators, page-locked memory, two streams and programmatic launches: on the simulated GPU every
order of unordered work gives the same result, and the order that is needed is asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from rawnn.common.errors import ConfigError
from rawnn.cuda.compiling.launch_proof import Proof
from rawnn.cuda.device import Device
from rawnn.cuda.stream import OrderingEvent, Stream
from rawnn.engine.runners.gpu import GpuRunner
from rawnn.engine.runners.overlap import buffer_plans, fetching
from rawnn.graphs.early_starts import (
    MIN_INDEPENDENT_SUCCESSORS,
    independent_successors,
    may_start_early_on_stream,
    programmatic_edges,
)
from rawnn.model.layers import Network
from rawnn.opts import select
from rawnn.opts.registry import Machine
from rawnn.plan.dependencies import dependencies
from rawnn.plan.op import Op
from rawnn.sim import Race, Simulation, SimulationError
from tests.engine import make_work, random_dataset, run_on, step_plan
from tests.slices import sliced

DATA = random_dataset()
ONE, THREE = (29, 7), (29, 12, 16, 7)
PLAIN = (
    "pool", "async", "pinned", "streams", "pinned,streams", "pool,streams,pinned,nosync",
    "preload,streams", "arena,streams,nosync", "pdl", "preload,arena,nosync,pdl",
    "preload,streams,pool,pdl", "async,streams,pinned,nosync,pdl", "preload,graphs",
    "preload,graphs,streams,pdl", "preload,graphs=epoch,pdl", "preload,graphs=epoch,streams",
    "preload,graphs=while,pdl", "graphs=epoch,pinned,streams", "graphs=step,pinned",
)
FUSED = ("preload,fuse,pdl,pool", "preload,fuse,graphs=epoch,pdl", "best,pdl", "seed,pdl")


@cache
def baseline(layers: tuple[int, ...], **options: Any) -> Any:
    """What a run without toggles learned."""
    return run("none", layers, **options)


def run(opt: str, layers: tuple[int, ...], seed: int = 0, **options: Any) -> Any:
    """What the run learned, and the simulation that it left clean."""
    simulation = Simulation(seed)
    device = Device(simulation.backend())
    found = run_on(device, make_work(opt, layers, DATA, **options))
    device.close()
    simulation.assert_clean()
    found.simulation = simulation
    return found


RUNS = [pytest.param(opt, layers, options, id=f"{opt}-{layers}-{name}")
        for opt in (*PLAIN, *FUSED) for layers in (ONE, THREE)
        for name, options in (("", {}), ("shuffled", {"shuffle": True, "partial": True}))]


@pytest.mark.parametrize(("opt", "layers", "options"),
                         sliced(RUNS, 2, kind=lambda case: case.values[0]))
def test_the_result_is_the_baselines(opt: str, layers: tuple[int, ...],
                                     options: dict[str, Any]) -> None:
    wanted = baseline(layers, **options)
    for seed in range(2):
        found = run(opt, layers, seed, **options)
        for name, value in wanted.parameters.items():
            if opt in PLAIN:
                np.testing.assert_array_equal(found.parameters[name], value, name)
            else:
                np.testing.assert_allclose(found.parameters[name], value, atol=1e-5)


# -- allocators -----------------------------------------------------------------------------------
@pytest.mark.parametrize(("opt", "call", "each_epoch"), [
    ("none", "cuMemAlloc", True), ("pool", "cuMemAlloc", False), ("arena", "cuMemAlloc", False),
    ("async", "cuMemAlloc", False), ("async", "cuMemAllocAsync", True),
])
def test_who_calls_the_driver_in_every_epoch(opt: str, call: str, each_epoch: bool) -> None:
    simulation = Simulation()
    device = Device(simulation.backend())
    runner = GpuRunner(device, make_work(opt, THREE, DATA))
    counts = []
    for _ in range(3):
        runner.epoch(True)
        runner.metrics()
        counts.append(simulation.faults.count(call))
    assert (counts[2] > counts[1] > counts[0]) if each_epoch else counts[1] == counts[2]
    memory = runner.describe().get("memory")
    assert (memory is None) == (opt == "arena")
    if opt == "pool":
        assert memory["hits"] > 100 * memory["misses"]
        assert memory["peak"] <= memory["reserved"]
    runner.close()
    device.close()
    simulation.assert_clean()


@pytest.mark.parametrize("pair", ["pool,arena", "async,arena", "pool,async", "pool,graphs"])
def test_allocators_exclude_each_other(pair: str) -> None:
    with pytest.raises(ConfigError, match="exclude each other"):
        select(f"none,{pair}", Network(ONE), 8, Machine(None, (9, 0), 13000, lambda package: True))


@pytest.mark.parametrize(("opt", "machine", "sentence"), [
    ("async", Machine(None, (9, 0), 13000, memory_pools=False), "it needs a GPU and driver with"),
    ("pdl", Machine(None, (8, 9), 13000), "it needs compute capability 9.0"),
])
def test_machines_that_cannot(opt: str, machine: Machine, sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"the toggle '{opt}' cannot run here: {sentence}"):
        select(f"none,{opt}", Network(ONE), 8, machine)


# -- page-locked memory ---------------------------------------------------------------------------
def test_batches_come_from_page_locked_memory() -> None:
    without, found = run("nosync", ONE), run("nosync,pinned", ONE)
    counts = [s.simulation.faults.count("cuMemHostAlloc") for s in (without, found)]
    # Losses and counts always come to such memory; images and labels of training, of whole test
    # batches and of the rest come from it with pinned.
    assert counts == [2, 8]


def test_an_order_changed_under_a_copy_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shuffle on the host waits for the copies of the epoch before; without, it would change
    what they read."""
    device = Device(Simulation().backend())
    runner = GpuRunner(device, make_work("nosync,arena,pinned,report=9", ONE, DATA, shuffle=True))
    monkeypatch.setattr(Stream, "synchronize", lambda self, context="": None)
    for _ in range(2):
        runner.epoch(reported=False)
    with pytest.raises(SimulationError, match=r"page-locked memory .* were changed"):
        device.driver.cuCtxSynchronize()


# -- two streams ----------------------------------------------------------------------------------
def test_batches_take_turns_on_two_buffers() -> None:
    plan = step_plan(Network(THREE), 8, 70)
    first, second = buffer_plans(plan)
    assert first is plan
    assert [op.kind for op in fetching(plan)] == ["upload"]
    batch = {name for op in fetching(first) for name, _ in op.writes}
    other = {name for op in fetching(second) for name, _ in op.writes}
    assert other == {name + "'" for name in batch}
    assert not batch & {name for op in second.ops for name in op.tensors}
    assert second.check()


@pytest.mark.parametrize("opt", ["streams,nosync", "streams,nosync,pinned", "preload,streams,pool",
                                 "streams"])
def test_the_next_batch_is_asked_for_before_the_step_at_hand_is_waited_for(opt: str) -> None:
    simulation = run(opt, ONE).simulation
    assert simulation.faults.count("cuStreamCreate") == 2
    calls = simulation.calls
    events = [name for name in calls if name in ("cuStreamWaitEvent", "cuStreamSynchronize")]
    assert events.count("cuStreamWaitEvent") == 2 * 8 * 2  # two a step, 8 steps, 2 epochs


@pytest.mark.parametrize("which", ["the step waits for its batch", "the copy waits for the step",
                                   "neither waits"])
@pytest.mark.parametrize("opt", ["streams,nosync,arena,pinned", "preload,streams,nosync,arena"])
def test_without_the_events_the_streams_race(which: str, opt: str,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    wait = Stream.wait_for

    def maybe(self: Stream, event: Any) -> None:
        copies = self.handle != main[0]
        if which != "neither waits" and copies == (which == "the copy waits for the step"):
            wait(self, event)

    main: list[Any] = []
    monkeypatch.setattr(Stream, "wait_for", maybe)
    for seed in range(4):
        device = Device(Simulation(seed).backend())
        main[:] = [device.stream.handle]
        with pytest.raises(Race, match="nothing orders the two"):
            run_on(device, make_work(opt, ONE, DATA, shuffle=True))


def test_a_stream_and_its_events_are_given_back_when_a_program_cannot_be_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulation = Simulation()
    device = Device(simulation.backend())
    made: list[OrderingEvent] = []
    build = OrderingEvent.__init__

    def failing(self: OrderingEvent, driver: Any) -> None:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(self)
        build(self, driver)

    monkeypatch.setattr(OrderingEvent, "__init__", failing)
    with pytest.raises(KeyboardInterrupt):
        GpuRunner(device, make_work("streams", ONE, DATA))
    device.close()
    simulation.assert_clean()


# -- programmatic edges ---------------------------------------------------------------------------
WAITS = Proof(True, True, True, (), "")
EARLY = Proof(True, True, True, ("w",), "")
DISORDERED = Proof(True, True, False, (), "")
NOT = Proof(False, False, True, (), "it does not wait")


def unrolled() -> tuple[Op, ...]:
    """The ops of two steps."""
    return make_work("preload,arena", THREE, DATA).train.unrolled(2).ops


def edges_of(change: Callable[[str], Proof | None]) -> list[tuple[str, str]]:
    """(op ahead, op behind) of every programmatic edge of two unrolled steps."""
    ops = unrolled()
    found = programmatic_edges(ops, dependencies(ops), [change(op.kind) for op in ops])
    return [(ops[i].name, op.name) for op, before in zip(ops, found, strict=True) for i in before]


def test_edges_between_kernels_that_wait_are_programmatic_but_behind_time_to_spare() -> None:
    ops = unrolled()
    edges = dependencies(ops)
    at_leisure = {op.name for op, time in zip(ops, independent_successors(edges), strict=True)
                  if time >= MIN_INDEPENDENT_SUCCESSORS}
    assert edges_of(lambda kind: WAITS) == [
        (ops[i].name, op.name) for op, before in zip(ops, edges, strict=True)
        if op.name not in at_leisure for i in before]
    assert edges_of(lambda kind: NOT) == edges_of(lambda kind: None) == []


def test_what_is_waited_for_soon_begins_early() -> None:
    """The way from one step to the next, and the update of a second layer, but no update above
    it and no gather of a step to come."""
    ops = make_work("preload,arena,fuse", (29, 12, 16, 9, 7), DATA).train.unrolled(4).ops
    times = dict(zip((op.name for op in ops), independent_successors(dependencies(ops)),
                     strict=True))
    middle = {name.removesuffix("@1"): time for name, time in times.items() if name.endswith("@1")}
    assert {name for name, time in middle.items() if time >= MIN_INDEPENDENT_SUCCESSORS} \
        == {name for name in middle if name.startswith(("gather", "fc3.weight", "fc4.weight"))}
    assert not any(independent_successors([(), (0,), (1,), (2,)]))
    assert independent_successors([(), (), (0,), (2,), (1, 3)]) == [0, 2, 0, 0, 0]
    assert independent_successors([]) == []


def test_copies_and_library_calls_have_full_edges_on_both_sides() -> None:
    found = edges_of(lambda kind: None if kind == "matmul" else WAITS)
    assert found
    kinds = {op.name: op.kind for op in unrolled()}
    assert "matmul" not in {kinds[name] for edge in found for name in edge}


def test_a_kernel_that_reads_early_does_not_start_before_who_writes_that() -> None:
    """The gradient is written just ahead of sgd; the weights by the sgd of the step before, with
    products in between that have waited for it."""
    kinds = {op.name: op.kind for op in unrolled()}
    gradient = Proof(True, True, True, ("dw",), "")
    late = edges_of(lambda kind: WAITS)
    lost = set(late) - set(edges_of(lambda kind: gradient if kind == "sgd" else WAITS))
    assert lost
    assert all(kinds[behind] == "sgd" for _, behind in lost)
    assert edges_of(lambda kind: EARLY if kind == "sgd" else WAITS) == late


def test_reads_ahead_of_the_wait_need_producers_that_trigger_behind_theirs() -> None:
    found = edges_of(lambda kind: EARLY if kind == "sgd" else DISORDERED)
    ordered = edges_of(lambda kind: EARLY if kind == "sgd" else WAITS)
    assert set(found) < set(ordered)


def test_on_a_stream_only_the_data_set_may_be_read_early() -> None:
    plan = make_work("preload,arena", ONE, DATA).train
    gather, = plan.find(kind="gather")
    update = plan.find(kind="sgd")[0]
    data = Proof(True, True, False, ("images", "labels"), "")
    assert may_start_early_on_stream(gather, plan, data)
    cursor = Proof(True, True, True, ("cursor",), "")
    assert may_start_early_on_stream(gather, plan, cursor)
    assert not may_start_early_on_stream(gather, plan.advancing(), cursor)
    assert not may_start_early_on_stream(update, plan, EARLY)
    assert may_start_early_on_stream(update, plan, WAITS)
    assert not may_start_early_on_stream(update, plan, NOT)


def test_kernels_that_do_not_wait_are_launched_in_full_order() -> None:
    simulation = run("preload,pdl", ONE).simulation
    extended = simulation.faults.count("cuLaunchKernelEx")
    plain = simulation.faults.count("cuLaunchKernel")
    assert extended > 10 * plain > 0  # `initialise` and its like


@pytest.mark.parametrize(("opt", "fills"), [
    ("graphs=epoch", 0), ("preload,graphs=epoch", 0), ("preload,graphs=step", 1),
    ("preload,graphs=2", 1), ("preload,graphs=while", 1)])
def test_the_cursor_is_reset_where_graphs_move_it(opt: str, fills: int) -> None:
    simulation = Simulation()
    device = Device(simulation.backend())
    runner = GpuRunner(device, make_work(opt, (5, 3), random_dataset(5, 3, 6, 3), batch=2))
    runner.epoch(True)
    before = simulation.faults.count("cuMemsetD8Async")
    runner.epoch(True)
    assert simulation.faults.count("cuMemsetD8Async") - before == fills
    runner.metrics()
    runner.close()
    device.close()
    simulation.assert_clean()
