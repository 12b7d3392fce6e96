"""What a long command says while it runs: how far it is, and how long it will take."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from rawnn.cli import train
from rawnn.cli.screen import Heartbeat, Pace, Screen, duration, fitted, sentences, table_console


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_is_left_follows_from_the_round_before() -> None:
    clock = Clock()
    pace = Pace(2, now=clock)
    assert pace.left == ""
    assert str(pace) == "in the first run for 0 s"
    clock.now = 10.0
    pace.advance(1, 4)  # two sets in each of two rounds; the first takes 10 s
    assert pace.left == "about 30 s left"  # the others like it, as far as is known
    clock.now = 12.0
    pace.advance(2, 4)
    assert pace.left == "about 12 s left"
    clock.now = 18.0
    assert str(pace) == "2 of 4 runs done after 18 s, about 6 s left"
    clock.now = 90.0  # longer than expected: what is left of this run is unknown
    assert pace.left == "more than 2 s left"
    pace.advance(3, 4)
    clock.now = 91.0
    pace.advance(4, 4)
    assert pace.left == "about 0 s left"


def test_sets_that_cannot_run_do_not_shorten_what_is_left() -> None:
    clock = Clock()
    pace = Pace(1, now=clock)
    pace.advance(1, 4)
    pace.advance(2, 4)
    assert pace.left == ""
    clock.now = 8.0
    pace.advance(3, 4)
    assert pace.left == "about 8 s left"


@pytest.mark.parametrize(("seconds", "text"), [
    (0.2, "0 s"), (59.4, "59 s"), (60, "1 min"), (200, "3 min 20 s"), (1299, "21 min"),
    (3600, "1 h"), (7500, "2 h 5 min")])
def test_durations_are_said_in_two_units_at_most(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_pipe_gets_a_line_even_while_one_run_goes_on(
        capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Heartbeat, "period", 0.1)
    with Screen("toggles", 1) as screen:
        time.sleep(0.35)
        screen.advance(1, 2, "linear best")
        time.sleep(0.25)
    lines = capfd.readouterr().err.splitlines()
    assert 3 <= len(lines) <= 6
    assert lines[0].startswith("rawnn: toggles: in the first run for 0 s")
    assert lines[-1].startswith("rawnn: toggles: 1 of 2 runs done after 1 s, ")


def test_what_ends_within_the_period_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with Screen("toggles", 3) as screen:
        for done in range(1, 4):
            screen.advance(done, 3, "linear best")
    assert capfd.readouterr().err == ""


WATCHED = """
import sys
from rawnn.cli.screen import Screen
import click
with Screen("toggles", 1) as screen:
    for done in range(1, 4):
        with screen.aside():
            click.echo(f"row {done}")
        screen.advance(done, 3, "a name that is long enough to fill a line")
