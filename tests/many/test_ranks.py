"""Members spread over ranks: the bits of one process, and the same result on every rank."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rawnn
from rawnn.common.errors import ConfigError, DeviceError, RanksError, RawnnError
from rawnn.distributed import Team, launcher
from rawnn.engine.config import Config
from rawnn.many import loop, training
from rawnn.many.ranks import RankMembers
from tests.distributed.runs import teams
from tests.many.test_devices import OPTIONS, X, Y, same
from tests.many.test_train_many import Recorder
from tests.together import all_fine

FIXED: dict[str, Any] = {**OPTIONS, "sharding": "1x1:64:FFF"}


def on_ranks(size: int, **options: Any) -> list[rawnn.Many]:
    return all_fine(teams(size, lambda team: rawnn.train_many(**options, team=team)))


def check_same(one: rawnn.Many, found: list[rawnn.Many]) -> None:
    for many in found:
        assert same(one, many)
        for name, array in one.progress.arrays().items():
            assert np.array_equal(array, many.progress.arrays()[name], equal_nan=True), name
        for a, b in zip(one, many, strict=True):
            assert a.checkpoint.state.keys() == b.checkpoint.state.keys()
            assert all(np.array_equal(a.checkpoint.state[n], b.checkpoint.state[n])
                       for n in a.checkpoint.state)
            assert a.sharding == b.sharding


@pytest.mark.parametrize(("size", "more"), [
    (2, {"lr": [0.1, 0.02, 0.3], "optimizer": "adam"}),
    (3, {"lr": np.geomspace(1e-3, 0.3, 9), "halving": 3, "epochs": 9}),
    (2, {"lr": np.geomspace(3e-3, 1, 6), "patience": 1, "epochs": 12}),
    (3, {"layers": [(6, 12, 3), (6, 8, 3)], "seed": [0], "sharding": None}),
], ids=["two", "halving", "patience", "few"])
def test_bits_are_those_of_one_process(size: int, more: dict[str, Any]) -> None:
    options = {**FIXED, **more, "device": "sim"}
    check_same(rawnn.train_many(**options), on_ranks(size, **options))


def test_ranks_on_the_host_and_folds() -> None:
    options = {**OPTIONS, "lr": [0.1, 0.02], "folds": 3, "device": "host"}
    check_same(rawnn.train_many(**options), on_ranks(2, **options))


def test_each_rank_trains_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: dict[int, list[list[int]]] = {0: [], 1: []}
    original = RankMembers._run

    def noted(self: RankMembers, active: Any, epochs: int) -> None:
        trained[self._team.rank].append(active[self._team.rank].tolist())
        original(self, active, epochs)

    monkeypatch.setattr(RankMembers, "_run", noted)
    on_ranks(2, **{**OPTIONS, "epochs": 1}, seed=range(5), device="host")
    assert trained == {0: [[0, 2, 4]], 1: [[1, 3]]}


@dataclass(frozen=True)
class Three:
    """A group of three members with different epochs."""

    config: Config = field(default_factory=lambda: Config(sharding="1x1:64:FF"))
    members: Any = tuple(SimpleNamespace(epochs=epochs) for epochs in (7, 8, 9))

    def __len__(self) -> int:
        return 3


class Trainer:
    """Trains nothing: what it has of a member names the rank."""

    def __init__(self, rank: int, sharding: str) -> None:
        self.rank, self.sharding, self.calls = rank, sharding, list[Any]()

    def run(self, active: Any, epochs: int) -> None:
        self.calls.append(("run", active.tolist(), epochs))

    def scores(self, first: int) -> Any:
        return SimpleNamespace(figures=np.full((3, 5 - first, 3), self.rank, np.float64))

    def state(self, members: Any) -> Any:
        return {"w": 10 * members + self.rank, **({"clock": members} if self.rank < 3 else {})}

    def load(self, members: Any, state: Any) -> None:
        self.calls.append(("load", members.tolist(), {k: v.tolist() for k, v in state.items()}))

    def close(self) -> None:
        self.calls.append(("close",))


def test_a_rank_has_the_trainer_of_its_share_and_no_other() -> None:
    """Three members on four ranks, from rank 1 on: rank 0 has none. The first chooses how all do,
    and it alone speaks. A stack that one share lacks is none of the whole."""
    made: dict[int, list[Any]] = {rank: [] for rank in range(4)}

    def act(team: Team) -> Any:
        def make(group: Any, opened: Any, notify: Any, at_once: int) -> Any:
            made[team.rank].append((group.config.sharding, opened, notify == said.append, at_once))
            trainers.append(Trainer(team.rank, "1x1:128:FF"))
            return trainers[-1]

        said: list[str] = []
        trainers: list[Trainer] = []
        group: Any = Three()
        members = RankMembers(group, f"of {team.rank}",  # type: ignore[arg-type]
                              team, make, said.append, 8, first=1)
        everyone = np.arange(3, dtype=np.int32)
        members.run(everyone, 2)
        members.run(everyone[1:], 1)
        state = members.state(everyone[::-1])
        members.load(everyone[:2], {"w": np.array([5, 6])})
        figures = members.scores(1).figures
        assert members.sharding == "1x1:128:FF"
        members.close()
        return ({k: v.tolist() for k, v in state.items()}, figures[:, 0, 0].tolist(), figures.shape,
                [each.calls for each in trainers])

    found = all_fine(teams(4, act))
    assert made == {0: [], 1: [("1x1:64:FF", "of 1", True, 2)],
                    **{rank: [("1x1:128:FF", f"of {rank}", False, 2)] for rank in (2, 3)}}
    assert [each[:3] for each in found] == [({"w": [23, 12, 1]}, [1, 2, 3], (3, 4, 3))] * 4
    assert [each[3] for each in found] == [
        [], [[("run", [0], 2), ("run", [], 1), ("load", [0], {"w": [5]}), ("close",)]],
        [[("run", [1], 2), ("run", [1], 1), ("load", [1], {"w": [6]}), ("close",)]],
        [[("run", [2], 2), ("run", [2], 1), ("close",)]]]


def test_ranks_take_equal_steps_however_fast_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many epochs run before the next decision follows from the time of the last ones."""
    clocks: dict[int, float] = {}

    def clock() -> float:
        return perf_counter() * clocks.setdefault(threading.get_ident(), 10.0 ** (3 * len(clocks)))

    monkeypatch.setattr(loop, "perf_counter", clock)
    monkeypatch.setattr(loop, "CHUNK_SECONDS", 10.0)
    options = {**OPTIONS, "lr": [0.1, 0.02], "epochs": 40, "device": "host"}
    found = on_ranks(2, **options)
    assert len(clocks) == 2
    check_same(rawnn.train_many(**options), found)
    assert found[0].stored.settings["seconds"] == found[1].stored.settings["seconds"]


