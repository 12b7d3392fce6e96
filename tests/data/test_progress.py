from __future__ import annotations

import io
import sys

import pytest

from rawnn.data import progress


def test_lines_say_start_and_end_of_each_file() -> None:
    messages: list[str] = []
    show = progress.lines(messages.append)
    for done in (0, 500_000, 1_000_000, 1_000_000):
        show("a.gz", done, 1_000_000)
    show("b.gz", 500_000, 2_000_000)
    show("c.gz", 0, None)
    show("c.gz", 10, 10)
    assert messages == [
        "fetching a.gz of 1.0 MB",
        "fetched a.gz",
        "fetching b.gz of 2.0 MB from 0.5 MB",
        "fetching c.gz",
        "fetched c.gz",
    ]


def test_a_bar_on_a_terminal(monkeypatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress.shown(lambda text: None) as show:
        show("a.gz", 0, 100)
        show("a.gz", 100, 100)
    assert "a.gz" in terminal.getvalue()
    assert "100/100" in terminal.getvalue()


def test_a_slow_download_says_how_far_it_is() -> None:
    messages: list[str] = []
    clock = [0.0]
    tell = progress.lines(messages.append, lambda: clock[0])
    for seconds, done in ((0, 0), (1, 1_000_000), (5, 5_000_000), (6, 6_000_000), (10, 10_000_000),
                          (11, 20_000_000)):
        clock[0] = seconds
        tell("a.gz", done, 20_000_000)
    assert messages == ["fetching a.gz of 20.0 MB",
                        "fetching a.gz: 5.0 of 20.0 MB, about 15 s left",
                        "fetching a.gz: 10.0 of 20.0 MB, about 10 s left", "fetched a.gz"]
    clock[0] = 30
    tell("b.gz", 0, None)
    clock[0] = 36
    tell("b.gz", 3_000_000, None)
    assert messages[-1] == "fetching b.gz: 3.0 MB"


@pytest.mark.parametrize("begun", [0, 5_000_000, 12_000_000])
@pytest.mark.parametrize("speed", [250_000, 1_000_000, 3_000_000])
def test_what_is_left_follows_from_what_this_run_has_fetched(begun: int, speed: int) -> None:
    """A part that an earlier run left says nothing about the speed."""
    messages: list[str] = []
    clock, total = [0.0], 20_000_000
    show = progress.lines(messages.append, lambda: clock[0])
    show("a.gz", begun, total)
    clock[0] = 2 * progress.PERIOD
    done = int(begun + clock[0] * speed)
    if done < total:
        show("a.gz", done, total)
        assert messages[-1] == (f"fetching a.gz: {done / 1e6:.1f} of 20.0 MB, about "
                                f"{(total - done) / speed:.0f} s left")
