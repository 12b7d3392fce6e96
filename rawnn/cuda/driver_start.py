"""Starts the driver in a thread, while the caller imports other modules."""

from __future__ import annotations

from threading import Thread


def start_driver() -> None:
    """Start the driver, and create the context of the first GPU, in a daemon thread. Opening the
    GPU repeats both calls, which then return at once (0.25 s saved on an H200), and reports what
    fails. The process keeps the context to its end.

    The calls go through ctypes, which releases Python's lock; importing the bindings would not.
    """
    Thread(target=_start, name="rawnn driver", daemon=True).start()


def _start() -> None:
    import ctypes

    try:
        driver = ctypes.CDLL("libcuda.so.1")
        if driver.cuInit(0) == 0:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
    except (OSError, AttributeError):  # there is no driver, or an unknown one
        return
