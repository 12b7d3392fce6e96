"""The screen of `rawnn train` by itself: what it prints when, and what becomes of a run whose
output cannot be written any more."""

from __future__ import annotations

import errno
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import click
import pytest

from rawnn.cli import train
from rawnn.cli.train import _Screen


def running(screen: _Screen, epochs: int = 10, resumed: int = 0) -> list[str]:
    """The screen in the midst of a run; the reasons for which the run is stopped."""
    stopped: list[str] = []
    screen._session = SimpleNamespace(stop=stopped.append)  # type: ignore[assignment]
    screen._done, screen._total, screen._running = resumed, epochs - resumed, True
    screen._counts = True
    return stopped


def report(epoch: int, **more: Any) -> Any:
    return SimpleNamespace(**{"epoch": epoch, "train_loss": 0.5, "train_accuracy": 0.75,
                              "test_accuracy": 0.5, "test_loss": 0.25, "epoch_ms": 12.5, **more})


def failing(error: BaseException) -> Callable[..., None]:
    def fail(*given: Any, **named: Any) -> None:
        raise error

    return fail


@pytest.mark.parametrize(("quiet", "mute"), [(False, False), (True, False), (True, True)])
def test_reports_are_for_those_who_look_and_notes_for_all_but_other_ranks(
        capsys: pytest.CaptureFixture[str], quiet: bool, mute: bool) -> None:
    screen = _Screen(quiet, 10, mute)
    running(screen)
    screen.reported(report(3))
    screen._counts = False
    screen.reported(report(4))
    screen.notify("a note")
    said = capsys.readouterr()
    assert said.err == ("" if mute else "rawnn: a note\n")
    assert said.out.splitlines() == [] if quiet else [
        "     3      0.5000     0.7500    0.5000     12.500",
        "     4      0.5000               0.2500     12.500"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"),
                                   BrokenPipeError(errno.EPIPE, "Broken pipe")])
@pytest.mark.parametrize("writes", [True, False])
def test_a_run_whose_output_is_lost_ends_if_it_leaves_files(
        monkeypatch: pytest.MonkeyPatch, error: OSError, writes: bool) -> None:
    """Behind its epoch; one that leaves nothing ends at once. Nothing is written afterwards."""
    screen = _Screen(False, 10, writes=writes)
    stopped = running(screen)
    written: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(screen.console, "print", failing(error))
        if not writes:
            with pytest.raises(OSError, match=error.strerror):
                screen.reported(report(1))
            assert (screen.lost, stopped) == (None, [])
            return
        screen.reported(report(1))
    assert screen.lost is error
    assert stopped == [f"its output could not be written: {error.strerror}"]
    monkeypatch.setattr(screen.console, "print", lambda text, **more: written.append(text))
    monkeypatch.setattr(click, "echo", lambda text, **more: written.append(text))
    monkeypatch.setattr(train, "_summary", lambda console, result: written.append("summary"))
    screen.reported(report(2))
    screen.notify("a note")
    screen.end(SimpleNamespace())  # type: ignore[arg-type]
    assert (written, len(stopped)) == ([], 1)


def test_output_that_is_lost_before_the_run_begins_ends_the_command() -> None:
    screen = _Screen(False, 10, writes=True)
    with pytest.raises(OSError, match="No space"):
        screen._write(failing(OSError(errno.ENOSPC, "No space left on device")))
    assert screen.lost is None


def test_a_pipe_that_rich_turned_into_an_exit_counts_as_broken() -> None:
    pipe, leaving = BrokenPipeError(errno.EPIPE, "Broken pipe"), SystemExit(1)
    leaving.__context__ = pipe
    screen = _Screen(False, 10, writes=True)
    stopped = running(screen)
    screen._write(failing(leaving))
    assert screen.lost is pipe
    assert stopped == ["its output could not be written: Broken pipe"]
    other = _Screen(False, 10, writes=True)
    running(other)
    with pytest.raises(SystemExit):
        other._write(failing(SystemExit(3)))


def test_a_terminal_that_is_gone_ends_nothing_itself() -> None:
    """Its signal does."""
    screen = _Screen(False, 10, writes=True)
    stopped = running(screen)
    screen._write(failing(OSError(errno.EIO, "Input/output error")))
    assert (screen.lost, stopped) == (None, [])


