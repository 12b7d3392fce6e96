"""Compiles several kernels in parallel, while the caller does other work.

NVRTC releases Python's lock while it compiles and may be called from several threads, so that a
first run takes as long as its slowest kernel instead of all of them (784-10 with
graphs,cublas,cudnn: 1.9 s one after another). What takes longest starts first: a kernel written for
a network, however short its text, which calls templates once for each layer; then the largest
source. NVRTC reads one source at a time, and what it does in parallel afterwards takes longest for
that one (loss.cu: four times the median).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING

from rawnn.common.cuda_text import CudaText
from rawnn.cuda.compiling.compile import Compiled
from rawnn.ptx import SOURCES

if TYPE_CHECKING:
    from concurrent.futures import Executor


@dataclass(frozen=True)
class Job:
    """Kernels of one of rawnn's .cu files: instances `expressions`, as `compile_source` takes
    them. A `specific` source has instructions of one architecture only. A source that is no file
    of rawnn's is given as `code`."""

    file: str
    expressions: tuple[str, ...]
    relocatable: bool = False
    programmatic: bool = False
    specific: bool = False
    code: CudaText | None = None

    def instances(self) -> list[Job]:
        """One job per instance."""
        return [replace(self, expressions=(expression,)) for expression in self.expressions]


class SharedResults:
    """Compiled kernels that several devices load, each in a thread of its own: the first that asks
    compiles, the others wait for it. What has failed is tried again by each."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._found: dict[Hashable, Future[Compiled]] = {}

    def get(self, key: Hashable, compiled: Callable[[], Compiled]) -> Compiled:
        """The result of `key`, by `compiled` if there is none yet."""
        with self._lock:
            own = Future[Compiled]()
            found = self._found.setdefault(key, own)
        if found is own:
            try:
                own.set_result(compiled())
            except BaseException as error:
                own.set_exception(error)
                raise
        return found.result() if found.exception() is None else compiled()


class Batch:
    """Jobs being compiled. With `parallel`, threads compile each instance separately in the
    background; otherwise this thread compiles each job when its result is requested.

    Iterate over it once for each job with its result; a failed job raises there. `close` drops the
    results that nobody has requested.
    """

    def __init__(self, jobs: Sequence[Job], compiled: Callable[[Job], Compiled],
                 parallel: bool) -> None:
        self._compiled = compiled
        self._jobs = [each for job in jobs for each in job.instances()] if parallel else list(jobs)
        self._pool: Executor | None = None
        self._futures: list[Future[Compiled]] = []
        if parallel and len(self._jobs) > 1:
            from concurrent.futures import ThreadPoolExecutor

            workers = min(len(self._jobs), os.cpu_count() or 1)
            self._pool = ThreadPoolExecutor(workers, "rawnn compiler")
            begun = {place: self._pool.submit(compiled, self._jobs[place])
                     for place in sorted(range(len(self._jobs)), key=self._length, reverse=True)}
            self._futures = [begun[place] for place in range(len(self._jobs))]

    def _length(self, place: int) -> tuple[bool, int]:
        """What jobs are ordered by: whether the source is no file of rawnn's, and its length."""
        job = self._jobs[place]
        file = SOURCES / job.file
        is_file = file.is_file()
        if job.code is not None:
            return not is_file, len(job.code.text)
        return not is_file, file.stat().st_size if is_file else 0

    def __iter__(self) -> Iterator[tuple[Job, Compiled]]:
        for place, job in enumerate(self._jobs):
            yield job, self._futures[place].result() if self._futures else self._compiled(job)
        self.close()

    def close(self) -> None:
        """Cancel jobs that have not begun, and wait for the others; a second call has no effect."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