def test_rank_0_stores_and_a_resumed_run_ends_alike(tmp_path: Path) -> None:
    options = {**FIXED, "lr": [0.1, 0.02, 0.3], "epochs": 5, "device": "sim"}
    whole = rawnn.train_many(**options)

    def stop(recorder: Recorder, report: Any) -> None:
        if report.epoch == 2 and recorder.run.team.rank == 1:
            recorder.run.stop("enough")

    part = all_fine(teams(2, lambda team: rawnn.train_many(
        **options, save=tmp_path / "a", listener=Recorder(stop), team=team)))
    assert [many.progress.epoch.tolist() for many in part] == [[2, 2, 2]] * 2
    assert sorted(path.name for path in (tmp_path / "a").glob("rawnn-*")) == [
        "rawnn-000001.safetensors", "rawnn-000002.safetensors"]
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    check_same(whole, [rawnn.train_many(resume=tmp_path / "b", data=(X, Y))])
    check_same(whole, all_fine(teams(2, lambda team: rawnn.train_many(
        resume=tmp_path / "a", data=(X, Y), team=team))))


@pytest.mark.parametrize("files", [(2, 3), (2, 2), (0, 2)])
def test_ranks_that_resume_from_other_epochs_are_refused(tmp_path: Path, files: tuple[int, int]
                                                        ) -> None:
    """Each from a file of its own, of one run; a rank without a file begins anew (0)."""
    options = {**OPTIONS, "lr": [0.1, 0.02], "epochs": 4, "device": "host"}
    rawnn.train_many(**options, save=tmp_path)

    def act(team: Team) -> rawnn.Many:
        epoch = files[team.rank]
        resumed = {"resume": tmp_path / f"rawnn-{epoch:06}.safetensors", "data": (X, Y)}
        return rawnn.train_many(**(resumed if epoch else options), team=team)

    found = teams(2, act)
    if files[0] == files[1]:
        assert len(all_fine(found)) == 2
    else:
        there = {0: "none", 2: "epoch 2 of", 3: "epoch 3 of"}
        for each in found:
            assert isinstance(each, RanksError)
            text = str(each)
            assert "rank 1" in text
            assert "differs from rank 0 in the checkpoint: " in text
            mine, _, other = text.partition("the checkpoint: ")[2].partition(", not ")
            assert mine.startswith(there[files[1]])
            assert other.startswith(there[files[0]])


