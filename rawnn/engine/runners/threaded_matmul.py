"""The host's matrix products on several threads, with bits that do not depend on their number.

BLAS sums in another order with another number of threads. Its threads spin while they wait, which
made steps 10 to 17 times as long if other programs wanted the same cores. So BLAS has one thread
here. A large product is cut into slices by its shape alone, and one thread or several compute them.
The first steps of a run are timed with one and with several threads; the rest uses the faster
number. Parameters have the same bits either way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_info, threadpool_limits

Array = NDArray[Any]

LARGE = 16e6
"""Multiply-adds from which a product is cut: 0.3 ms of one core, about ten times the cost of
handing a slice to a thread."""
SLICE = 256
"""Least rows or columns of a slice. Each slice packs the other factor again, so that slices of 64
take up to 1.6 times as long as the uncut product, slices of 256 up to 1.2 times."""
TRIAL_STEPS = 3
"""Steps timed with one thread, and as many with several."""


def slices(rows: int, inner: int, columns: int) -> list[tuple[slice, slice]]:
    """The parts of a result [rows, columns] that are computed separately: blocks of rows, or of
    columns if there are more columns."""
    longer = max(rows, columns)
    count = longer // SLICE
    if count < 2 or rows * inner * columns < LARGE:
        return [(slice(None), slice(None))]
    step = -(-longer // count // 16) * 16
    parts = [slice(begin, min(begin + step, longer)) for begin in range(0, longer, step)]
    return [(part, slice(None)) if rows >= columns else (slice(None), part) for part in parts]


class ThreadedMatmul:
    """Multiplies matrices with the number of threads that was measured to be fastest, at most the
    number that BLAS would use, which OMP_NUM_THREADS and similar variables limit. BLAS has one
    thread between `open` and `close`."""

    def __init__(self) -> None:
        most = max((pool["num_threads"] for pool in threadpool_info()
                    if pool["user_api"] == "blas"), default=1)
        self._closing = ExitStack()
        self.threads = 1
        self._untried = [1, most] * (TRIAL_STEPS + 1) if most > 1 else []
        self._seconds: dict[int, list[float]] = {1: [], most: []}
        self._pool = ThreadPoolExecutor(most, "rawnn product")  # starts threads only when used
        self._closing.callback(self._pool.shutdown)
        self._is_cut = False

    def open(self) -> None:
        """Limit BLAS to one thread."""
        self._closing.enter_context(threadpool_limits(1, "blas"))

    def multiply(self, left: Array, right: Array, out: Array | None = None) -> Array:
        """left [M, K] @ right [K, N], into `out` or a new array."""
        if out is None:
            out = np.empty((left.shape[0], right.shape[1]), np.result_type(left, right))
        parts = slices(left.shape[0], left.shape[1], right.shape[1])
        works: list[Callable[[], None]] = [
            partial(_multiply, left[rows], right[:, columns], out[rows, columns])
            for rows, columns in parts]
        if len(works) > 1:
            self._is_cut = True
        if self.threads == 1 or len(works) == 1:
            for work in works:
                work()
        else:
            self._share(works)
        return out

    def _share(self, works: list[Callable[[], None]]) -> None:
        futures = [self._pool.submit(work) for work in works]
        try:
            for future in futures:
                future.result()
        finally:  # after a signal aborts the epoch no thread may write into the arrays
            wait(futures)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Encloses a step of training. The first steps are timed, alternately with one thread and
        with several; the very first of either is a warm-up."""
        if not self._untried:
            yield
            return
        self.threads = self._untried[0]
        begun = perf_counter()
        yield
        self._seconds[self.threads].append(perf_counter() - begun)
        del self._untried[0]
        if not self._is_cut:
            self._untried, self.threads = [], 1
        elif not self._untried:
            self.threads = min(self._seconds, key=lambda n: median(self._seconds[n][1:]))

    def close(self) -> None:
        """Restore BLAS's threads; a second call has no effect."""
        self._closing.close()


def _multiply(left: Array, right: Array, out: Array) -> None:
    with np.errstate(over="ignore", invalid="ignore"):  # errstate is local to a thread
        np.matmul(left, right, out=out)
