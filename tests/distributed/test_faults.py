"""What goes wrong on one rank ends all of them soon, with one sentence that names the rank."""

from __future__ import annotations

import errno
import math
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rawnn.common.errors import ConfigError, RanksError
from rawnn.distributed import RankContext, Team
from rawnn.distributed import team as team_module
from rawnn.distributed.wire import Wire
from rawnn.engine import parallel
from rawnn.engine.checkpoint import listed
from rawnn.engine.session import Session
from tests.distributed.runs import free_port, teams
from tests.slices import sliced
from tests.together import all_fine

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = """import sys
from rawnn.cli.screen import say
from rawnn.distributed import launcher
launcher.PATIENCE = 150  # ranks that do not end by themselves are slower than a test may be
sys.exit(launcher.run(sys.argv[2:], int(sys.argv[1]), say))"""


def started(ranks: int, *words: str, **environ: str) -> tuple[int, str, list[str]]:
    """Status, output and what was said (tracebacks aside) of ranks of faulty.py."""
    done = subprocess.run(
        [sys.executable, "-c", LAUNCH, str(ranks), sys.executable, "-m", "tests.distributed.faulty",
         *words], capture_output=True, text=True, timeout=200, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environ})
    return done.returncode, done.stdout, [line for line in done.stderr.splitlines()
                                          if line.startswith("rawnn: ")]


class Silent:
    """A connection that ends in an error."""

    def __init__(self, error: OSError) -> None:
        self._error = error

    def recv(self, count: int) -> bytes:
        raise self._error

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


def test_a_host_that_is_gone_is_no_message_that_is_late() -> None:
    """Both are a TimeoutError; seen with two network namespaces and a link taken down."""
    late, gone = (Wire(Silent(error)) for error in (  # type: ignore[arg-type]
        TimeoutError("timed out"), TimeoutError(errno.ETIMEDOUT, "Connection timed out")))
    with pytest.raises(TimeoutError):
        late.receive(0.1)
    with pytest.raises(EOFError):
        gone.receive()


