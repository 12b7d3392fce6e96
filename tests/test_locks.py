"""One writer for a directory of checkpoints: the second is refused before it trains, readers are
not, and a process that was killed holds nothing."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rawnn.common.errors import ConfigError
from rawnn.common.listener import Listener
from rawnn.common.locks import NAME, DirectoryLock, DirectoryLocks
from rawnn.engine.callbacks import Checkpoints, EarlyStopping
from rawnn.engine.checkpoint import find, listed
from rawnn.engine.config import Config
from rawnn.engine.model import Model
from rawnn.engine.result import Result
from rawnn.engine.session import Session
from rawnn.engine.training import train
from tests.engine import random_dataset

ROOT = Path(__file__).resolve().parents[1]
DATA = random_dataset(features=12, classes=4, train=40, test=13)
REFUSED = r"another run writes to {} \(pid {} on {}, since 2[0-9]{{3}}-[^)]*\): wait until it " \
          r"has ended, or save to another directory with --save"


def go(*listeners: Listener, **changed: Any) -> Result:
    return train(data=DATA, listener=listeners, **{
        "layers": (12, 5, 4), "epochs": 3, "batch": 8, "device": "host", **changed})


def refused(directory: Path, pid: int) -> str:
    return REFUSED.format(re.escape(str(directory)), pid, re.escape(socket.gethostname()))


class Act(Listener):
    """Calls a function behind an epoch."""

    def __init__(self, act: Callable[[], object], epoch: int = 1) -> None:
        self._act, self._epoch = act, epoch
        self.messages: list[str] = []

    def notify(self, message: str) -> None:
        self.messages.append(message)

    def settled(self, epoch: int) -> None:
        if epoch == self._epoch:
            self._act()


def in_another_process(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rawnn", "--device", "host", "--dataset", "synthetic", "--epochs",
         "9", *words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)})


@pytest.mark.parametrize("resumed", [False, True])
def test_a_second_writer_is_refused_before_it_trains(tmp_path: Path, resumed: bool) -> None:
    more: dict[str, Any] = {"save": str(tmp_path)}
    if resumed:
        go(**more)
        more = {"resume": str(tmp_path), "epochs": 6}
    received: list[str] = []
    seen: list[int] = []

    class Rows(Listener):
        def notify(self, message: str) -> None:
            received.append(message)

        def started(self, session: Session) -> None:
            seen.append(1)

    def second() -> None:
        with pytest.raises(ConfigError, match=refused(tmp_path, os.getpid())):
            go(Rows(), **more)
        done = in_another_process(tmp_path, *(
            f"--{name}={value}" for name, value in more.items() if name != "epochs"))
        assert (done.returncode, done.stdout) == (2, "")
        assert re.fullmatch("rawnn: error: " + refused(tmp_path, os.getpid()) + "\n", done.stderr)

    result = go(Act(second, 4 if resumed else 1), **more)
    assert (received, seen) == ([], [])
    assert len(result.epoch_ms) == 3
    assert [epoch for epoch, _ in listed(tmp_path)] == list(range(1, 7 if resumed else 4))
    assert not (tmp_path / NAME).exists()


@pytest.mark.parametrize("listener", [Checkpoints, lambda path: EarlyStopping(directory=path)])
def test_listeners_of_the_users_lock_as_well(
        tmp_path: Path, listener: Callable[[Path], Listener]) -> None:
    def second() -> None:
        for more in ({"save": str(tmp_path)}, {}):
            with pytest.raises(ConfigError, match=refused(tmp_path, os.getpid())):
                go(*([] if more else [listener(tmp_path)]), **more)

    assert len(go(listener(tmp_path), Act(second)).epoch_ms) == 3


def test_a_run_is_not_refused_by_itself_under_another_name(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link to the directory, a link to its parent and a relative path all name it."""
    real = tmp_path / "real" / "saved"
    real.mkdir(parents=True)
    (tmp_path / "link").symlink_to(real)
    (tmp_path / "parent").symlink_to(real.parent)
    monkeypatch.chdir(tmp_path)
    names = ("real/saved", real, "link", tmp_path / "parent" / "saved", "parent/../real/saved/.")
    with DirectoryLocks() as locks:
        for name in names:
            assert locks.hold(name, print)
        with pytest.raises(ConfigError, match="another run writes to link"), \
                DirectoryLocks() as others:
            others.hold("link", print)
        assert locks.hold(tmp_path, print)  # one that is not the same
        assert (tmp_path / NAME).exists()
    assert not (real / NAME).exists()
    assert not (tmp_path / NAME).exists()
    assert len(go(EarlyStopping(directory="link"), save=str(real)).epoch_ms) == 3


