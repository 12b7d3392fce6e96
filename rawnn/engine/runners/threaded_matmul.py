"""The host's matrix products, shared among threads so that their bits depend on nobody's number.

BLAS sums in another order with another number of threads, and where other programs want the same
cores its threads, which wait without sleeping, made steps 10 to 17 times as long. So BLAS has one
thread here. A large product is cut into slices, by its shape alone, which one thread computes in
turn or several beside each other: the first steps of a run are timed with one and with several, and
the rest takes the faster. Parameters are the same bits either way.
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
"""Multiply-adds from which a product is cut: 0.3 ms of one core, some ten times what handing a
slice to a thread takes."""
SLICE = 256
"""Rows or columns of a slice, at least: slices of 64 take up to 1.6 times as long as the whole, as
each packs the other factor for itself, these up to 1.2 times."""
TRIAL_STEPS = 3
"""Steps that are timed with one thread, and as many with several."""


def slices(rows: int, inner: int, columns: int) -> list[tuple[slice, slice]]:
    """The parts of a result [rows, columns] that are computed by themselves: of whole rows, or of
    whole columns where there are more of those."""
    longer = max(rows, columns)
    count = longer // SLICE
    if count < 2 or rows * inner * columns < LARGE:
        return [(slice(None), slice(None))]
    step = -(-longer // count // 16) * 16
    parts = [slice(begin, min(begin + step, longer)) for begin in range(0, longer, step)]
    return [(part, slice(None)) if rows >= columns else (slice(None), part) for part in parts]


class ThreadedMatmul:
    """Multiplies matrices by as many threads as were found to be fastest: at most those that BLAS
    would take, which OMP_NUM_THREADS and its kin limit. BLAS has one thread from `open` to
    `close`."""

    def __init__(self) -> None:
        most = max((pool["num_threads"] for pool in threadpool_info()
                    if pool["user_api"] == "blas"), default=1)
        self._closing = ExitStack()
        self.threads = 1
        self._untried = [1, most] * (TRIAL_STEPS + 1) if most > 1 else []
        self._seconds: dict[int, list[float]] = {1: [], most: []}
        self._pool = ThreadPoolExecutor(most, "rawnn product")  # starts none before it is used
        self._closing.callback(self._pool.shutdown)
        self._is_cut = False

    def open(self) -> None:
        """Leave one thread to BLAS."""
        self._closing.enter_context(threadpool_limits(1, "blas"))

    def multiply(self, left: Array, right: Array, out: Array | None = None) -> Array:
        """left [M, K] @ right [K, N], in `out` or a new array."""
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
        finally:  # a signal may break off the epoch: nobody writes into the arrays after that
            wait(futures)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around a step of training: the first are timed, in turn with one thread and with several.
        The first of either warms it up."""
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
        """Give BLAS its threads back; a second call is harmless."""
        self._closing.close()


def _multiply(left: Array, right: Array, out: Array) -> None:
    with np.errstate(over="ignore", invalid="ignore"):  # which each thread has for itself
        np.matmul(left, right, out=out)
