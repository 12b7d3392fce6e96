"""Progress of a long command on the screen."""

from __future__ import annotations

import os
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

INSTANT = 0.01
"""Seconds that no training takes: a set that cannot run here fails at once."""


def say(message: str) -> None:
    """Print a sentence on standard error."""
    click.echo(f"rawnn: {message}", err=True)


def text_console(*, stderr: bool = False, width: int | None = None) -> Console:
    """A console that prints texts as they are: names of classes, columns and files are no markup,
    also in the cells of a table."""
    return Console(highlight=False, soft_wrap=True, emoji=False, markup=False, stderr=stderr,
                   width=width)


def table_console(*, stderr: bool = False) -> Console:
    """The console for a table: as wide as the terminal, or as COLUMNS says. A pipe has no width
    that a table would have to fit."""
    console = text_console(stderr=stderr)
    if console.is_terminal or os.environ.get("COLUMNS", "").isdigit():
        return console
    return text_console(stderr=stderr, width=200)


def sentences(console: Console, texts: Iterable[str]) -> None:
    """Print sentences, each wrapped at words on a terminal."""
    for text in texts:
        console.print(fitted(console, text, 2), markup=False)


def fitted(console: Console, text: str, indent: int) -> str:
    """The line, or on a terminal wrapped to several lines, the later ones indented."""
    if not console.is_terminal or len(text) <= console.width:
        return text
    return textwrap.fill(text, console.width, subsequent_indent=" " * indent,
                         break_on_hyphens=False, break_long_words=False)


class Pace:
    """Estimates the remaining time. Runs come in `repeats` equal rounds, so that a run is expected
    to take as long as the one at its position in the round before; in the first round as long as
    the mean of those before it. `unit` is what is counted: runs, epochs."""

    def __init__(self, repeats: int, unit: str = "run",
                 now: Callable[[], float] = perf_counter) -> None:
        self.repeats, self._unit, self._now = max(repeats, 1), unit, now
        self._began = self._last = now()
        self._took: dict[int, float] = {}
        self.done, self.total = 0, 0

    def advance(self, done: int, total: int) -> None:
        """A run has ended: `done` of `total` are done."""
        now = self._now()
        self.done, self.total = done, total
        self._took[(done - 1) % self._round()] = now - self._last
        self._last = now

    def _round(self) -> int:
        return max(self.total // self.repeats, 1)

    @property
    def elapsed(self) -> float:
        return self._now() - self._began

    @property
    def left(self) -> str:
        """The remaining time in words; "" before the first run that took any time has ended."""
        some = [seconds for seconds in self._took.values() if seconds > INSTANT]
        if not some:
            return ""
        mean = sum(some) / len(some)
        expected = [self._took.get(i % self._round(), mean) for i in range(self.done, self.total)]
        spent = self._now() - self._last
        if expected and spent > expected[0]:
            return f"more than {duration(sum(expected[1:]))} left"
        return f"about {duration(sum(expected) - spent if expected else 0)} left"

    def __str__(self) -> str:
        if not self.total:
            return f"in the first {self._unit} for {duration(self.elapsed)}"
        return f"{self.done} of {self.total} {self._unit}s done after {duration(self.elapsed)}" + (
            f", {self.left}" if self.left else "")


def duration(seconds: float) -> str:
    """ "7 s", "3 min 20 s", "2 h 5 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole < 600 and whole % 60 else "")
    return f"{whole // 3600} h" + (f" {whole // 60 % 60} min" if whole // 60 % 60 else "")


class Heartbeat:
    """Within a `with` block, calls `show` from its own thread whenever nothing was printed for
    `period` seconds. It sleeps in between, so that measurements are not disturbed."""

    period = 5.0
    """Seconds: without output for so long, a run of minutes on the host looks like one that hangs.
    """

    def __init__(self, show: Callable[[], None]) -> None:
        self._show = show
        self._last_output = perf_counter()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rawnn progress", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def due(self) -> bool:
        """Whether nothing was printed for a period."""
        return perf_counter() - self._last_output >= self.period

    def restart(self) -> None:
        """Record output: the next `show` is one period from now."""
        self._last_output = perf_counter()

    def _watch(self) -> None:
        while not self._over.wait(max(self._last_output + self.period - perf_counter(), 0.05)):
            if self.due:
                self.restart()
                try:
                    self._show()
                except (OSError, ValueError):  # the terminal is closed: nobody can read it
                    return


def working(what: str) -> Heartbeat:
    """Reports every few seconds for how long `what` has been going on."""
    began = perf_counter()
    return Heartbeat(lambda: say(f"{what} for {duration(perf_counter() - began)}"))


class Screen:
    """A bar on a terminal, a line every few seconds elsewhere, both with the remaining time, also
    during a long run. Use as a context manager around the runs, which come in `repeats` equal
    rounds."""

    def __init__(self, name: str, repeats: int) -> None:
        self._name = name
        console = Console(stderr=True)
        self._bar = Bar(TextColumn("{task.description}", markup=False), BarColumn(),
                        MofNCompleteColumn(), TimeElapsedColumn(),
                        TextColumn("{task.fields[left]}"), console=console, transient=True,
                        auto_refresh=False, disable=not console.is_terminal)
        self._task = self._bar.add_task(name, total=None, left="")
        self._pace = Pace(repeats)
        self._heart = Heartbeat(self._show_progress)

    def __enter__(self) -> Screen:
        self._show()
        self._heart.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._heart.__exit__()
        self._hide()

    def rounds(self, count: int) -> None:
        """Set the number of equal rounds."""
        self._pace.repeats = max(count, 1)

    def advance(self, done: int, total: int, last: str) -> None:
        """`done` of `total` runs are done; the last was called `last`."""
        self._pace.advance(done, total)
        room = max(self._bar.console.width - 48, 10)
        shown = f"{self._name}: {last}"
        shown = shown if len(shown) <= room else f"{shown[: room - 1]}…"
        self._bar.update(self._task, completed=done, total=total, description=shown,
                         left=self._pace.left, refresh=True)
        if self._heart.due:
            self._heart.restart()
            self._show_progress()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Hide the bar while something else is printed, perhaps to the same terminal."""
        self._hide()
        try:
            yield
        finally:
            self._show()

    def _show(self) -> None:
        if not self._bar.disable:
            self._bar.start()

    def _hide(self) -> None:
        if not self._bar.disable:  # rich before 14.3 ends a hidden bar with an empty line
            self._bar.stop()

    def _show_progress(self) -> None:
        if self._bar.disable:
            say(f"{self._name}: {self._pace}")
        else:
            self._bar.update(self._task, left=self._pace.left, refresh=True)
