"""Faults planted in runs of two ranks: edges of reductions left out, and calls that fail."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from rawnn.common.errors import RanksError, RawnnError
from rawnn.common.listener import Listener
from rawnn.cuda.device import Device
from rawnn.distributed import Team
from rawnn.engine.config import Config
from rawnn.engine.machine import Opened, machine_of
from rawnn.engine.runners.gpu import GpuRunner
from rawnn.engine.session import Session
from rawnn.graphs.unrolling import GraphPlan, graph_plans
from rawnn.sim import Fault, Faults, Race, Simulation
from rawnn.sim.codes import CODES
from tests.distributed.runs import teams, tried, work_of
from tests.engine import random_dataset
from tests.slices import sliced

LAYERS = (9, 500, 600, 5)
DATA = random_dataset(LAYERS[0], LAYERS[-1], train=8, test=4)
OPTS = tuple(f"preload,graphs=epoch,streams,nccl=1{more}" for more in (":whole", ":sharded"))
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rawnn.sim.nccl_rendezvous.PATIENCE", 1.5)


def edges_of_collectives(opt: str) -> list[tuple[int, int]]:
    """(from, to) of every edge that a collective has at either end, in an epoch of two steps."""
    work = work_of(opt, LAYERS, DATA, 4, 2, 0)
    graph, = graph_plans(work.train, work.policy, work.steps)
    ops = graph.plan.ops
    return [(a, b) for b, before in enumerate(graph.edges()) for a in before
            if "nccl" in (ops[a].impl, ops[b].impl)]


EDGES = [(opt, edge) for opt in OPTS for edge in edges_of_collectives(opt)]


@pytest.mark.parametrize("opt", OPTS)
def test_there_are_edges_of_every_sort(opt: str) -> None:
    """From a gradient, to an update, from a collective to the next where nothing stands between,
    and back to the next step."""
    work = work_of(opt, LAYERS, DATA, 4, 2, 0)
    graph, = graph_plans(work.train, work.policy, work.steps)
    kinds = {tuple(graph.plan.ops[i].impl == "nccl" for i in edge)
             for of, edge in EDGES if of == opt}
    assert kinds == {(True, False), (False, True)} | ({(True, True)} if "whole" in opt else set())


@pytest.mark.parametrize("opt", OPTS)
def test_with_every_edge_they_train(opt: str) -> None:
    assert not [each for each in tried(opt, LAYERS, DATA, 4, 2) if isinstance(each, Exception)]


@pytest.mark.parametrize(("opt", "edge"), sliced(EDGES, len(EDGES) // 4))
def test_an_edge_of_a_collective_that_is_left_out_is_noticed(
        opt: str, edge: tuple[int, int]) -> None:
    whole = GraphPlan.edges

    def fewer(self: GraphPlan) -> list[tuple[int, ...]]:
        found = whole(self)
        if any(self.plan.find(kind=kind) for kind in COLLECTIVES):
            found[edge[1]] = tuple(i for i in found[edge[1]] if i != edge[0])
        return found

    with mock.patch.object(GraphPlan, "edges", fewer):
        found = tried(opt, LAYERS, DATA, 4, 2, epochs=2)
    assert any(isinstance(each, Race) or "differs between ranks" in str(each)
               for each in found), found


def ranks_of_a_session(faults: dict[int, Faults], opt: str = "preload,graphs=epoch",
                       listener: Listener | None = None,
                       layers: tuple[int, ...] = (9, 5)) -> list[Any]:
    """What became of two ranks, each a session on a simulated GPU: one that passes for a GPU whose
    times mean something where there is a `listener`."""

    def act(team: Team) -> Any:
        with ExitStack() as closing:
            simulation = Simulation(faults=faults.get(team.rank))
            backend = simulation.backend()
            device = Device(replace(backend, caution="") if listener else backend)
            closing.callback(device.close)
            opened = Opened(device, machine_of(device), 0.0)
            config = Config(layers=layers, epochs=3, batch=4, device="sim", opt=opt)
            data = random_dataset(9, 5, train=8, test=4)
            try:
                with Session(config, listener or Listener(), data=data, opened=opened,
                             team=team) as session:
                    return session.run()
            finally:
                closing.close()
                if not simulation.errors and not any(
                        call in LAST for _, call, _ in simulation.faults.failed):
                    simulation.assert_clean()

    return teams(2, act)


def test_two_sessions_reach_what_one_does() -> None:
    first, second = ranks_of_a_session({})
    assert [r.train_loss for r in first.history] == [r.train_loss for r in second.history]
    assert "nccl" in first.toggles
    assert [each["device"] for each in first.facts["ranks"]] == ["simulated GPU"] * 2
    assert first.environment.libraries["nccl"] == "2.28.9"


@pytest.mark.parametrize("short", [0.0, math.inf])
def test_what_can_be_expected_is_said_before_it_starts(
        short: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a short step also what one GPU takes by itself, which changes nothing of the run."""
    messages: list[str] = []
    monkeypatch.setattr("rawnn.engine.parallel.SHORT_US", short)
    monkeypatch.setattr("rawnn.engine.parallel.MIN_GAIN", math.inf)

    class Messages(Listener):
        def notify(self, message: str) -> None:
            messages.append(message)

    first, second = ranks_of_a_session({}, listener=Messages())
    assert any("its gradients take" in each for each in messages)
    assert {"compute_us", "reduce_us"} <= first.facts.keys()
    assert ({"step_us", "alone_us"} <= first.facts.keys()) == (short > 0)
    assert any("on one GPU by itself" in each for each in messages) == (short > 0)
    monkeypatch.setattr("rawnn.engine.parallel.SHORT_US", 0.0)
    plain, _ = ranks_of_a_session({})
    assert [r.train_loss for r in first.history] == [r.train_loss for r in plain.history]
    assert second.facts["compute_us"] == first.facts["compute_us"]


