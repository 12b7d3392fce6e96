"""What a long measurement says while it runs."""

from __future__ import annotations

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar


def say(message: str) -> None:
    """A sentence on the standard error stream."""
    click.echo(f"rawnn: {message}", err=True)


class Screen:
    """A bar on a terminal, a line for every round of repeats elsewhere."""

    def __init__(self, name: str, repeats: int) -> None:
        self._name, self._repeats = name, repeats
        console = Console(stderr=True)
        self._bar = Bar(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
                        TimeElapsedColumn(), console=console, transient=True, auto_refresh=False,
                        disable=not console.is_terminal)
        self._task = self._bar.add_task(name, total=None)

    def __enter__(self) -> Screen:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def advance(self, done: int, total: int, last: str) -> None:
        """`done` of `total` runs are done; the last was called `last`."""
        # Drawn between runs only: a thread that redraws would disturb the one that launches.
        self._bar.update(self._task, completed=done, total=total,
                         description=f"{self._name}: {last}", refresh=True)
        if self._bar.disable and done % (total // self._repeats) == 0:
            say(f"repeat {done * self._repeats // total} of {self._repeats} done")


def wide_console() -> Console:
    """For tables: a pipe has no width that one would have to fit."""
    console = Console(highlight=False, soft_wrap=True)
    return console if console.is_terminal else Console(highlight=False, soft_wrap=True, width=200)