@pytest.mark.parametrize(("fault", "status", "messages"), sliced([
    ("killed", 137, ["rank 1 was ended by SIGKILL",
                        "ended without a word: it was last heard of training epoch 2"]),
    ("raises", 1, ["failed while training epoch 2: the disk is full"]),
    ("option", 2, ["differs from rank 0 in the option lr: 0.2, not 0.1"]),
    ("bug", 1, ["failed while training epoch 2: a mistake"]),
    ("leaves", 1, ["ended without a word: it was last heard of training epoch 2"]),
    ("nan", 1, ["the loss became nan at step 0 of epoch 3, first on rank 1"]),
    ("data", 1, ["differs from rank 0 in the data set's t"]),
], 2))
def test_a_fault_of_one_rank_is_one_sentence(fault: str, status: int, messages: list[str],
                                             tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    code, _, lines = started(3, fault, f"save={folder}")
    errors = [line for line in lines if line.startswith("rawnn: error: ")]
    assert len(errors) == 1, lines
    assert "rank 1" in errors[0]
    assert not any("did not end within" in line for line in lines), lines
    for each in messages:
        assert any(each in line for line in lines), lines
    assert code in (status, 1)
    if fault in ("killed", "raises", "bug", "leaves"):
        from rawnn.engine.checkpoint import read

        assert listed(folder)
        assert all(read(path).epoch == epoch for epoch, path in listed(folder))
        assert [path.name for path in folder.iterdir() if "tmp" in path.name] == []


@pytest.mark.parametrize("returns", [True, False])
@pytest.mark.parametrize(("rank", "lost", "speaks"), [
    (0, None, True), (1, None, False), (0, 2, True), (1, 2, False), (1, 0, True), (2, 0, False)])
def test_a_guarded_process_has_a_while_to_return_and_is_ended_then(
        monkeypatch: pytest.MonkeyPatch, rank: int, lost: int | None, speaks: bool,
        returns: bool) -> None:
    """A rank that failed itself (none is `lost`) has nothing to notice: what waits for it is
    aborted at once. Rank 0 says why, or rank 1 where rank 0 is lost."""
    events: list[Any] = []
    ended = threading.Event()

    class Closed(threading.Event):
        def wait(self, seconds: float | None = None) -> bool:
            is_first = not events
            events.append(seconds)
            if is_first:
                return False
            assert aborted.wait(10)
            if returns:
                ended.set()
            return returns

    def leave(status: int) -> None:
        events.append(("ended", status))
        ended.set()

    aborted, written = threading.Event(), []
    monkeypatch.setattr(team_module.os, "_exit", leave)
    monkeypatch.setattr(team_module.os, "write", lambda to, text: written.append((to, text)))
    alone = Team(RankContext(0, 1, 0, 1, "a test", "127.0.0.1", free_port(), 10.0, secret="s"), {},
                 guard=True)
    alone._closed, alone.rank = Closed(), rank
    alone.on_failure(lambda: (events.append("aborted"), aborted.set()))
    if lost is None:
        alone.fail(ValueError("a mistake"))
    else:
        alone._lost(f"rank {lost} is gone", silent=lost == 0)
    assert ended.wait(10)
    first = 0.0 if lost is None else team_module.NOTICE
    assert events[0] == first
    assert sorted(map(str, events[1:3])) == sorted(["aborted", str(team_module.GRACE)])
    assert events[3:] == ([] if returns else [("ended", 1)])
    message = "a mistake" if lost is None else f"rank {lost} is gone"
    said = [(2, f"rawnn: error: {message}\n".encode())]
    assert written == ([] if returns or not speaks else said)


def test_where_one_stops_all_do() -> None:
    code, out, lines = started(2, "stops")
    assert (code, lines) == (0, [])
    assert "ended after 2 epochs: it is enough" in out


def test_a_signal_to_one_ends_all_behind_the_same_epoch(tmp_path: Path) -> None:
    code, out, _ = started(2, "asked", f"save={tmp_path}")
    assert code == 128 + 15
    assert "ended after 2 epochs: a signal (15) asked rank 1 to end" in out
    assert max(epoch for epoch, _ in listed(tmp_path)) == 2


def test_a_peer_that_never_comes_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rawnn", "--device", "host"], capture_output=True, text=True,
        timeout=200, env={**os.environ, "PYTHONPATH": str(ROOT), "RANK": "0", "WORLD_SIZE": "2",
                         "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                         "MASTER_PORT": str(free_port()), "RAWNN_JOIN_SECONDS": "1"})
    assert done.returncode == 1
    line, = done.stderr.splitlines()
    assert line.startswith("rawnn: error: rank 1 of 2 did not come to 127.0.0.1:")


@pytest.mark.parametrize("rank", [1, 2])
def test_rank_0_that_never_comes_is_named_by_rank_1(rank: int) -> None:
    with pytest.raises(RanksError, match=r"rank 0 did not come to 127\.0\.0\.1:") as caught:
        Team(RankContext(rank, 3, rank, 3, "a test", "127.0.0.1", free_port(), 0.3), {})
    assert caught.value.speaks == (rank == 1)


def test_rank_0_says_who_is_missing_to_those_who_came() -> None:
    port = free_port()

    def act(rank: int) -> Team:
        return Team(RankContext(rank, 3, rank, 3, "a test", "127.0.0.1", port, 0.5), {})

    from tests.together import together

    found = together(2, act)
    assert [str(each).partition(" to ")[0] for each in found] == ["rank 2 of 3 did not come"] * 2
    assert [each.speaks for each in found] == [True, False]


@pytest.mark.parametrize("name", ["rawnn's version", "rawnn's code", "the option lr",
                                  "the version of numpy"])
def test_a_difference_is_found_at_the_start_and_named(name: str) -> None:
    found = teams(3, lambda team: None, lambda rank: {name: "2" if rank == 2 else "1"})
    for each in found:
        assert isinstance(each, RanksError)
        assert f"differs from rank 0 in {name}: 2, not 1" in str(each)
        assert "rank 2" in str(each)
    assert [each.speaks for each in found] == [True, False, False]


def test_something_one_rank_lacks_is_a_difference() -> None:
    found = teams(2, lambda team: None, lambda rank: {"the version of nccl4py": "1"}
                  if rank else {})
    assert all("nccl4py: 1, not none" in str(each) for each in found)


def test_what_ranks_have_in_common_is_what_matters() -> None:
    from rawnn.engine.config import Config
    from rawnn.engine.parallel import facts

    here = facts(Config(device="gpu", data="/a", save="/b"))
    assert here == facts(Config(device="host", data="/c"))
    assert here != facts(Config(lr=0.2))
    assert {"rawnn's version", "rawnn's code", "Python's version", "the version of numpy",
            "the option seed"} <= here.keys()


def test_different_places_in_the_program_are_told_with_both() -> None:
    found = teams(2, lambda team: team.gather(f"thing {team.rank}", 1))
    assert any("rank 1 is at 'thing 1' while rank 0 is at 'thing 0'" in str(each)
               for each in found)


def test_a_rank_that_ends_before_the_others_is_reported() -> None:
    found = teams(2, lambda team: None if team.rank else team.gather("more", 1))
    assert "rank 1 is at 'the end of rank 1' while rank 0 is at 'more'" in str(found[0])
    assert found[1] is None


def test_on_failure_acts_at_once() -> None:
    from threading import Event

    def act(team: Team) -> bool:
        if team.rank == 1:
            raise RuntimeError("it broke")
        called = Event()
        team.on_failure(called.set)
        return called.wait(5)

    found = teams(3, act)
    assert found[0] is found[2] is True
    assert str(found[1]) == "it broke"


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_one_rank_reports_which_one_was_lost(lost: int) -> None:
    """Rank 0 does, or rank 1 where rank 0 is lost."""
    def act(team: Team) -> str:
        if team.rank == lost:
            team._leaving = True  # as a process that is killed: its connections end, no more
            for wire in team._wires.values():
                wire.close()
            return ""
        with pytest.raises(RanksError) as caught:
            team.gather("more", 1)
        assert team._final_message == (str(caught.value) if caught.value.speaks else "")
        assert f"rank {lost} (" in str(caught.value)
        assert "ended without a word" in str(caught.value)
        return "speaks" if caught.value.speaks else "silent"

    wanted = ["speaks", "silent", "silent"]
    wanted[lost] = ""
    if lost == 0:
        wanted[1] = "speaks"
    assert all_fine(teams(3, act)) == wanted


def test_strangers_at_the_door_are_sent_away() -> None:
    import socket
    import threading
    from time import sleep

    from tests.together import together

    port = free_port()

    def act(rank: int) -> list[int]:
        if rank == 1:
            sleep(0.2)
        team = Team(RankContext(rank, 2, rank, 2, "a test", "127.0.0.1", port, 10.0), {})
        found = team.gather("rank", team.rank)
        team.close()
        return found

    def stranger() -> None:
        sleep(0.1)
        with socket.create_connection(("127.0.0.1", port)) as other:
            other.sendall(b"\x05\0\0\0hello")

    threading.Thread(target=stranger).start()
    assert all_fine(together(2, act)) == [[0, 1], [0, 1]]


STUCK = '''
import os, sys, time
from rawnn.distributed import rank_from_environment, team
team.NOTICE, team.GRACE = 0.2, 0.5
mine = team.Team(rank_from_environment(os.environ), {}, guard=True)
mine.on_failure(lambda: (os.write(1, b"aborted\\n"), time.sleep(float(os.environ["ABORT"]))))
if mine.rank == 1:
    time.sleep(0.5)  # until the others are through with the start
    os._exit(3)
time.sleep(1000)  # as in a call of the driver that does not return
'''


@pytest.mark.parametrize("abort", ["0", "1000"], ids=["aborted", "the abort hangs"])
def test_a_rank_that_does_not_come_back_is_ended_with_the_sentence(abort: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LAUNCH, "3", sys.executable, "-c", STUCK], capture_output=True,
        text=True, timeout=200, env={**os.environ, "PYTHONPATH": str(ROOT), "ABORT": abort})
    assert done.returncode == 3
    assert done.stdout.splitlines() == ["aborted"] * 2, done
    line, = done.stderr.splitlines()
    assert line.startswith("rawnn: error: rank 1 (")
    assert "ended without a word" in line


@pytest.mark.parametrize("rank", [0, 1])
def test_what_a_rank_does_is_sent_at_most_once_a_period(monkeypatch: pytest.MonkeyPatch,
                                                        rank: int) -> None:
    """At once where none was sent for so long; rank 0, to which the others send, sends nothing."""
    own, sent, clock = Team.__new__(Team), list[tuple[float, Any]](), [0.0]
    own.rank, own._progress_sent = rank, -math.inf
    monkeypatch.setattr(team_module, "monotonic", lambda: clock[0])
    monkeypatch.setattr(own, "_send", lambda to, message: sent.append((clock[0], (to, message))))
    expected, last = list[tuple[float, Any]](), -math.inf
    for number, pause in enumerate((0.0, 0.05, 0.1, 0.15, 0.01, 0.3, 0.21, 0.19, 0.02, 1.0)):
        clock[0] += pause
        own.doing = f"training epoch {number}"
        assert own.doing == f"training epoch {number}"
        if rank and clock[0] - last > 0.2:
            last = clock[0]
            expected.append((last, (0, {"doing": own.doing})))
    assert sent == expected
    assert bool(sent) == bool(rank)


@pytest.mark.parametrize("suffix", [".py", ".cu", ".cuh", ".json", ".pyc", ".txt"])
def test_ranks_have_the_same_code_where_all_that_runs_is_the_same(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    """Sources of kernels and tables among it, each by its content and its place."""
    package = tmp_path / "rawnn"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.setattr(parallel.rawnn, "__file__", str(package / "__init__.py"))
    sums = [parallel._code()]
    file = package / "inner" / f"file{suffix}"
    for content in ("one", "two"):
        file.write_text(content)
        sums.append(parallel._code())
    file.rename(package / file.name)
    sums.append(parallel._code())
    assert len(set(sums)) == (4 if suffix in (".py", ".cu", ".cuh", ".json") else 1)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_an_error_of_all_ranks_is_printed_by_one_and_a_lost_rank_by_who_knows(rank: int) -> None:
    """Other ranks than 0 keep quiet about an error of their own, which they send to the others."""
    sent: list[BaseException] = []
    session = Session.__new__(Session)
    session.team = cast(Team, SimpleNamespace(rank=rank, fail=sent.append))
    errors = (ConfigError("of an option"), RanksError("rank 3 is lost"), RanksError("seen", False))
    for error in (*errors, ValueError("of a user")):
        session._fail(error)
    assert sent[:3] == [*errors]
    assert len(sent) == 4
    assert [error.speaks for error in errors] == [rank == 0, True, False]