def test_a_sign_of_life_says_what_is_under_way(capsys: pytest.CaptureFixture[str],
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    screen = _Screen(False, 10)
    monkeypatch.setattr(screen, "_pace", SimpleNamespace(elapsed=65.0, __str__=lambda: ""))
    screen._alive()
    running(screen)
    screen._pace = "3 of 10 epochs done"  # type: ignore[assignment]
    screen._alive()
    assert capsys.readouterr().err == ("rawnn: making ready for 1 min 5 s\n"
                                       "rawnn: training: 3 of 10 epochs done\n")


@pytest.mark.parametrize(("disabled", "seconds", "drawn"), [
    (False, 0.06, [1, 2, 3]), (False, 0.02, [1, 4]), (True, 0.06, [])])
def test_the_bar_is_drawn_at_most_twenty_times_a_second(
        monkeypatch: pytest.MonkeyPatch, disabled: bool, seconds: float, drawn: list[int]) -> None:
    """With the epochs of the whole run; the pace is that of this one, which goes on behind 4."""
    screen, shown, paces = _Screen(False, 10), list[int](), list[tuple[int, int]]()
    running(screen, 10, resumed=4)
    screen._bar = SimpleNamespace(  # type: ignore[assignment]
        disable=disabled, update=lambda task, completed, refresh: shown.append(completed - 4))
    screen._pace = SimpleNamespace(  # type: ignore[assignment]
        advance=lambda done, total: paces.append((done, total)))
    clock = iter([1.0 + step * seconds for step in range(100)])
    now = [0.0]
    monkeypatch.setattr(train, "perf_counter", lambda: now[0])
    for epoch in range(5, 5 + (3 if seconds > 0.05 else 4)):
        now[0] = next(clock)
        screen.epoch_done(epoch)
    assert shown == drawn
    assert paces == [(n, 6) for n in range(1, len(paces) + 1)]


def test_the_heartbeat_and_the_bar_end_with_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    for quiet in (False, True):
        calls: list[str] = []
        screen = _Screen(quiet, 10)
        screen._heart = SimpleNamespace(  # type: ignore[assignment]
            __enter__=lambda: calls.append("begin"),  # noqa: B023
            __exit__=lambda *of: calls.append("end"))  # noqa: B023
        screen._bar = SimpleNamespace(disable=quiet, stop=lambda: calls.append("stop"))  # type: ignore[assignment]  # noqa: B023
        with screen:
            pass
        assert calls == ([] if quiet else ["begin", "end", "stop"])


@pytest.mark.parametrize(("resumed", "quiet"), [(0, False), (4, False), (0, True)])
def test_the_head_of_a_run_says_what_is_trained_on_what(
        capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, resumed: int,
        quiet: bool) -> None:
    """And from where the pace is counted on: a round an epoch of those that are left."""
    monkeypatch.setattr(train, "network_text", lambda prepared, config: "3-2, batch 8")
    screen = _Screen(quiet, 10)
    info = SimpleNamespace(name="Some GPU", compute_capability=(9, 0), multiprocessors=132,
                           memory=141 * 2**30, driver="580.1", cuda="13.0", bindings="13.3")

    class Selection(list[str]):
        notes = ("a note",)

        def __str__(self) -> str:
            return "preload, fuse"

    session: Any = SimpleNamespace(
        prepared=SimpleNamespace(targets_per_example=1), config=SimpleNamespace(epochs=10),
        data=SimpleNamespace(name="digits", train_images=[0] * 1500, test_images=[0] * 200,
                             source="a file"),
        device=SimpleNamespace(info=info), resumed=resumed, left_out="", selection=Selection(),
        runner=SimpleNamespace(describe=lambda: {"libraries": {"cublas": "13.1"}}),
        team=SimpleNamespace(world_size=4, place=SimpleNamespace(launcher="torchrun")))
    screen.started(session)
    said = capsys.readouterr().out
    if quiet:
        assert said == ""
        return
    assert said.splitlines() == [
        "GPU       Some GPU (compute capability 9.0, 132 SMs, 141 GiB)",
        "versions  driver 580.1, CUDA 13.0, cuda-bindings 13.3, cublas 13.1",
        "ranks     4, started by torchrun", "data      digits, 1,500 + 200 examples, from a file",
        "network   3-2, batch 8", "toggles   preload, fuse", "          a note", "", train.HEADER]
    left = 10 - resumed
    assert (screen._done, screen._total, screen._pace.repeats) == (resumed, left, left)
