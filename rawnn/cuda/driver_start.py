"""The driver started in a thread, beside the imports of whoever is going to need it."""

from __future__ import annotations

from threading import Thread


def start_driver() -> None:
    """Start the driver, and make the context of the first GPU, in a thread that ends with the
    process. Both are asked for again by whoever opens the GPU, who then waits for neither (0.25 s
    on an H200), and is told there what fails. The process keeps the context to its end.

    By ctypes, whose calls let other threads go on: importing the bindings would not.
    """
    Thread(target=_start, name="rawnn driver", daemon=True).start()


def _start() -> None:
    import ctypes

    try:
        driver = ctypes.CDLL("libcuda.so.1")
        if driver.cuInit(0) == 0:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
    except (OSError, AttributeError):  # there is no driver, or none that we know
        return
