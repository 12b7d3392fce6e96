"""Members trained by ordinary runs: on the host one after the other, on a GPU launch by launch, a
few at once on streams of their own.

The state of a member is stored as plain arrays. Sessions of the last members stay open where there
is memory for them, so that the next epochs need not prepare the run anew.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from rawnn.common.errors import OutOfMemory
from rawnn.common.interrupts import EpochAborted
from rawnn.data import Dataset
from rawnn.engine.machine import Opened
from rawnn.engine.session import Session
from rawnn.engine.units import LossUnits
from rawnn.many.members import Arrays, Group, Rows, Scores, columns_from, stacked
from rawnn.many.residents import Resident, release_another

SESSION_BYTES = 256 << 20
"""Memory that sessions of one process may take on the host."""
SIDE_BY_SIDE = 4
"""Members that train at once on a GPU, at most. The kernels of a further one would seldom find a
multiprocessor free, and each member has its own copy of the data set."""
USED_MEMORY, IDLE_MEMORY = 0.9, 0.25
"""Parts of a GPU's free memory: for sessions that train at once, and for those that stay open."""
MOST_IDLE = 32
"""Sessions that stay open on a GPU, at most: each takes some memory of the host, too."""

Figures = NDArray[np.float64]
"""[epochs, 3]: training loss, validation loss, validation score."""


@dataclass
class MemberState:
    """What a member has reached behind `epoch` epochs; no arrays before it was first trained."""

    epoch: int = 0
    arrays: Arrays = field(default_factory=dict)


Key = tuple[int, int]
"""The number of a group among those that share workers, and a member's place in the group."""


@dataclass(frozen=True, eq=False)
class Job:
    """So many epochs of a member from the state `before`; `done` gets its figures and state."""

    key: Key
    epochs: int
    before: MemberState
    done: Callable[[Figures, MemberState], object]

    @property
    def member(self) -> int:
        return self.key[1]


Training = Generator[None, None, tuple[Figures, MemberState]]
"""Stops behind each epoch that was enqueued, before it is waited for."""


@dataclass(frozen=True, eq=False)
class _Open:
    """The session of a member, the epochs that this has behind it, and the stream that it uses."""

    session: Session
    epoch: int
    opened: Opened


