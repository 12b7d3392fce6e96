"""Signals that end training: after the current epoch, or at once."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from types import FrameType
from typing import Any

GRACE_SECONDS = 20.0
"""Schedulers that preempt a job kill it some 30 s after they asked it to end."""
LONG_SECONDS = 0.5
"""After a second signal an epoch is awaited only if it takes less time than this."""

_NAMED = {"SIGINT": "Ctrl-C", "SIGTERM": "SIGTERM", "SIGHUP": "SIGHUP (the terminal is gone)"}


class EpochAborted(BaseException):
    """The current epoch is aborted: a second signal came, or the time limit passed."""


class Signals:
    """Within the `with` block SIGINT, SIGTERM and SIGHUP are recorded in `number` instead of their
    default action, and `notify` gets a message. While `inside` (an epoch) is set, a second signal
    raises EpochAborted, and so does GRACE_SECONDS after the first; a third has its default action.

    Only the main thread can receive signals: in others nothing is done. A signal that the process
    ignores (nohup) or handles itself is not touched. Afterwards all handlers are restored.
    """

    def __init__(self, notify: Callable[[str], None], grace: float = GRACE_SECONDS) -> None:
        self.number = 0
        self.inside = False
        self.kept = False  # whether a snapshot from before this epoch allows to abort it
        self._notify, self._grace = notify, grace
        self._count, self._first = 0, 0.0
        self._before: dict[int, Any] = {}
        self._timer: threading.Timer | None = None
        self._alarm_fired = False

    @property
    def installed(self) -> bool:
        """Whether any signal is handled."""
        return bool(self._before)

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for name in _NAMED:
                number = getattr(signal, name, None)  # Windows has no SIGHUP
                if number is None:
                    continue
                handler = signal.getsignal(number)
                if handler in (signal.SIG_DFL, signal.default_int_handler):
                    signal.signal(number, self._on_signal)
                    self._before[number] = handler
        return self

    def __exit__(self, *exception: object) -> None:
        self._restore()

    def _restore(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        while self._before:
            number, handler = self._before.popitem()
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, handler)

    def _alarm(self, seconds: float, number: int) -> None:
        """Abort the current epoch after `seconds` by raising the signal again: nothing else
        interrupts the main thread."""
        def ring() -> None:
            self._alarm_fired = True
            _thread.interrupt_main(signal.Signals(number))

        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(seconds, ring)
        self._timer.daemon = True
        self._timer.start()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._alarm_fired:  # our own signal: if the epoch has ended meanwhile, it counts
            self._alarm_fired = False
            if self.inside:
                self._restore()
                raise EpochAborted
            return
        self._count += 1
        if self._count == 1:
            self.number, self._first = number, monotonic()
            self._alarm(self._grace, number)
            name = _NAMED[signal.Signals(number).name]
            # A signal may come while the main thread writes to the same stream.
            with suppress(RuntimeError, OSError):
                self._notify(f"{name}: training ends after this epoch; once more, or after "
                             f"{self._grace:g} s, it ends at once")
            return
        # Without a snapshot the epoch is, as far as is known, short: it ends by itself.
        wait = 0.0 if self.kept else LONG_SECONDS - (monotonic() - self._first)
        if self.inside and wait > 0:
            self._alarm(wait, number)
        elif self.inside:
            self._restore()
            raise EpochAborted
        elif self._count > 2:
            self._restore()
            signal.raise_signal(number)


def end_by(number: int) -> None:
    """End the process as the signal would have that ended training, unless it is Ctrl-C (or 0)."""
    if number not in (0, signal.SIGINT):
        with suppress(OSError):
            sys.stdout.flush()
        signal.raise_signal(number)