"""


@pytest.mark.parametrize("width", [60, 80, 120])
def test_rows_and_the_bar_do_not_run_into_each_other(width: int) -> None:
    pty, termios = pytest.importorskip("pty"), pytest.importorskip("termios")
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (30, width))
    environment = {k: v for k, v in os.environ.items() if k != "COLUMNS"}
    done = subprocess.Popen([sys.executable, "-c", WATCHED], stdout=slave, stderr=slave,
                            stdin=slave, env={**environment, "TERM": "xterm"})
    os.close(slave)
    content = b""
    with contextlib.suppress(OSError):  # the terminal's other end is closed
        while part := os.read(master, 4096):
            content += part
    assert done.wait(60) == 0
    os.close(master)
    shown = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", content).decode()
    lines = [line.split("\r")[-1] for line in shown.replace("\r\n", "\n").split("\n")]
    assert [line.strip() for line in lines if "row" in line] == ["row 1", "row 2", "row 3"]
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [20, 33, 34, 35, 200])
@pytest.mark.parametrize("indent", [0, 2, 5])
def test_a_sentence_is_wrapped_on_a_terminal_alone(width: int, indent: int) -> None:
    """At words, not within one-word or a long word; of 34 characters here."""
    text = "A-line one-word of rather few words"[:-1]
    assert fitted(Console(force_terminal=False, width=width), text, indent) == text
    shown = fitted(Console(force_terminal=True, width=width), text, indent)
    lines: list[str] = []
    for word in text.split():
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(" " * indent * bool(lines) + word)
    assert shown.split("\n") == lines
    assert (shown == text) == (width >= 34)


def test_the_bar_of_a_training_is_drawn_twenty_times_a_second(monkeypatch: pytest.MonkeyPatch
                                                              ) -> None:
    clock, drawn = Clock(), list[int]()
    monkeypatch.setattr(train, "perf_counter", clock)
    screen = train._Screen(False, 9)
    bar = SimpleNamespace(disable=False, update=lambda task, completed, refresh:
                          drawn.append(completed))
    monkeypatch.setattr(screen, "_bar", bar)
    for epoch, now in enumerate((100.0, 100.03, 100.049, 100.06, 100.1, 100.12, 101.0), 1):
        clock.now = now
        screen.epoch_done(epoch)
    assert drawn == [1, 4, 6, 7]
    bar.disable = True
    screen.epoch_done(8)
    assert drawn == [1, 4, 6, 7]


@pytest.mark.parametrize("columns", ["", "100"])
def test_sentences_are_printed_as_they_are(
        columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither as markup nor as the name of a sign: a sharding may have ":100:"."""
    monkeypatch.setenv("COLUMNS", columns) if columns else monkeypatch.delenv("COLUMNS", False)
    texts = ["a shape of [3, 4]", "[red]no colour[/red]", "[/] persistent=1x1:100:FFFF [link=x]"]
    sentences(table_console(), texts)
    assert capsys.readouterr().out.splitlines() == texts


def test_a_table_in_a_pipe_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns, width in ((None, 200), ("90", 90), ("wide", 200)):
        monkeypatch.delenv("COLUMNS", False)
        if columns is not None:
            monkeypatch.setenv("COLUMNS", columns)
        assert [(table_console(stderr=stderr).width, table_console(stderr=stderr).stderr)
                for stderr in (False, True)] == [(width, False), (width, True)]


def test_a_sign_of_life_is_due_a_period_after_the_last_output(monkeypatch: pytest.MonkeyPatch
                                                              ) -> None:
    clock = Clock()
    monkeypatch.setattr("rawnn.cli.screen.perf_counter", clock)
    heart = Heartbeat(lambda: None)
    for now, due in ((4.9, False), (5.0, True), (9.0, True)):
        clock.now = now
        assert heart.due is due
    heart.restart()
    for now, due in ((13.9, False), (14.0, True)):
        clock.now = now
        assert heart.due is due


def test_the_bar_is_told_what_is_done_and_fits_the_terminal(monkeypatch: pytest.MonkeyPatch
                                                            ) -> None:
    clock, told = Clock(), list[Any]()
    monkeypatch.setattr("rawnn.cli.screen.perf_counter", clock)
    screen = Screen("toggles", 1)
    monkeypatch.setattr(screen, "_pace", Pace(1, now=clock))
    screen.rounds(2)
    bar = SimpleNamespace(disable=False, console=SimpleNamespace(width=66),
                          update=lambda task, **more: told.append(more))
    monkeypatch.setattr(screen, "_bar", bar)
    for done, now in ((1, 4.0), (2, 8.0)):
        clock.now = now
        screen.advance(done, 4, "linear best"[: 8 + done])
    same = {"total": 4, "refresh": True}
    assert told == [{"completed": 1, "description": "toggles: linear be", "left": "about 12 s left",
                     **same},
                    {"completed": 2, "description": "toggles: linear b…", "left": "about 8 s left",
                     **same}, {"left": "about 8 s left", "refresh": True}]


def test_progress_is_said_once_a_period(monkeypatch: pytest.MonkeyPatch,
                                        capsys: pytest.CaptureFixture[str]) -> None:
    clock, said = Clock(), list[int]()
    monkeypatch.setattr("rawnn.cli.screen.perf_counter", clock)
    screen = Screen("bench", 1)
    for done, seconds in enumerate((0.0, 4.9, 5.0, 6.0, 9.9, 10.0, 10.1, 20.0, 20.1), 1):
        clock.now = seconds
        screen.advance(done, 9, "a case")
        said.append(capsys.readouterr().err.count("rawnn: bench: "))
    assert said == [0, 0, 1, 0, 0, 1, 0, 1, 0]
