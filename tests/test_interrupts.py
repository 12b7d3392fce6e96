"""Signals during training: what is kept, when it ends, and what becomes of the handlers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rawnn.common import interrupts
from rawnn.common.interrupts import Signals
from rawnn.common.listener import Listener
from rawnn.engine.checkpoint import read
from rawnn.engine.result import Result
from rawnn.engine.runners.gpu import GpuRunner
from rawnn.engine.runners.host import HostRunner
from rawnn.engine.training import train
from tests.engine import random_dataset, same_parameters

ROOT = Path(__file__).resolve().parents[1]
DATA = random_dataset(features=12, classes=4, train=40, test=13)
ENDING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def go(**changed: Any) -> Result:
    return train(data=DATA, **{"layers": (12, 5, 4), "epochs": 6, "batch": 8, "device": "host",
                               "optimizer": "adam", "shuffle": True, **changed})


def same(one: Result, other: Result) -> None:
    same_parameters(other, one)
    assert one.test_loss == other.test_loss


class Sender(Listener):
    """Sends this process signals behind an epoch."""

    def __init__(self, epoch: int, *numbers: signal.Signals) -> None:
        self._epoch, self._numbers = epoch, numbers
        self.messages: list[str] = []

    def notify(self, message: str) -> None:
        self.messages.append(message)

    def epoch_done(self, epoch: int) -> None:
        if epoch == self._epoch:
            for number in self._numbers:
                signal.raise_signal(number)


@pytest.fixture
def long_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every epoch counts as long."""
    monkeypatch.setattr("rawnn.engine.loop.LONG_SECONDS", 0.0)


def broken_off(monkeypatch: pytest.MonkeyPatch, epoch: int, *numbers: signal.Signals) -> None:
    """Send signals in the middle of an epoch, which then takes longer than a test may."""
    for runner in (HostRunner, GpuRunner):
        whole, count = runner.epoch, [0]

        def half(self: Any, measured: bool, whole: Any = whole, count: list[int] = count) -> None:
            count[0] += 1
            whole(self, measured)
            if count[0] == epoch:
                for number in numbers:
                    signal.raise_signal(number)
                for _ in range(100_000):
                    time.sleep(0.01)

        monkeypatch.setattr(runner, "epoch", half)


def test_ctrl_c_ends_after_the_epoch_in_hand(tmp_path: Path) -> None:
    sender = Sender(3, signal.SIGINT)
    result = go(listener=sender, save=tmp_path, save_every=10)
    assert result.interrupted
    assert [r.epoch for r in result.history] == [1, 2, 3]
    assert [path.name for path in tmp_path.iterdir()] == ["rawnn-000003.safetensors"]
    assert sender.messages[0].startswith(
        "Ctrl-C: training ends after this epoch; once more, or after")
    same(go(resume=tmp_path), go())


@pytest.mark.usefixtures("long_epochs")
@pytest.mark.parametrize("device", ["host", "sim"])
@pytest.mark.parametrize("opt", ["best", "none"])
def test_a_second_signal_ends_at_once_with_the_last_epochs_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, opt: str
) -> None:
    straight = go(device=device, opt=opt)
    with monkeypatch.context() as patched:
        broken_off(patched, 3, signal.SIGINT, signal.SIGINT)
        result = go(device=device, opt=opt, save=tmp_path, save_every=10)
    assert result.interrupted
    assert [r.epoch for r in result.history] == [1, 2]
    assert result.test_loss == result.history[-1].test_loss
    assert [path.name for path in tmp_path.iterdir()] == ["rawnn-000002.safetensors"]
    kept = read(tmp_path / "rawnn-000002.safetensors").parameters
    assert all(np.array_equal(kept[name], array) for name, array in result.parameters.items())
    same(go(device=device, opt=opt, resume=tmp_path), straight)


