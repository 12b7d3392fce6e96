"""Which trainer a group gets: one kernel of a GPU, ordinary runs there, or worker processes."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rawnn
from rawnn.common.errors import RawnnError
from rawnn.many import host

RNG = np.random.default_rng(5)
X = RNG.normal(size=(96, 6)).astype(np.float32)
Y = ((X[:, 0] * X[:, 1] > 0).astype(np.int64) + (X[:, 2] > 1)).astype(np.int64)
OPTIONS: dict[str, Any] = {"data": (X, Y), "layers": (6, 12, 3), "batch": 16, "epochs": 3,
                           "shuffle": True}


def same(one: rawnn.Many, other: rawnn.Many) -> bool:
    return all(np.array_equal(a.model.parameters[n], b.model.parameters[n])
               for a, b in zip(one, other, strict=True) for n in a.model.parameters)


@pytest.mark.usefixtures("unsupported")
def test_what_no_kernel_trains_trains_launch_by_launch_and_says_why() -> None:
    many = rawnn.train_many(**OPTIONS, lr=[0.1, 0.02], device="sim", opt="preload,fuse")
    assert any("2 members of 6-12-3 train launch by launch, 4 side by side at most, since no "
               "kernel trains them at once: the step does not fit the chip" in note
               for note in many.notes)
    for member in many:
        single = rawnn.train(member.config, data=member.dataset)
        assert all(np.array_equal(single.parameters[n], member.model.parameters[n])
                   for n in single.parameters)
    assert many[0].sharding == ""


@pytest.mark.usefixtures("unsupported")
def test_the_sharding_of_ordinary_runs_is_stored(tmp_path: Path) -> None:
    many = rawnn.train_many(**OPTIONS, lr=[0.1], device="sim", sharding="1x1:128:FFF",
                            save=str(tmp_path / "a"))
    assert many[0].sharding == many[0].config.sharding == "1x1:128:FFF"
    resumed = rawnn.train(resume=f"{tmp_path / 'a'}#0", data=(X, Y), epochs=4)
    assert resumed.sharding == "1x1:128:FFF"


def test_members_of_one_kernel_are_single_runs_of_its_sharding(tmp_path: Path) -> None:
    many = rawnn.train_many(**OPTIONS, lr=[0.1, 0.02], folds=2, device="sim",
                            save=str(tmp_path / "a"))
    assert many[0].sharding
    for member in many:
        single = rawnn.train(member.config, data=member.dataset)
        assert single.sharding == member.sharding
        assert all(np.array_equal(single.parameters[n], member.model.parameters[n])
                   for n in single.parameters)
        assert [r.train_loss for r in single.history] == [r.train_loss for r in member.history]
        assert np.allclose([r.test_loss for r in single.history],
                           [r.test_loss for r in member.history], rtol=1e-6)


@pytest.mark.parametrize(("first", "second"), [("host", "sim"), ("sim", "host")])
def test_a_run_goes_on_on_another_device(tmp_path: Path, first: str, second: str) -> None:
    options = {**OPTIONS, "lr": [0.1, 0.02], "shuffle": False}  # nothing that needs a clock
    rawnn.train_many(**options, device=first, save=str(tmp_path / "a"))
    resumed = rawnn.train_many(resume=tmp_path / "a", data=(X, Y), epochs=6, device=second)
    whole = rawnn.train_many(**{**options, "epochs": 6}, device=second)
    assert np.allclose(resumed.scores(), whole.scores(), rtol=1e-4)


@pytest.mark.parametrize("workers", ["1", "3"])
def test_results_do_not_depend_on_the_number_of_workers(workers: str,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "WORTH_SECONDS", 0.0)
    alone = rawnn.train_many(**OPTIONS, lr=[0.1, 0.02], seed=[0, 1], device="host")
    monkeypatch.setenv("RAWNN_WORKERS", workers)
    several = rawnn.train_many(**OPTIONS, lr=[0.1, 0.02], seed=[0, 1], device="host")
    assert np.array_equal(alone.scores(), several.scores())
    assert same(alone, several)


@pytest.mark.parametrize("seeds", [[0], [0, 1]])
def test_groups_share_the_workers(seeds: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "WORTH_SECONDS", 0.0)
    options = {**OPTIONS, "layers": [(6, 12, 3), (6, 8, 3), (6, 3)], "seed": seeds,
               "device": "host", "patience": 2}
    monkeypatch.setenv("RAWNN_WORKERS", "1")
    alone = rawnn.train_many(**options)
    monkeypatch.setenv("RAWNN_WORKERS", "2")
    processes = []
    original = host._Worker.__init__

    def noted(self: Any, *arguments: Any) -> None:
        original(self, *arguments)
        processes.append(self._process)

    monkeypatch.setattr(host._Worker, "__init__", noted)
    several = rawnn.train_many(**options)
    assert len(alone.stored.groups) == 3
    assert np.array_equal(alone.scores(), several.scores(), equal_nan=True)
    assert same(alone, several)
    assert len(processes) == 2
    assert all(process.poll() is not None for process in processes)


def test_a_worker_that_is_killed_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "WORTH_SECONDS", 0.0)
    monkeypatch.setenv("RAWNN_WORKERS", "3")
    started = []
    original = host._Worker.__init__

    def noted(self: Any, *arguments: Any) -> None:
        original(self, *arguments)
        started.append(self._process.pid)

    monkeypatch.setattr(host._Worker, "__init__", noted)

    class Kill(rawnn.Listener):
        def reported(self, report: Any) -> None:
            os.kill(started[0], signal.SIGKILL)

    with pytest.raises(RawnnError, match=r"a worker process that trained members ended \(-9\): is "
                                         r"there memory for 3 of them\? RAWNN_WORKERS=1 trains "
                                         r"without any"):
        rawnn.train_many(**{**OPTIONS, "epochs": 50}, lr=[0.1, 0.02, 0.3], device="host",
                         listener=Kill())


def test_a_bad_number_of_workers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAWNN_WORKERS", "many")
    with pytest.raises(RawnnError, match="RAWNN_WORKERS = 'many'"):
        rawnn.train_many(**OPTIONS, lr=[0.1, 0.02], device="host")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_second_signal_gives_up_the_epochs_in_hand_and_nothing_more(
        workers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "WORTH_SECONDS", 0.0)
    monkeypatch.setenv("RAWNN_WORKERS", workers)
    options = {**OPTIONS, "layers": (6, 1200, 1200, 3), "batch": 2, "epochs": 40}

    timers = [threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
              for delay in (0.1, 0.2)]

    class Twice(rawnn.Listener):
        def reported(self, report: Any) -> None:
            if report.epoch == 1:
                for timer in timers:
                    timer.start()

    many = rawnn.train_many(**options, lr=[0.1, 0.02], device="host", listener=Twice())
    for timer in timers:  # a run that the first one ended may be over before the second
        timer.cancel()
    assert many.interrupted
    assert all(1 <= member.epochs < 40 for member in many)
    single = rawnn.train(**{**options, "epochs": many[1].epochs}, lr=0.02, device="host")
    assert all(np.array_equal(single.parameters[n], many[1].model.parameters[n])
               for n in single.parameters)