def test_readers_do_not_wait(tmp_path: Path) -> None:
    loaded: list[Any] = []

    def read() -> None:
        loaded.append(Model.load(tmp_path).network)
        loaded.append(find(tmp_path, print)[1].epoch)
        loaded.append(go(resume=str(tmp_path), save=str(tmp_path / "other")).resumed_epochs)

    go(Act(read, 2), save=str(tmp_path))
    assert loaded[1:] == [1, 1]
    assert [epoch for epoch, _ in listed(tmp_path / "other")] == [2, 3]


def test_a_run_that_fails_frees_the_directory(tmp_path: Path) -> None:
    def fails() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        go(Act(fails, 2), save=str(tmp_path))
    with pytest.raises(ConfigError):
        Session(Config(layers=(3, 2), save=str(tmp_path / "b")), data=DATA)
    go(save=str(tmp_path / "b"))
    assert go(resume=str(tmp_path)).resumed_epochs == 1


HOLD = """
import sys, time
from rawnn.common.locks import DirectoryLock
lock = DirectoryLock(sys.argv[1], print)
print("locked", flush=True)
time.sleep(60)
"""


@contextmanager
def holder(directory: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(directory)], cwd=ROOT, text=True,
                               stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.communicate()


def test_a_killed_process_frees_the_directory(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        with pytest.raises(ConfigError, match=refused(tmp_path, process.pid)):
            go(save=str(tmp_path))
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (tmp_path / NAME).exists()  # a file that nobody holds excludes nobody
        go(save=str(tmp_path))
    assert not (tmp_path / NAME).exists()


def test_a_file_that_was_deleted_meanwhile_is_no_lock(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening the file and locking it, its holder deletes it and another makes a new one:
    both would hold a lock, one of them on a file without a name."""
    other: list[DirectoryLock] = []
    whole = fcntl.flock

    def late(file: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", whole)
        (tmp_path / NAME).unlink()
        other.append(DirectoryLock(tmp_path, print))
        whole(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(ConfigError, match="another run writes to"):
        DirectoryLock(tmp_path, print)
    other[0].release()
    DirectoryLock(tmp_path, print).release()


def test_a_file_system_without_locks_is_said_once(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(file: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    live = tmp_path / ".rawnn-000001.safetensors.x.partial"
    live.write_bytes(b"half")  # of a run that may be alive, as nothing excludes it
    listener = Act(lambda: None)
    assert len(go(listener, save=str(tmp_path), patience=5).epoch_ms) == 3
    messages = [message for message in listener.messages if "locked" in message]
    assert messages == [f"{tmp_path} cannot be locked (No locks available): start no other run "
                        f"that saves there"]
    assert live.exists()
    monkeypatch.undo()
    go(resume=str(tmp_path), epochs=4)
    assert not live.exists()


def test_rank_0_locks_for_its_team(tmp_path: Path) -> None:
    """The ranks of one run do not refuse each other, and another team is refused in one
    sentence."""
    command = [sys.executable, "-m", "rawnn", "launch", "-n", "2", "train", "--device", "host",
               "--dataset", "synthetic", "--epochs", "500", "--patience", "400", "--save",
               str(tmp_path), "--save-every", "500", "--quiet"]
    more = {"cwd": ROOT, "text": True, "env": {**os.environ, "PYTHONPATH": str(ROOT),
                                               "OMP_NUM_THREADS": "1"}}
    first = subprocess.Popen(command, stderr=subprocess.PIPE, **more)  # type: ignore[call-overload]
    end = time.monotonic() + 60
    while not (tmp_path / "best.safetensors").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    done = subprocess.run(command, timeout=60, check=False,  # type: ignore[call-overload]
                          capture_output=True, **more)
    assert done.returncode == 2
    assert re.fullmatch("rawnn: error: " + refused(tmp_path, 0).replace("pid 0", "pid [0-9]+")
                        + "\n", done.stderr)
    assert first.poll() is None
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=60)
    assert listed(tmp_path)
