"""A time limit for Python code of a user that runs in this process, such as a reference."""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType

from rawnn.common.errors import ConfigError
from rawnn.lab.watchdog import Watchdog

_SOON = 1e-3
"""Seconds until an alarm of the caller that became due meanwhile: 0 would switch it off."""

_GRACE = 5.0
"""Seconds behind the limit after which a process that is stuck is killed."""
_watchdog = Watchdog(kills=False)
atexit.register(_watchdog.close)


@contextmanager
def killed_if_stuck() -> Iterator[None]:
    """Within the block, also end a call of compiled code, which no alarm interrupts: by killing
    this process, with a sentence on standard error. It is for a command, not for a program that
    imports rawnn."""
    global _watchdog
    before, own = _watchdog, Watchdog(kills=True)
    _watchdog = own
    try:
        yield
    finally:
        _watchdog = before
        own.close()


class TimeLimitReached(ConfigError):
    """A user's code took longer than its limit."""


class _Alarm(BaseException):
    """Ends the code. No `except Exception` of the code catches it."""


@contextmanager
def time_limit(limit: float | None, what: str) -> Iterator[None]:
    """Raise TimeLimitReached, which names `what`, if the block takes more than `limit` seconds
    (None: any time).

    The limit is an alarm of the operating system, which Python handles in its main thread between
    two instructions, or when a blocking call is interrupted. So a call of compiled code that never
    returns is not ended, except in `killed_if_stuck`; a sentence on standard error says so. In
    another thread, and where the system has
    no such alarm, there is no limit. An alarm of the caller goes on afterwards.
    """
    if limit is None or not hasattr(signal, "setitimer") \
            or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise _Alarm

    sentence = f"{what} did not end within {limit:g} s, in a call of compiled code that cannot " \
               f"be interrupted"
    watched = _watchdog.watching(
        limit + _GRACE, f"rawnn: error: {sentence}: this process was killed" if _watchdog.kills
        else f"rawnn: {sentence}: the program waits for it; kill {os.getpid()} ends both")
    handler, began = signal.signal(signal.SIGALRM, ring), monotonic()
    left, interval = signal.setitimer(signal.ITIMER_REAL, limit, limit)  # again, if it is caught
    try:
        try:
            with watched:
                yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except _Alarm:
        raise TimeLimitReached(f"{what} did not end within {limit:g} s, and was ended") from None
    finally:
        signal.signal(signal.SIGALRM, handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (monotonic() - began), _SOON), interval)
