"""`rawnn launch`: what ranks are given, and what becomes of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace

import pytest

from rawnn.distributed import launcher
from tests.cli.conftest import Rawnn

ROOT = Path(__file__).resolve().parents[2]


def script(text: str) -> list[str]:
    return [sys.executable, "-c", f"import os, sys, time, signal\n{text}"]


def test_ranks_get_what_torchrun_sets(tmp_path: Path) -> None:
    text = f"open(os.path.join({str(tmp_path)!r}, os.environ['RANK']), 'w').write(' '.join(" \
           "os.environ[n] for n in ('WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE'," \
           " 'MASTER_ADDR', 'MASTER_PORT')))"
    assert launcher.run(script(text), 3, print) == 0
    found = {path.name: path.read_text().split() for path in tmp_path.iterdir()}
    assert {rank: words[:4] for rank, words in found.items()} == {
        str(rank): ["3", str(rank), "3", "127.0.0.1"] for rank in range(3)}
    assert len({words[4] for words in found.values()}) == 1


@pytest.mark.parametrize("own", [None, "7"])
def test_ranks_share_the_cores_unless_the_user_says_how_many_threads(
    own: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher.os, "sched_getaffinity", lambda pid: set(range(9)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if own:
        monkeypatch.setenv("OMP_NUM_THREADS", own)
    text = f"open(os.path.join({str(tmp_path)!r}, os.environ['RANK']), 'w').write(" \
           "os.environ['OMP_NUM_THREADS'])"
    assert launcher.run(script(text), 2, print) == 0
    assert [path.read_text() for path in tmp_path.iterdir()] == [own or "4"] * 2
    assert launcher.threads_of(16) == 1


def test_the_status_is_that_of_the_rank_that_failed() -> None:
    assert launcher.run(script("sys.exit(7 if os.environ['RANK'] == '1' else 0)"), 2, print) == 7


def test_ranks_that_do_not_end_in_time_are_ended(capsys: pytest.CaptureFixture[str]) -> None:
    assert launcher.run(script("time.sleep(1000 * int(os.environ['RANK']))"), 2, print, 0.7) \
        == launcher.TIMED_OUT
    assert capsys.readouterr().out.splitlines() == ["1 rank had not ended after 0.7 s: ended"]


def test_a_rank_that_is_killed_is_named_and_the_others_are_ended(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "PATIENCE", 0.3)
    text = "os.kill(os.getpid(), signal.SIGKILL) if os.environ['RANK'] == '2' else time.sleep(1000)"
    assert launcher.run(script(text), 3, print) == 128 + 9
    assert capsys.readouterr().out.splitlines() == [
        "rank 2 was ended by SIGKILL",
        "2 ranks did not end within 0.3 s of it: ended"]


def test_signals_reach_the_ranks(tmp_path: Path) -> None:
    code = ("import sys; from rawnn.distributed.launcher import run; "
            "sys.exit(run(sys.argv[1:], 2, print))")
    text = f"signal.signal(signal.SIGTERM, lambda *a: sys.exit(5))\n" \
           f"open({str(tmp_path)!r} + '/' + os.environ['RANK'], 'w')\ntime.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code, *script(text)],
                               env={**os.environ, "PYTHONPATH": str(ROOT)})
    until = monotonic() + 30
    while len(list(tmp_path.iterdir())) < 2 and monotonic() < until:
        sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 5


def test_two_ranks_on_the_host_write_one_result(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    done = subprocess.run(
        [sys.executable, "-m", "rawnn", "launch", "-n", "2", "--device", "host", "--dataset",
         "synthetic", "--epochs", "2", "--opt", "preload", "--json", str(target)],
        capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT), "RAWNN_CACHE": str(tmp_path / "cache")})
    assert done.returncode == 0, done.stderr
    assert "ranks     2, started by rawnn launch" in done.stdout
    assert done.stdout.count("test accuracy") == 1
    result = json.loads(target.read_text())
    assert "nccl" in result["toggles"]
    assert [each["device"] for each in result["facts"]["ranks"]] == ["host", "host"]


def test_launch_does_not_launch_itself(rawnn: Rawnn) -> None:
    done = rawnn("launch", "-n", "2", "launch", "-n", "2")
    assert done.status == 2
    assert "launch starts ranks of another command" in done.err


def test_one_process_with_nccl_says_that_it_changes_nothing(rawnn: Rawnn) -> None:
    done = rawnn("--device", "host", "--dataset", "synthetic", "--epochs", "1", "--opt",
                 "preload,nccl")
    assert done.status == 0
    assert "nccl changes nothing in a run of one process" in done.err


class Rank:
    """A process that ends with `status` at a time; None: it goes on until it is killed."""

    def __init__(self, clock: list[float], status: int | None = None, at: float = 0.0,
                 is_gone: bool = False) -> None:
        self.clock, self.status, self.at, self.is_gone = clock, status, at, is_gone
        self.signals: list[int] = []
        self.killed = False

    def poll(self) -> int | None:
        if self.killed:
            return -signal.SIGKILL
        return self.status if self.status is not None and self.clock[0] >= self.at else None

    def send_signal(self, number: int) -> None:
        if self.is_gone:
            raise ProcessLookupError
        self.signals.append(number)

    def kill(self) -> None:
        self.killed = True

    def wait(self) -> None:
        pass


@pytest.mark.parametrize("is_terminal", [False, True])
def test_all_ranks_get_what_asks_the_launcher_to_end(is_terminal: bool,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """But a terminal's Ctrl-C, which it has sent to them, and what is ignored here."""
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: is_terminal))
    ranks, told = [Rank([0.0]), Rank([0.0], is_gone=True), Rank([0.0])], list[int]()
    numbers = [getattr(signal, name) for name in launcher.FORWARDED]
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    ignored = signal.SIGHUP
    assert ignored in numbers
    try:
        signal.signal(ignored, signal.SIG_IGN)
        with launcher._forwarding(ranks, told.append):  # type: ignore[arg-type]
            for number in numbers:
                signal.raise_signal(number)
        assert [signal.getsignal(number) for number in numbers] == [
            signal.SIG_IGN if number == ignored else signal.SIG_DFL for number in numbers]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    heard = [number for number in numbers if number != ignored]
    assert told == heard
    sent = [number for number in heard if not (is_terminal and number == signal.SIGINT)]
    assert [rank.signals for rank in ranks] == [sent, [], sent]


