"""Ranks on two hosts, of which one has more: which GPU each takes, where they meet, ranks without
examples, and what only rank 0 writes. The hosts are made up; the ranks are threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rawnn.common.errors import ConfigError
from rawnn.common.listener import Listener
from rawnn.distributed import (
    RankContext,
    Team,
    rank_from_communicator,
    rank_from_environment,
    rendezvous,
)
from rawnn.engine.callbacks import EarlyStopping
from rawnn.engine.checkpoint import listed
from rawnn.engine.config import Config
from rawnn.engine.parallel import ordinal
from rawnn.engine.result import Result
from rawnn.engine.session import Session
from tests.distributed.runs import free_port
from tests.engine import random_dataset
from tests.properties.profile import examples
from tests.properties.test_whole_runs import LAYERS, Case, by_numpy, cases, check_report
from tests.test_callbacks import Stopper
from tests.together import all_fine, together

HOSTS = ("a", "a", "a", "b", "b")
"""Of each rank."""


@pytest.fixture(autouse=True)
def reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loopback stands for an address that both hosts reach."""
    monkeypatch.setattr("socket.gethostbyname", lambda name: "0.0.0.0")


def places(hosts: tuple[str, ...] = HOSTS) -> list[RankContext]:
    """Where each rank is, as a launcher would say."""
    return [RankContext(rank, len(hosts), hosts[:rank].count(host), hosts.count(host), "a test")
            for rank, host in enumerate(hosts)]


def on_two_hosts(size: int, act: Callable[[Team], Any]) -> list[Any]:
    """What `act` returned on each of so many ranks, the last of which is by itself on a host."""
    port = free_port()

    def run(rank: int) -> Any:
        place = places(("a",) * (size - 1) + ("b",))[rank]
        team = Team(replace(place, address="127.0.0.1", port=port), {})
        try:
            return act(team)
        except BaseException as error:
            team.fail(error)
            raise
        finally:
            team.close()

    return all_fine(together(size, run))


# -- places ----------------------------------------------------------------------------------------


