"""Signals that end training: after the epoch in hand, or at once."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from types import FrameType
from typing import Any

GRACE_SECONDS = 20.0
"""Schedulers that preempt a job kill it some 30 s after they asked it to end."""
LONG_SECONDS = 0.5
"""An epoch that takes longer is not waited for when a second signal comes."""

_NAMED = {"SIGINT": "Ctrl-C", "SIGTERM": "SIGTERM", "SIGHUP": "SIGHUP (the terminal is gone)"}


class EpochAborted(BaseException):
    """The epoch in hand is given up: a second signal came, or the time was over."""


class Signals:
    """Within the `with` block SIGINT, SIGTERM and SIGHUP are noted in `number` in place of what
    they do by default, and `notify` is told. While `inside` (an epoch) a second one raises
    EpochAborted, and so does GRACE_SECONDS after the first; a third one does what it always does.

    Only the main thread can be told of signals: elsewhere nothing is done. A signal that the
    process ignores (nohup) or has a handler of its own for is left alone. Afterwards all is as
    before.
    """

    def __init__(self, notify: Callable[[str], None], grace: float = GRACE_SECONDS) -> None:
        self.number = 0
        self.inside = False
        self.kept = False  # whether the state before this epoch is kept, so that it can be given up
        self._notify, self._grace = notify, grace
        self._count, self._first = 0, 0.0
        self._before: dict[int, Any] = {}
        self._timer: threading.Timer | None = None
        self._alarm_fired = False

    @property
    def installed(self) -> bool:
        """Whether there is any signal to be told of."""
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
        """Give up the epoch in hand after so many seconds, by the signal once more: nothing else
        breaks into the main thread."""
        def ring() -> None:
            self._alarm_fired = True
            _thread.interrupt_main(signal.Signals(number))

        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(seconds, ring)
        self._timer.daemon = True
        self._timer.start()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._alarm_fired:  # not a signal of anyone's: an epoch that has ended meanwhile is kept
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
        # An epoch of which nothing is kept is short, as far as is known: it ends by itself.
        wait = 0.0 if self.kept else LONG_SECONDS - (monotonic() - self._first)
        if self.inside and wait > 0:
            self._alarm(wait, number)
        elif self.inside:
            self._restore()
            raise EpochAborted
        elif self._count > 2:
            self._restore()
            signal.raise_signal(number)