class MemberSessions:
    """Sessions of members of one group, of which the last that were used stay open, as far as they
    take no more than `nbytes` on the host, or a part of a GPU's memory. The `residents` of a
    device free theirs where one has none."""

    def __init__(self, group: Group, opened: Opened, nbytes: int = SESSION_BYTES,
                 residents: list[Resident] | None = None) -> None:
        self._group, self._opened = group, opened
        self._residents = [] if residents is None else residents
        self._residents.append(self)
        self._idle: OrderedDict[int, _Open] = OrderedDict()
        self._datasets: dict[int, Dataset] = {}
        self._most_datasets = max(1, nbytes // max(1, group.dataset.train_images.nbytes))
        self._closing = ExitStack()
        self._streams: list[Opened] = []  # those that no session uses
        if opened.device is None:
            # Runners set the threads of BLAS back as they found them, in whatever order they close.
            self._closing.enter_context(threadpool_limits(1, "blas"))
        self._at_once = 1
        """Members that train at the same time."""
        self._most = 1 if opened.device else max(1, nbytes // _session_bytes(group))
        self._is_measured = opened.device is None  # how much memory a session takes
        self.is_aborted = False  # whether `train_all` gives up what it has in hand
        self.sharding = ""

    def train(self, member: int, before: MemberState, epochs: int) -> tuple[Figures, MemberState]:
        """So many more epochs of a member, whose state `before` is left as it is."""
        found: list[tuple[Figures, MemberState]] = []
        self.train_all([Job((0, member), epochs, before, lambda *result: found.append(result))])
        return found[0]

    def train_all(self, jobs: Iterable[Job]) -> None:
        """Do jobs of different members, several at once where a GPU has the memory: each gets one
        epoch after the other, and the host waits for the first while the others run."""
        waiting = deque(jobs)
        running: deque[tuple[Job, _Open, Training]] = deque()
        try:
            while waiting or running:
                while waiting and len(running) < self._at_once:
                    job = waiting[0]
                    found = self._session(job.member, job.before, len(running))
                    if found is None:
                        break
                    running.append((waiting.popleft(), found,
                                    self._training(found.session, job.before, job.epochs)))
                if self.is_aborted:
                    raise EpochAborted
                job, found, training = running[0]
                try:
                    next(training)
                    running.rotate(-1)
                except StopIteration as end:
                    running.popleft()
                    figures, after = end.value
                    self._idle[job.member] = replace(found, epoch=after.epoch)
                    job.done(figures, after)
        except BaseException:
            for _, found, _ in running:  # they may be in the midst of an epoch
                self._close(found)
            raise

    def _training(self, session: Session, before: MemberState, epochs: int) -> Training:
        prepared = session.prepared
        units = LossUnits(prepared.network, session.data)
        examples = np.array([prepared.examples_of(step) for step in range(prepared.updates)])
        figures = np.full((epochs, 3), np.nan)
        done = 0
        for row in figures:
            done += 1
            session.runner.epoch(reported=True)
            yield
            losses, _ = session.runner.metrics()
            mean = float(np.average(losses.astype(np.float64), weights=examples))
            row[0] = units.train_loss(mean, session.runner)
            if not np.isfinite(losses).all():
                row[0] = np.nan
                break  # a single run ends here, too
            row[1:] = _evaluation(units, session)
        session.runner.assemble()
        return figures, MemberState(before.epoch + done, session.runner.state())

    def initial(self, member: int) -> MemberState:
        """The state that a member begins with."""
        found = self._session(member, MemberState(), 0)
        assert found is not None
        found.session.runner.assemble()
        self._idle[member] = found
        return MemberState(0, found.session.runner.state())

    def _session(self, member: int, before: MemberState, busy: int) -> _Open | None:
        """A session of the member with this state, which the caller puts back once it is whole
        again; None where there is no memory for more than those that are `busy`."""
        cached = self._idle.pop(member, None)
        if cached is not None and cached.epoch == before.epoch:
            return cached
        if cached is not None:
            self._close(cached)
        while True:
            while self._idle and len(self._idle) + busy >= self._most:
                self._drop()
            try:
                found = self._begin(member)
                break
            except OutOfMemory:
                if self._idle:
                    self._most = len(self._idle) + busy
                    self._drop()
                elif busy:
                    self._most = self._at_once = busy
                    return None
                elif not release_another(self._residents, self):
                    raise
        session = found.session
        if before.epoch:  # of another trainer it may have a clock that this run has no use for
            known = session.runner.state().keys()
            session.runner.load({k: v for k, v in before.arrays.items() if k in known})
        self.sharding = session.sharding
        return replace(found, epoch=before.epoch)

    def _begin(self, member: int) -> _Open:
        """A new session of the member. The first on a GPU says how many fit there."""
        opened, device = self._opened, self._opened.device
        if device is not None and self._streams:
            opened = self._streams.pop()
        elif device is not None:
            own = device.with_own_stream()
            self._closing.callback(own.close)
            opened = replace(opened, device=own)
        before = 0 if device is None else device.free_memory()
        host: dict[str, Any] = {"is_lenient": True} if self._group.is_lenient else {}
        try:
            session = Session(self._group.members[member], opened=opened,
                              data=self._dataset(int(self._group.fold[member])), **host)
        except BaseException:
            self._release(opened)
            raise
        if device is not None and not self._is_measured:
            free = device.free_memory()
            size = max(before - free, 1)
            self._at_once = min(SIDE_BY_SIDE, len(self._group), 1 + int(USED_MEMORY * free / size))
            self._most = max(self._at_once, min(MOST_IDLE, int(IDLE_MEMORY * free / size)))
            self._is_measured = True
        return _Open(session, 0, opened)

    def forget(self, member: int) -> None:
        """Close the session of a member, if there is one."""
        if member in self._idle:
            self._close(self._idle.pop(member))

    def _dataset(self, fold: int) -> Dataset:
        if fold not in self._datasets:
            if len(self._datasets) >= self._most_datasets:
                self._datasets.clear()
            self._datasets[fold] = self._group.dataset_of(fold)
        return self._datasets[fold]

    def release(self) -> bool:
        """Close the sessions that no member trains in; returns whether there were any."""
        is_any = bool(self._idle)
        while self._idle:
            self._drop()
        return is_any

    def _drop(self) -> None:
        self._close(self._idle.popitem(last=False)[1])

    def _close(self, found: _Open) -> None:
        found.session.__exit__(None, None)
        self._release(found.opened)

    def _release(self, opened: Opened) -> None:
        """Another session may use this stream."""
        if opened.device is not None:
            self._streams.append(opened)

    def close(self) -> None:
        """Close all sessions; a second call does nothing."""
        self.release()
        self._datasets.clear()
        self._streams.clear()
        self._closing.close()


def _evaluation(units: LossUnits, session: Session) -> tuple[float, float]:
    found = units.evaluation(session.runner)
    return found.loss, found.accuracy


def _session_bytes(group: Group) -> int:
    """About what a session of a member takes on the host: the data that it copies, its parameters
    with their optimizer state, and the activations of a batch and of a part of the test set."""
    sizes = group.config.layers
    parameters = sum(a * b for a, b in pairwise(sizes))
    data = group.examples * 8 + (group.dataset.train_images.nbytes
                                 if group.normalisations[0].is_double else 0)
    return 4 * (6 * parameters + sum(sizes) * (2 * (group.config.batch or 1) + 2000)) + data \
        + (1 << 18)


class SessionMembers:
    """A MemberTrainer that trains members by ordinary runs on whatever device is `opened`. They run
    once something is waited for, so that what other trainers enqueue runs at the same time."""

    def __init__(self, group: Group, opened: Opened, notify: Callable[[str], None],
                 residents: list[Resident] | None = None) -> None:
        self._group, self._notify = group, notify
        self._sessions = MemberSessions(group, opened, residents=residents)
        self._states = [MemberState() for _ in group.members]
        self._blocks = [np.empty((len(group), 0, 3))]
        self._jobs: list[Job] = []
        self._number = 0

    @property
    def sharding(self) -> str:
        return self._sessions.sharding

    def run(self, active: Rows, epochs: int) -> None:
        block = np.full((len(self._group), epochs, 3), np.nan)
        self._blocks.append(block)
        members = [int(member) for member in active]
        if self._is_pending(members):  # their states are not known yet
            self._finish()
        self._enqueue([Job((self._number, member), epochs, self._states[member],
                           partial(self._done, member, block)) for member in members])

    def _enqueue(self, jobs: list[Job]) -> None:
        """Add jobs, of members that have none, for `_finish` to do."""
        self._jobs.extend(jobs)

    def _is_pending(self, members: list[int]) -> bool:
        """Whether one of these members has a job that is not done."""
        return not {job.member for job in self._jobs}.isdisjoint(members)

    def _finish(self) -> None:
        """Do all jobs; whatever it raises, those that were not done are dropped."""
        jobs, self._jobs = self._jobs, []
        try:
            self._sessions.train_all(jobs)
        finally:
            self._sessions.is_aborted = False

    def abort(self) -> None:
        """Let another thread, which waits for jobs of this trainer, get EpochAborted."""
        self._sessions.is_aborted = True

    def _done(self, member: int, block: Figures, figures: Figures, state: MemberState) -> None:
        block[member, : len(figures)] = figures
        self._states[member] = state

    def scores(self, first: int = 0) -> Scores:
        self._finish()
        return Scores.of(columns_from(self._blocks, first))

    def state(self, members: Rows) -> Arrays:
        self._finish()
        for member in members:
            if not self._states[member].arrays:
                self._states[member] = self._sessions.initial(int(member))
        states = [self._states[member] for member in members]
        return {**stacked([state.arrays for state in states]),
                "epoch": np.array([state.epoch for state in states], np.int64)}

    def load(self, members: Rows, state: Mapping[str, NDArray[Any]]) -> None:
        self._finish()
        for place, member in enumerate(members):
            arrays = {name: array[place] for name, array in state.items() if name != "epoch"}
            self._states[member] = MemberState(int(state["epoch"][place]), arrays)
        self._forget([int(member) for member in members])

    def _forget(self, members: list[int]) -> None:
        """Sessions of these members no longer have their states."""
        for member in members:
            self._sessions.forget(member)

    def close(self) -> None:
        self._jobs.clear()
        self._sessions.close()