@pytest.mark.parametrize(("ends", "seconds", "status", "said", "took"), [
    ([(0, 0), (0, 3)], 99, 0, [], 3),
    ([(0, 0), (7, 1), (4, 2)], 99, 7, [], 2),
    ([(0, 4), (-9, 1)], 99, 137, ["rank 1 was ended by SIGKILL"], 4),
    ([(-15, 2), (-9, 1)], 99, 137, ["rank 1 was ended by SIGKILL"], 2),
    ([(3, 1), (None, 0), (None, 0)], 999, 3, ["2 ranks did not end within {patience:g} s of it: "
                                              "ended"], 1 + launcher.PATIENCE),
    ([(0, 1), (None, 0)], 6, launcher.TIMED_OUT, ["1 rank had not ended after 6 s: ended"], 6)])
def test_the_first_that_failed_says_the_status(
        monkeypatch: pytest.MonkeyPatch, ends: list[tuple[int | None, float]], seconds: float,
        status: int, said: list[str], took: float) -> None:
    clock, heard = [0.0], list[str]()

    def later(step: float) -> None:
        clock[0] += step

    monkeypatch.setattr(launcher, "monotonic", lambda: clock[0])
    monkeypatch.setattr(launcher, "sleep", later)
    ranks = [Rank(clock, *end) for end in ends]
    assert launcher._wait(ranks, heard.append, seconds) == status  # type: ignore[arg-type]
    assert heard == [text.format(patience=launcher.PATIENCE) for text in said]
    assert clock[0] == pytest.approx(took, abs=0.1)
    assert [rank.killed for rank in ranks] == [end[0] is None for end in ends]