@pytest.mark.parametrize(("reads", "times"), [(True, 3), (False, 1)])
def test_parts_are_put_together_where_somebody_reads_them(
        reads: bool, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind every epoch, or but at the end; the same on rank 0, which alone has the listener."""
    monkeypatch.setattr("rawnn.opts.nccl.SMALL_MB", 0.0)
    asked: list[GpuRunner] = []
    plain = GpuRunner.assemble

    def assemble(self: GpuRunner) -> None:
        if self._is_sharded:
            asked.append(self)
        plain(self)

    monkeypatch.setattr(GpuRunner, "assemble", assemble)
    listener = Listener()
    listener.reads = reads
    opt = "preload,graphs=epoch,bf16,nccl"
    found = ranks_of_a_session({}, f"{opt}=sharded", listener, (9, 16, 5))
    assert len(asked) == 2 * times
    whole, _ = ranks_of_a_session({}, f"{opt}=whole", layers=(9, 16, 5))
    for each in found:
        for name, array in whole.parameters.items():
            assert np.array_equal(each.parameters[name], array), name


LAST = ("ncclCommWindowDeregister", "ncclMemFree", "ncclCommDestroy")  # behind all training
CALLS = ("ncclGetVersion", "ncclCommInitRankConfig", "ncclMemAlloc", "ncclCommWindowRegister",
         "ncclRedOpCreatePreMulSum", "ncclGroupStart", "ncclAllReduce",
         "ncclAllGather", "ncclGroupEnd", *LAST)


@pytest.mark.parametrize("call", CALLS)
def test_a_call_of_nccl_that_fails_on_one_rank_ends_both(
        call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rawnn.opts.nccl.SMALL_MB", 0.0)
    codes = [name for name, (value, _) in CODES["nccl"].items() if value]
    for code in sliced(codes):
        found = ranks_of_a_session({1: Faults(Fault(code, call=call))}, "preload,nccl=sharded",
                                   layers=(9, 6, 5))
        assert isinstance(found[1], RawnnError), found
        assert f"{call} failed with {code}" in str(found[1])
        if call not in LAST:
            assert isinstance(found[0], RanksError), found
            assert "rank 1 (" in str(found[0])
            assert f"{call} failed with {code}" in str(found[0])
            assert [each.speaks for each in found] == [True, False]


@pytest.mark.parametrize("call", ["cuGraphInstantiate", "cuGraphLaunch", "cuMemAlloc",
                                  "nvrtcCompileProgram"])
def test_a_call_of_the_driver_that_fails_on_rank_0_ends_both(call: str) -> None:
    found = ranks_of_a_session({0: Faults(Fault(call=call))})
    assert f"{call} failed with" in str(found[0])
    assert isinstance(found[1], RanksError), found
    assert str(found[1]).startswith("rank 0 (")
    assert found[0].speaks


def test_a_rank_that_raises_amid_an_epoch_frees_the_other_from_its_collective() -> None:
    """Rank 1 fails where rank 0 waits for it on the device: the communicator is aborted."""
    faults = {1: Faults(Fault(call="cuGraphLaunch", nth=1))}
    found = ranks_of_a_session(faults)
    assert "cuGraphLaunch failed" in str(found[1])
    assert isinstance(found[0], RanksError)
    assert "cuGraphLaunch failed" in str(found[0])


def test_ranks_whose_toggles_differ_are_found_before_they_train() -> None:
    def act(team: Team) -> Any:
        device = Device(Simulation().backend())
        try:
            opt = ("preload", "preload,fuse")[team.rank]
            config = Config(layers=(9, 5), epochs=1, batch=4, device="sim", opt=opt)
            with Session(config, Listener(), data=random_dataset(9, 5, train=8, test=4), team=team,
                         opened=Opened(device, machine_of(device), 0.0)) as session:
                return session.run()
        finally:
            device.close()

    assert all("differs from rank 0 in the toggles" in str(each) for each in teams(2, act))


def test_a_machine_without_nccl_says_what_to_install() -> None:
    def act(team: Team) -> Any:
        device = Device(Simulation().backend())
        try:
            bare = replace(machine_of(device), has_package=lambda name: False)
            config = Config(layers=(9, 5), epochs=1, batch=4, device="sim", opt="preload")
            with Session(config, Listener(), data=random_dataset(9, 5, train=8, test=4), team=team,
                         opened=Opened(device, bare, 0.0)) as session:
                return session.run()
        finally:
            device.close()

    assert all("rawnn[nccl12]" in str(each) for each in teams(2, act))
