"""Starts the driver and creates contexts of GPUs in threads, while the caller does other work."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock, Thread
from typing import Any

_LOCK = Lock()
_RETAINED: dict[int, Any] = {}
"""The driver of each GPU whose context this process keeps; None while it is being created."""


def start_driver(ordinals: Iterable[int] | None = (0,)) -> None:
    """Start the driver, and create the contexts of these GPUs (None: of all that the process sees),
    each in a daemon thread. Opening a GPU repeats both calls, which then return at once (0.25 s
    saved on an H200), and reports what fails. The process keeps a context to its end, or until
    `release_context`: the next run on the GPU does not create it again.

    The calls go through ctypes, which releases Python's lock; importing the bindings would not.
    """
    wanted = None if ordinals is None else tuple(ordinals)
    with _LOCK:
        if wanted is not None and all(ordinal in _RETAINED for ordinal in wanted):
            return
    Thread(target=_start, args=(wanted,), name="rawnn driver", daemon=True).start()


def _start(ordinals: tuple[int, ...] | None) -> None:
    import ctypes

    try:
        driver = ctypes.CDLL("libcuda.so.1")
        if driver.cuInit(0) != 0:
            return
        if ordinals is None:
            count = ctypes.c_int()
            driver.cuDeviceGetCount(ctypes.byref(count))
            ordinals = tuple(range(count.value))
    except (OSError, AttributeError):  # there is no driver, or an unknown one
        return
    for ordinal in ordinals[1:]:
        Thread(target=_retain, args=(driver, ordinal), name="rawnn driver", daemon=True).start()
    for ordinal in ordinals[:1]:
        _retain(driver, ordinal)


def _retain(driver: Any, ordinal: int) -> None:
    """Create the context of a GPU, unless this process keeps it already."""
    import ctypes

    with _LOCK:
        if ordinal in _RETAINED:
            return
        _RETAINED[ordinal] = None
    failed = driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), ordinal)
    with _LOCK:
        if failed:
            del _RETAINED[ordinal]
        else:
            _RETAINED[ordinal] = driver


def release_context(ordinal: int) -> None:
    """Give up the context of a GPU that an error may have broken: once its devices are closed, the
    next one gets a new context. No effect where this process does not keep it."""
    with _LOCK:
        driver = _RETAINED.get(ordinal)
        if driver is None:
            return
        del _RETAINED[ordinal]
    driver.cuDevicePrimaryCtxRelease_v2(ordinal)