def test_the_time_over_ends_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("rawnn.engine.loop.LONG_SECONDS", 0.0)
    monkeypatch.setattr("rawnn.engine.loop.Signals", lambda notify: Signals(notify, grace=0.2))
    broken_off(monkeypatch, 3, signal.SIGINT)
    result = go(save=tmp_path, save_every=10)
    assert [r.epoch for r in result.history] == [1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["rawnn-000002.safetensors"]


def test_the_first_epoch_of_a_continued_run_goes_back_to_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = go(save=tmp_path, epochs=2)
    broken_off(monkeypatch, 1, signal.SIGINT, signal.SIGINT)
    result = go(resume=tmp_path, epochs=6)
    assert result.interrupted
    assert (result.history, result.epoch_ms, result.broken_epoch) == ([], [], 0)
    same_parameters(result, before)
    assert np.isnan(result.test_loss)  # measuring it would take its time


@pytest.fixture
def no_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring the test set fails."""
    def refused(self: Any) -> None:
        raise AssertionError("the test set is measured")

    for runner in (HostRunner, GpuRunner):
        monkeypatch.setattr(runner, "evaluate", refused)


@pytest.mark.usefixtures("no_evaluation")
@pytest.mark.parametrize("device", ["host", "sim"])
def test_a_second_signal_in_the_first_epoch_ends_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    sender = Sender(9)
    broken_off(monkeypatch, 1, signal.SIGINT, signal.SIGINT)
    result = go(device=device, save=tmp_path, listener=sender)
    assert result.interrupted
    assert (result.broken_epoch, result.epoch_ms, result.history) == (1, [], [])
    assert np.isnan([result.test_loss, result.test_accuracy]).all()
    assert "interrupted in epoch 1" in repr(result)
    assert sender.messages[-1] == (
        "epoch 1 was aborted: the parameters are those in the middle of it, and their test loss "
        "was not measured")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("long_epochs", "no_evaluation")
def test_what_was_not_reported_is_not_measured_where_it_ends_at_once(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_off(monkeypatch, 3, signal.SIGINT, signal.SIGINT)
    result = go(opt="report=6")
    monkeypatch.undo()
    assert (result.broken_epoch, len(result.epoch_ms), result.history) == (0, 2, [])
    assert np.isnan(result.test_loss)
    same_parameters(result, go(epochs=2))


def test_short_epochs_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "LONG_SECONDS", 60.0)
    whole = HostRunner.epoch

    def twice(self: Any, measured: bool) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        whole(self, measured)

    monkeypatch.setattr(HostRunner, "epoch", twice)
    result = go()
    assert [r.epoch for r in result.history] == [1]
    monkeypatch.undo()
    same(result, go(epochs=1))


@pytest.mark.parametrize("inside", [False, True])
def test_the_alarm_breaks_off_an_epoch_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    """While a checkpoint is written behind a short epoch, the alarm of its two signals is no
    third one, which would end the process."""
    monkeypatch.setattr(interrupts, "LONG_SECONDS", 0.2)
    broken = False
    with Signals(lambda message: None) as signals:
        signals.inside = True
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        signals.inside = inside
        end = time.monotonic() + 0.6
        try:
            while time.monotonic() < end:
                time.sleep(0.01)
        except interrupts.EpochAborted:
            broken = True
    assert broken == inside


def test_handlers_are_as_before_and_those_of_the_process_are_left_alone() -> None:
    before = [signal.getsignal(number) for number in ENDING]
    received: list[int] = []
    seen: list[Any] = []

    class Looker(Listener):
        def epoch_done(self, epoch: int) -> None:
            seen.append([signal.getsignal(number) for number in ENDING])

    go(listener=Looker(), epochs=1)
    assert all(now not in before for now in seen[0])
    assert [signal.getsignal(number) for number in ENDING] == before
    own = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        result = go(listener=Sender(2, signal.SIGTERM, signal.SIGHUP))
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, own)
        signal.signal(signal.SIGHUP, ignored)
    assert received == [signal.SIGTERM]
    assert not result.interrupted


def test_training_in_another_thread_takes_no_signal() -> None:
    before = [signal.getsignal(number) for number in ENDING]
    seen: list[Any] = []

    class Looker(Listener):
        def epoch_done(self, epoch: int) -> None:
            seen.append([signal.getsignal(number) for number in ENDING])

    thread = threading.Thread(target=lambda: go(listener=Looker(), epochs=1))
    thread.start()
    thread.join(60)
    assert seen == [before]


SLOW = """
import sys, time
from rawnn.engine.runners.host import HostRunner
whole = HostRunner.epoch
def slow(self, measured):
    whole(self, measured)
    for _ in range(100):
        time.sleep(0.01)
HostRunner.epoch = slow
"""
ARGUMENTS = ["--device", "host", "--dataset", "synthetic", "--epochs", "30", "--batch", "500"]


def started(code: str) -> subprocess.Popen[str]:
    """A process that trains in epochs of 1 s, behind the first row that it prints."""
    process = subprocess.Popen([sys.executable, "-u", "-c", SLOW + code], text=True, cwd=ROOT,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert process.stdout is not None
    for line in process.stdout:
        if line.split()[:1] == ["1"]:
            break
    return process


@pytest.mark.parametrize("number", ENDING)
def test_the_command_saves_and_names_the_one_that_goes_on(
    number: signal.Signals, tmp_path: Path
) -> None:
    kept, found = tmp_path / "a b", tmp_path / "r.json"
    arguments = [*ARGUMENTS, "--save", str(kept), "--save-every", "9", "--json", str(found)]
    process = started(f"from rawnn.cli import run\nsys.exit(run({arguments!r}))")
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    done = re.search(r"interrupted     after ([1-5]) of 30 epochs", out)
    assert done is not None, out
    assert f"continue with: python -m rawnn --resume '{kept}'" in out
    assert [path.name for path in kept.iterdir()] == [f"rawnn-00000{done[1]}.safetensors"]
    assert '"interrupted": true' in found.read_text()


def test_the_command_without_save_says_what_was_reached() -> None:
    process = started(f"from rawnn.__main__ import command\nsys.argv[1:] = {ARGUMENTS!r}\n"
                      f"command()")
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert re.search("after [1-5] of 30 epochs", out)
    assert "test accuracy" in out
    assert "nothing is kept without --save" in out
    assert "Traceback" not in err


IN_THE_EPOCH = """
import sys, time
from rawnn.cli import run
from rawnn.engine.runners.host import HostRunner
def slow(self, measured):
    print('in the epoch', flush=True)
    for _ in range(100_000):
        time.sleep(0.01)
HostRunner.epoch = slow
HostRunner.evaluate = lambda self: time.sleep(1000)
"""


def test_the_command_ends_at_once_in_the_first_epoch() -> None:
    code = IN_THE_EPOCH + f"sys.exit(run({ARGUMENTS!r}))"
    process = subprocess.Popen([sys.executable, "-c", code], text=True, cwd=ROOT,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert process.stdout is not None
    for line in process.stdout:
        if line == "in the epoch\n":
            break
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 130, err
    assert "interrupted     in the middle of epoch 1 of 30; nothing is kept" in out
    assert "test loss       not measured, as the run was ended at once" in out
    assert "after 0 of" not in out + err
    assert "accuracy" not in out


def test_sigterm_ends_a_script_behind_its_checkpoint(tmp_path: Path) -> None:
    process = started(
        "import rawnn\n"
        "class Rows(rawnn.Listener):\n"
        "    def reported(self, report): print(report.epoch)\n"
        "rawnn.train(dataset='synthetic', device='host', epochs=30, batch=500, "
        f"listener=Rows(), save={os.fspath(tmp_path)!r}, save_every=9)\n"
        "print('not reached')")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM, err
    assert "not reached" not in out
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("replaced", ENDING)
def test_a_handler_that_was_set_meanwhile_stays(replaced: signal.Signals) -> None:
    """Of the program's own code, within training; the others are as before."""
    def own(number: int, frame: Any) -> None:
        """The program's."""

    before = {number: signal.getsignal(number) for number in ENDING}
    try:
        with Signals(lambda text: None):
            signal.signal(replaced, own)
        after = {number: signal.getsignal(number) for number in ENDING}
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert after == {**before, replaced: own}
