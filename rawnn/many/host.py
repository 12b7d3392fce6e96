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
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any, cast

from rawnn.common.errors import RawnnError
from rawnn.engine.machine import Opened
from rawnn.many.members import Group
from rawnn.many.sessions import MemberState, SessionMembers

WORTH_SECONDS = 4.0
"""Seconds of training below which no processes are started: each takes about one to be ready."""
_STEP_SECONDS, _FLOP_SECONDS = 1.5e-4, 1e-10
"""Of a step on one core, about: what it costs however small, and a floating-point operation."""


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
    steps = sum(config.epochs for config in group.members) * -(-group.examples // batch)
    return steps * (_STEP_SECONDS + flops * _FLOP_SECONDS)


class HostMembers(SessionMembers):
    """A MemberTrainer on the host. Bits are those of `rawnn.train(..., device="host")`, whatever
    the number of workers: 0 trains in this process, None decides by cores and work."""

    def __init__(self, group: Group, opened: Opened, notify: Callable[[str], None],
                 workers: int | None = None) -> None:
        super().__init__(group, opened, notify)
        if workers is None:
            cores = min(core_count(), len(group))
            workers = cores if cores > 1 and seconds_of(group) > WORTH_SECONDS else 0
        self.workers = workers
        self._pool: _Pool | None = None

    def _train(self, active: list[int], epochs: int, first: int) -> None:
        if not self.workers:
            super()._train(active, epochs, first)
            return
        if self._pool is None:
            self._pool = _Pool(self._group, self.workers)
        try:
            self._pool.train(active, epochs, self._states,
                             lambda member, *found: self._done(member, first, *found))
        except BaseException:
            self._pool.close()  # workers are in the midst of epochs
            self._pool = None
            raise

    def _forget(self, members: list[int]) -> None:
        super()._forget(members)
        if self._pool is not None:
            for member in members:
                self._pool.owner.pop(member, None)

    def close(self) -> None:
        super().close()
        if self._pool is not None:
            self._pool.close()
            self._pool = None


class _Worker:
    """One process, and what it has in hand."""

    def __init__(self, file: int, environment: dict[str, str]) -> None:
        self.connection, other = Pipe()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rawnn.many.worker", str(other.fileno()), str(file)],
                pass_fds=(other.fileno(), file), env=environment, stdin=subprocess.DEVNULL)

    def ended(self) -> RawnnError:
        """Why it does not answer."""
        try:
            status: Any = self._process.wait(5)
        except subprocess.TimeoutExpired:
            status = "it does not answer"
        return RawnnError(f"a worker process that trained members ended ({status}): is there "
                          f"memory for {os.cpu_count()} of them? RAWNN_WORKERS=1 starts one")

    def close(self) -> None:
        self.connection.close()
        self._process.kill()
        self._process.wait()


class _Pool:
    """Workers that have the group, and `owner`, which of them last trained each member and so has
    its session, perhaps."""

    def __init__(self, group: Group, count: int) -> None:
        self.owner: dict[int, int] = {}
        # Gone with the last process that has it.
        self._file = tempfile.TemporaryFile(prefix="rawnn-many-")  # noqa: SIM115
        _write(group, self._file)
        single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        paths = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, **single, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        self._workers = [_Worker(self._file.fileno(), environment) for _ in range(count)]

    def train(self, active: list[int], epochs: int, states: list[MemberState],
              done: Callable[..., None]) -> None:
        """Train each member and hand figures and state to `done`. Raises what a worker raises, and
        RawnnError for one that ends."""
        queues: list[deque[int]] = [deque() for _ in self._workers]
        homeless = [member for member in active if member not in self.owner]
        for member in active:
            if member in self.owner:
                queues[self.owner[member]].append(member)
        for member in homeless:
            min(queues, key=len).append(member)
        busy: dict[Connection[Any, Any], tuple[int, int]] = {}
        for number in range(len(self._workers)):
            self._hand_out(number, queues, epochs, states, busy)
        while busy:
            for connection in cast("list[Connection[Any, Any]]", wait(list(busy))):
                number, member = busy.pop(connection)
                try:
                    found = connection.recv()
                except (EOFError, OSError):
                    raise self._workers[number].ended() from None
                if isinstance(found, BaseException):
                    raise found
                done(member, *found)
                self._hand_out(number, queues, epochs, states, busy)

    def _hand_out(self, number: int, queues: list[deque[int]], epochs: int,
                  states: list[MemberState], busy: dict[Any, tuple[int, int]]) -> None:
        """Give a worker its next member, or the last of the longest queue."""
        longest = max(queues, key=len)
        if queues[number]:
            member = queues[number].popleft()
        elif longest:
            member = longest.pop()
        else:
            return
        state = states[member]
        known = self.owner.get(member) == number
        self.owner[member] = number
        worker = self._workers[number]
        try:
            worker.connection.send((member, epochs, state.epoch, None if known else state.arrays))
        except OSError:
            raise worker.ended() from None
        busy[worker.connection] = number, member

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._file.close()


def _write(group: Group, out: IO[bytes]) -> None:
    """The group in a file whose arrays workers map, so that all share one copy of the data."""
    group = replace(group, dataset=replace(group.dataset, resident={}))
    buffers: list[pickle.PickleBuffer] = []
    content = pickle.dumps(group, protocol=5, buffer_callback=buffers.append)
    head = pickle.dumps((content, [buffer.raw().nbytes for buffer in buffers]))
    out.write(len(head).to_bytes(8, "little") + head)
    for buffer in buffers:
        out.write(b"\0" * (-out.tell() % 64))
        out.write(buffer.raw())
    out.flush()


def read(file: int) -> Group:
    """The group in the file of this descriptor, which `_write` wrote, its arrays mapped and
    read-only."""
    content = memoryview(mmap.mmap(file, 0, access=mmap.ACCESS_READ))
    start = 8 + int.from_bytes(content[:8], "little")
    pickled, sizes = pickle.loads(content[8:start])
    buffers = []
    for size in sizes:
        start += -start % 64
        buffers.append(content[start : start + size])
        start += size
    group: Group = pickle.loads(pickled, buffers=buffers)
    return group
