"""Progress of downloads: a bar on a terminal, lines of text elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from time import perf_counter

PERIOD = 5.0
"""Seconds between lines about one download."""

Progress = Callable[[str, int, int | None], None]
"""Called with a file's name, the bytes received, and the bytes in all (None if unknown)."""


@contextlib.contextmanager
def shown(notify: Callable[[str], None]) -> Iterator[Progress]:
    """A progress display within the `with` block.

    On a terminal (standard error) there is a bar for each file; otherwise `notify` gets a line when
    a file starts and one when it is complete.
    """
    if sys.stderr.isatty():
        with _bars() as progress:
            yield progress
    else:
        yield lines(notify)


def lines(notify: Callable[[str], None], now: Callable[[], float] = perf_counter) -> Progress:
    """Progress as lines of text: the first and the last of each file, and one every few seconds."""
    started: dict[str, tuple[float, int]] = {}  # the time, and the bytes at that time
    finished: set[str] = set()
    last_shown = [now()]

    def progress(name: str, done: int, total: int | None) -> None:
        if name in started and done != total and now() - last_shown[0] >= PERIOD:
            last_shown[0] = now()
            begun, before = started[name]
            rate = (done - before) / (now() - begun)
            left = f", about {(total - done) / rate:.0f} s left" if total and rate else ""
            of = "" if total is None else f" of {total / 1e6:.1f}"
            notify(f"fetching {name}: {done / 1e6:.1f}{of} MB{left}")
        if name not in started:
            started[name], last_shown[0] = (now(), done), now()
            size = "" if total is None else f" of {total / 1e6:.1f} MB"
            at = f" from {done / 1e6:.1f} MB" if done and done != total else ""
            notify(f"fetching {name}{size}{at}")
        if done == total and name not in finished:
            finished.add(name)
            notify(f"fetched {name}")

    return progress


@contextlib.contextmanager
def _bars() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Bars(*columns, console=Console(stderr=True)) as bars:
        tasks = {}

        def progress(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            bars.update(tasks[name], completed=done, total=total)

        yield progress
