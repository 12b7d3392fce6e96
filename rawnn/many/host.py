"""Members on the host: worker processes over the cores, each training one member at a time with one
BLAS thread.

This process keeps what each member has reached. A worker that ends, or is ended in the midst of an
epoch, loses only the epochs that it had in hand.
"""

from __future__ import annotations

import mmap
import os
import pickle
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any, cast

from rawnn.common.errors import RawnnError
from rawnn.engine.machine import Opened
from rawnn.many.members import Group
from rawnn.many.sessions import Job, Key, SessionMembers

WORTH_SECONDS = 4.0
"""Seconds of training of a run below which no processes are started: each takes about one to be
ready."""
_STEP_SECONDS, _FLOP_SECONDS = 1.5e-4, 1e-10
"""Seconds on one core, about: of a step, however small it is, and of a floating-point operation."""


def core_count() -> int:
    """The cores that this process may run on; the environment's RAWNN_WORKERS, a whole number, says
    how many of them worker processes take. Raises RawnnError for another text."""
    asked = os.environ.get("RAWNN_WORKERS")
    if asked is not None:
        if not asked.isascii() or not asked.isdecimal() or int(asked) < 1:
            raise RawnnError(f"RAWNN_WORKERS = '{asked}': give a whole number of at least 1")
        return int(asked)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") \
        else os.cpu_count() or 1


def seconds_of(group: Group) -> float:
    """About how long one core takes to train all members of a group."""
    sizes, batch = group.config.layers, group.config.batch or 1
    flops = 6 * batch * sum(a * b for a, b in pairwise(sizes))
    steps = sum(config.epochs for config in group.members) * group.steps
    return steps * (_STEP_SECONDS + flops * _FLOP_SECONDS)


class HostMembers(SessionMembers):
    """A MemberTrainer on the host. Bits are those of `rawnn.train(..., device="host")`, whatever
    the number of workers: those of the pool that all groups of a run share, or so many of its own
    (0 trains in this process, None decides by cores and work). `close` closes the pool, too."""

    def __init__(self, group: Group, opened: Opened, notify: Callable[[str], None],
                 workers: WorkerPool | int | None = None) -> None:
        super().__init__(group, opened, notify)
        self._pool = workers if isinstance(workers, WorkerPool) else WorkerPool(workers)
        self._number = self._pool.register(group)

    def _enqueue(self, jobs: list[Job]) -> None:
        (self._pool.enqueue if self._pool.count else super()._enqueue)(jobs)

    def _is_pending(self, members: list[int]) -> bool:
        return super()._is_pending(members) or \
            self._pool.is_pending((self._number, member) for member in members)

    def _finish(self) -> None:
        self._pool.finish()
        super()._finish()

    def _forget(self, members: list[int]) -> None:
        super()._forget(members)
        for member in members:
            self._pool.owner.pop((self._number, member), None)

    def close(self) -> None:
        super().close()
        self._pool.close()


class _Worker:
    """One process."""

    def __init__(self, file: int, environment: dict[str, str]) -> None:
        self.connection, other = Pipe()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rawnn.many.worker", str(other.fileno()), str(file)],
                pass_fds=(other.fileno(), file), env=environment, stdin=subprocess.DEVNULL)

    def ended(self, count: int) -> RawnnError:
        """Why it, one of `count`, does not answer."""
        try:
            status: Any = self._process.wait(5)
        except subprocess.TimeoutExpired:
            status = "it does not answer"
        return RawnnError(f"a worker process that trained members ended ({status}): is there "
                          f"memory for {count} of them? RAWNN_WORKERS=1 trains without any")

    def close(self) -> None:
        self.connection.close()
        self._process.kill()
        self._process.wait()