def test_every_rank_takes_a_gpu_of_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its number there, not by that among all: rank 3 is the first of the second host."""
    def of(place: RankContext, device: str = "gpu") -> int:
        return ordinal(Config(device=device), SimpleNamespace(place=place))  # type: ignore[arg-type]

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [of(place) for place in places()] == [0, 1, 2, 0, 1]
    assert [of(place) for place in places(("a", "b", "a", "b", "a"))] == [0, 0, 1, 1, 2]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    assert [of(place) for place in places()] == [0, 1, 2, 0, 1]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")  # a scheduler leaves each its own
    assert [of(place) for place in places()] == [0] * 5
    assert of(places(("a", "b"))[1], "gpu:1") == 0
    with pytest.raises(ConfigError, match="2 ranks of one host cannot all drive"):
        of(places()[4], "gpu:1")


@pytest.mark.parametrize("hosts", [HOSTS, ("a", "b", "a", "b", "a"), ("b", "a", "a")])
def test_a_communicator_says_who_is_where(hosts: tuple[str, ...]) -> None:
    for wanted in places(hosts):
        world = SimpleNamespace(Get_rank=lambda rank=wanted.rank: rank,
                                Get_size=lambda: len(hosts), bcast=None,
                                allgather=lambda value: list(hosts))
        found = rank_from_communicator(world, {})
        assert found is not None
        assert (found.rank, found.world_size, found.local_rank, found.local_size) == (
            wanted.rank, wanted.world_size, wanted.local_rank, wanted.local_size)
        assert found.seconds == 60.0


@pytest.mark.parametrize(("tasks", "counts"), [
    ("3,2", (3, 2)), ("2(x2),1", (2, 2, 1)), ("1,2(x3)", (1, 2, 2, 2)), ("4(x2)", (4, 4))])
def test_slurm_says_how_many_ranks_each_host_has(tasks: str, counts: tuple[int, ...]) -> None:
    hosts = tuple("abcd"[node] for node, count in enumerate(counts) for _ in range(count))
    for wanted in places(hosts):
        found = rank_from_environment({
            "SLURM_PROCID": str(wanted.rank), "SLURM_STEP_NUM_TASKS": str(wanted.world_size),
            "SLURM_LOCALID": str(wanted.local_rank), "SLURM_STEP_TASKS_PER_NODE": tasks,
            "SLURM_NODEID": str("abcd".index(hosts[wanted.rank])), "SLURM_STEP_NODELIST": "n[1-4]"})
        assert found is not None
        assert (found.rank, found.world_size, found.local_rank, found.local_size,
                found.address) == (
            wanted.rank, wanted.world_size, wanted.local_rank, wanted.local_size, "n1")


@pytest.mark.parametrize(("hosts", "address"), [
    (("a", "a"), "127.0.0.1"), (("a", "b"), "head.example"), (HOSTS, "head.example")])
def test_ranks_of_several_hosts_meet_where_all_can_come(
        monkeypatch: pytest.MonkeyPatch, hosts: tuple[str, ...], address: str) -> None:
    """Rank 0 says where it listens, and the secret that it made; the others take both."""
    asked: list[tuple[str, int]] = []
    door = SimpleNamespace(getsockname=lambda: ("", 77))
    monkeypatch.setattr(rendezvous, "_listening",
                        lambda place: asked.append((place.address, place.port)) or door)
    monkeypatch.setattr(rendezvous.socket, "getfqdn", lambda: "head.example")
    carried: list[Any] = []
    world = SimpleNamespace(bcast=lambda value, root: carried.append(value) or
                            (value or carried[0]))
    found = [rendezvous._rendezvous_by_mpi(replace(place, world=world)) for place in places(hosts)]
    assert [listener is door for listener, *_ in found] == [True] + [False] * (len(hosts) - 1)
    assert len({tuple(where) for _, *where in found}) == 1
    assert found[0][1:3] == (address, 77)
    assert len(found[0][3]) == 64
    assert asked == [(address, 0)]


# -- runs ------------------------------------------------------------------------------------------


def session(team: Team, data: Any, *listeners: Listener, **options: Any) -> Result:
    with Session(Config(device="host", **options), *listeners, data=data, team=team) as made:
        return made.run()


@examples(6)
@given(case=cases(("none", "report=2", "preload,fuse")), ranks=st.integers(2, 5),
       rows=st.integers(1, 2), whole=st.integers(1, 3), rest=st.integers(0, 9))
def test_ranks_of_unequal_hosts_are_one_run_by_numpy(case: Case, ranks: int, rows: int, whole: int,
                                                     rest: int) -> None:
    """Of the partial batch some ranks have no example, and the first ones more than others."""
    batch = ranks * rows
    case = replace(case, batch=batch, count=batch * whole + rest % batch, stop=0, clock=True,
                   partial=True)
    data = random_dataset(12, 4, train=case.count, test=13, seed=case.seed)
    wanted = list(by_numpy(case, data))
    for found in on_two_hosts(ranks, lambda team: session(team, data, **case.options())):
        assert found.history[-1].epoch == case.epochs
        for report in found.history:
            check_report(report, wanted[report.epoch - 1], 13)
        for name, array in wanted[-1].parameters.items():
            np.testing.assert_allclose(found.parameters[name], array, rtol=0, atol=2e-4)


OPTIONS: dict[str, Any] = {"layers": LAYERS, "epochs": 6, "batch": 6, "opt": "none", "lr": 0.3,
                           "partial": True, "shuffle": True}


def test_rank_0_alone_writes_and_all_go_on_from_it(tmp_path: Path) -> None:
    data, every = random_dataset(12, 4, train=25, test=13), {"save_every": 2, **OPTIONS}
    whole = on_two_hosts(3, lambda team: session(team, data, **OPTIONS))
    on_two_hosts(3, lambda team: session(
        team, data, Stopper(3), save=str(tmp_path / str(team.rank)), **every))
    assert [epoch for epoch, _ in listed(tmp_path / "0")] == [2, 3]
    assert not any((tmp_path / name).exists() for name in "12")
    found = on_two_hosts(3, lambda team: session(
        team, data, resume=str(tmp_path / "0"), save=str(tmp_path / "0"), **every))
    assert [epoch for epoch, _ in listed(tmp_path / "0")] == [2, 3, 4, 6]
    for each, one in zip(found, whole, strict=True):
        assert [r.train_loss for r in each.history] == [r.train_loss for r in one.history[3:]]
        for name, array in one.parameters.items():
            np.testing.assert_array_equal(each.parameters[name], array)


def test_the_best_parameters_come_back_on_every_rank(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which rank 0 alone has written, in the run before."""
    data = random_dataset(12, 4, train=25, test=13)
    options = {**OPTIONS, "patience": 9, "save": str(tmp_path)}
    losses = [9.0, 1.0, 5.0, 4.0, 3.0, 2.0]  # as if the second epoch were the best
    judge = EarlyStopping._judge
    monkeypatch.setattr(EarlyStopping, "_judge", lambda self, report: judge(
        self, replace(report, test_loss=losses[report.epoch - 1])))
    write, writers = EarlyStopping._write, set[int]()
    monkeypatch.setattr(EarlyStopping, "_write", lambda self, best, file: (
        writers.add(self._session.team.rank), write(self, best, file)))
    on_two_hosts(2, lambda team: session(team, data, Stopper(4), **options))
    assert writers == {0}
    best = on_two_hosts(2, lambda team: session(team, data, **{**OPTIONS, "epochs": 2}))
    found = on_two_hosts(2, lambda team: session(team, data, resume=str(tmp_path), **options))
    for each in found:
        assert each.test_loss == best[0].test_loss
        for name, array in best[0].parameters.items():
            np.testing.assert_array_equal(each.parameters[name], array)


def test_ranks_reduce_to_sums_and_to_the_largest() -> None:
    def act(team: Team) -> tuple[list[float], list[int]]:
        total, most = np.array([1.0, 2.0]) * (team.rank + 1), np.array([5, -team.rank, team.rank])
        team.reduce([total], 0.5)
        team.reduce([most], 0.5, "max")  # whose weights play no part
        return total.tolist(), most.tolist()

    assert on_two_hosts(3, act) == [([3.0, 6.0], [5, 0, 2])] * 3
