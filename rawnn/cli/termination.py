"""Handles requests to end a measurement by SIGTERM or SIGHUP like Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

from rawnn.cli.screen import say

NAMES = ("SIGTERM", "SIGHUP")


@contextmanager
def as_by_ctrl_c() -> Iterator[None]:
    """Within the block the first SIGTERM or SIGHUP raises KeyboardInterrupt, so that measured
    results are shown and stored; a second one ends the process. The status is that of the signal. A
    signal that the process ignores (nohup) is not touched."""
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)
        signal.signal(number, signal.SIG_DFL)
        raise KeyboardInterrupt

    numbers = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]
    taken = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]
    for number in taken:
        signal.signal(number, interrupt)
    try:
        yield
    except (click.Abort, KeyboardInterrupt):
        if not received:
            raise
        say(f"ended by {signal.Signals(received[0]).name}")
        click.get_current_context().exit(128 + received[0])
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)