class WorkerPool:
    """Worker processes that the groups of a run share, so that members of all groups train at once.
    They start with the first jobs. `owner` says which of them last trained each member, and so may
    have its session. Without a `count` there is one a core, shared by so many `processes` of this
    host that have a pool."""

    def __init__(self, count: int | None = None, processes: int = 1) -> None:
        self.owner: dict[Key, int] = {}
        self._asked = count
        self._cores = max(core_count() // processes, 1) if count is None else count
        self._groups: list[Group] = []
        self._jobs: list[Job] = []
        self._workers: list[_Worker] = []
        self._closing = ExitStack()

    def register(self, group: Group) -> int:
        """The number of the group; all are registered before any trains."""
        self._groups.append(group)
        return len(self._groups) - 1

    @cached_property
    def count(self) -> int:
        """The workers, 0 where this process trains."""
        if self._asked is not None:
            return self._asked
        count = min(self._cores, sum(len(group) for group in self._groups))
        is_worth = sum(seconds_of(group) for group in self._groups) > WORTH_SECONDS
        return count if count > 1 and is_worth else 0

    def is_pending(self, keys: Iterable[Key]) -> bool:
        """Whether one of these members has a job that is not done."""
        return not {job.key for job in self._jobs}.isdisjoint(keys)

    def enqueue(self, jobs: Iterable[Job]) -> None:
        """Add jobs, of members that have none, for `finish` to do."""
        self._jobs.extend(jobs)

    def finish(self) -> None:
        """Do all jobs. Raises what a worker raises, and RawnnError for one that ends; whatever it
        raises, the jobs that were not done are dropped."""
        if not self._jobs:
            return
        jobs, self._jobs = self._jobs, []
        try:
            if not self._workers:
                self._start()
            self._train(jobs)
        except BaseException:
            self.close()  # workers are in the midst of epochs
            raise

    def _start(self) -> None:
        # Gone with the last process that has it.
        file: IO[bytes] = self._closing.enter_context(
            tempfile.TemporaryFile(prefix="rawnn-many-"))  # noqa: SIM115
        _write(self._groups, file)
        single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        paths = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, **single, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        for _ in range(self.count):
            worker = _Worker(file.fileno(), environment)
            self._closing.callback(worker.close)
            self._workers.append(worker)

    def _train(self, jobs: list[Job]) -> None:
        queues: list[deque[Job]] = [deque() for _ in self._workers]
        homeless = [job for job in jobs if job.key not in self.owner]
        for job in jobs:
            if job.key in self.owner:
                queues[self.owner[job.key]].append(job)
        for job in homeless:
            min(queues, key=len).append(job)
        busy: dict[Connection[Any, Any], tuple[int, Job]] = {}
        for number in range(len(self._workers)):
            self._hand_out(number, queues, busy)
        while busy:
            for connection in cast("list[Connection[Any, Any]]", wait(list(busy))):
                number, job = busy.pop(connection)
                try:
                    found = connection.recv()
                except (EOFError, OSError):
                    raise self._workers[number].ended(self.count) from None
                if isinstance(found, BaseException):
                    raise found
                job.done(*found)
                self._hand_out(number, queues, busy)

    def _hand_out(self, number: int, queues: list[deque[Job]],
                  busy: dict[Any, tuple[int, Job]]) -> None:
        """Give a worker its next job, or the last of the longest queue."""
        longest = max(queues, key=len)
        if queues[number]:
            job = queues[number].popleft()
        elif longest:
            job = longest.pop()
        else:
            return
        known = self.owner.get(job.key) == number
        self.owner[job.key] = number
        worker = self._workers[number]
        try:
            worker.connection.send((job.key, job.epochs, job.before.epoch,
                                    None if known else job.before.arrays))
        except OSError:
            raise worker.ended(self.count) from None
        busy[worker.connection] = number, job

    def close(self) -> None:
        """End all workers; jobs that come later start new ones."""
        self._jobs.clear()
        self.owner.clear()
        self._workers.clear()
        self._closing.close()


def _write(groups: Sequence[Group], out: IO[bytes]) -> None:
    """The groups in a file whose arrays workers map, so that all share one copy of the data."""
    groups = [replace(group, dataset=replace(group.dataset, resident={})) for group in groups]
    buffers: list[pickle.PickleBuffer] = []
    content = pickle.dumps(groups, protocol=5, buffer_callback=buffers.append)
    head = pickle.dumps((content, [buffer.raw().nbytes for buffer in buffers]))
    out.write(len(head).to_bytes(8, "little") + head)
    for buffer in buffers:
        out.write(b"\0" * (-out.tell() % 64))
        out.write(buffer.raw())
    out.flush()


def read(file: int) -> list[Group]:
    """The groups in the file of this descriptor, which `_write` wrote, its arrays mapped and
    read-only."""
    content = memoryview(mmap.mmap(file, 0, access=mmap.ACCESS_READ))
    start = 8 + int.from_bytes(content[:8], "little")
    pickled, sizes = pickle.loads(content[8:start])
    buffers = []
    for size in sizes:
        start += -start % 64
        buffers.append(content[start : start + size])
        start += size
    groups: list[Group] = pickle.loads(pickled, buffers=buffers)
    return groups
