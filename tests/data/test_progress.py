from __future__ import annotations

import io
import sys

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