def test_a_signal_to_one_rank_interrupts_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread gets none: rank 1 has one from the second epoch on."""
    signalled: set[int] = set()

    class Signalled(loop.Signals):
        @property
        def number(self) -> int:
            return 15 if threading.get_ident() in signalled else 0

        @number.setter
        def number(self, value: int) -> None:
            pass

    def at(recorder: Recorder, report: Any) -> None:
        if report.epoch == 2 and recorder.run.team.rank == 1:
            signalled.add(threading.get_ident())

    monkeypatch.setattr(loop, "Signals", Signalled)
    monkeypatch.setattr(training, "end_by", lambda number: None)
    monkeypatch.setattr(loop, "CHUNK_SECONDS", 0.0)
    found = all_fine(teams(2, lambda team: rawnn.train_many(
        **OPTIONS, lr=[0.1, 0.02], device="host", listener=Recorder(at), team=team)))
    assert [(many.interrupted, many.signal) for many in found] == [(True, 0), (True, 15)]
    assert [many.progress.epoch.tolist() for many in found] == [[2, 2]] * 2


def failing(act: Callable[[Team], Any], size: int = 2) -> list[str]:
    found = teams(size, act)
    assert all(isinstance(each, RawnnError) for each in found), found
    return [str(each) for each in found if each.speaks]


def test_ranks_that_differ_are_refused() -> None:
    def act(team: Team) -> Any:
        rows = X + team.rank
        return rawnn.train_many(**{**OPTIONS, "data": (rows, Y)}, device="host", team=team)

    said = failing(act)
    assert len(said) == 1
    assert re.search(r"rank 1 .* differs from rank 0 in the data set's t", said[0])
    said = failing(lambda team: rawnn.train_many(**OPTIONS, lr=[0.1, 0.2 + team.rank],
                                                 device="host", team=team))
    assert "differs from rank 0 in the networks: checksum" in said[0]


def test_a_rank_that_fails_is_named_and_the_checkpoint_is_said(tmp_path: Path) -> None:
    class Fail(rawnn.Listener):
        def __init__(self, team: Team) -> None:
            self._team = team

        def reported(self, report: Any) -> None:
            if report.epoch == 3 and self._team.rank == 1:
                raise DeviceError("its GPU has fallen off the bus")

    found = teams(2, lambda team: rawnn.train_many(
        **OPTIONS, device="host", lr=[0.1, 0.02], save=tmp_path / "a", listener=Fail(team),
        team=team))
    assert isinstance(found[1], DeviceError)
    assert isinstance(found[0], RanksError)
    assert re.match(r"rank 1 .* failed while training epoch 3: its GPU has fallen off the bus; .*"
                    r"rawnn-00000[23].safetensors is valid: continue with --resume ",
                    str(found[0]))


def test_ranks_take_a_gpu_each() -> None:
    said = failing(lambda team: rawnn.train_many(**OPTIONS, device="sim:0,1", team=team))
    assert said == ["device = 'sim:0,1': each rank takes one GPU; leave it out and start a rank "
                    "for each, or name GPUs without a launcher"]
    said = failing(lambda team: rawnn.train_many(**OPTIONS, device="gpu:all", team=team))
    assert "each rank takes one GPU" in said[0]
    with pytest.raises(ConfigError, match=r"give one of mpi4py"):
        rawnn.train_many(**OPTIONS, communicator=3)


def test_a_command_under_launch(tmp_path: Path, capfd: pytest.CaptureFixture[str],
                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.fspath(Path(rawnn.__file__).parents[1]))
    np.savez(tmp_path / "d.npz", x=X, y=Y)
    command = [sys.executable, "-m", "rawnn", "many", "--data", str(tmp_path / "d.npz"),
               "--layers", "6-12-3", "--epochs", "3", "--seeds", "3", "--vary", "lr=0.1,0.02",
               "--device", "host", "--json"]
    assert launcher.run([*command, str(tmp_path / "two.json")], 2, print) == 0
    lines = capfd.readouterr().out.splitlines()
    assert "ranks     2, started by rawnn launch" in lines
    assert sum(line.startswith("members ") for line in lines) == 1
    assert launcher.run([*command, str(tmp_path / "one.json")], 1, print) == 0
    one, two = (json.loads((tmp_path / name).read_text()) for name in ("one.json", "two.json"))
    assert one["history"] == two["history"]
    assert one["table"] == two["table"]
