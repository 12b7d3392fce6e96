"""Members trained by ordinary runs, one after the other: on the host, or on a GPU launch by launch.

The state of a member is stored as plain arrays. Sessions of the last members stay open where there
is memory for them, so that the next epochs need not prepare the run anew.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from rawnn.data import Dataset
from rawnn.engine.machine import Opened
from rawnn.engine.session import Session
from rawnn.engine.units import LossUnits
from rawnn.many.members import Arrays, Group, Rows, Scores, stacked

SESSION_BYTES = 256 << 20
"""Memory that sessions of one process may take on the host."""

Figures = NDArray[np.float64]
"""[epochs, 3]: training loss, validation loss, validation score."""


@dataclass
class MemberState:
    """What a member has reached behind `epoch` epochs; no arrays before it was first trained."""

    epoch: int = 0
    arrays: Arrays = field(default_factory=dict)


class MemberSessions:
    """Sessions of members of one group, of which the last that were used stay open, as far as they
    take no more than `nbytes` of the host's memory."""

    def __init__(self, group: Group, opened: Opened, nbytes: int = SESSION_BYTES) -> None:
        self._group, self._opened = group, opened
        self._sessions: OrderedDict[int, tuple[Session, int]] = OrderedDict()
        self._datasets: dict[int, Dataset] = {}
        self._most_datasets = max(1, nbytes // max(1, group.dataset.train_images.nbytes))
        self._closing = ExitStack()
        if opened.device is None:
            # Runners set the threads of BLAS back as they found them, in whatever order they close.
            self._closing.enter_context(threadpool_limits(1, "blas"))
        self._most = 1 if opened.device else max(1, nbytes // _session_bytes(group))
        self.sharding = ""

    def train(self, member: int, before: MemberState, epochs: int) -> tuple[Figures, MemberState]:
        """So many more epochs of a member, whose state `before` is left as it is."""
        session = self._session(member, before)
        try:
            figures, after = self._trained(session, before, epochs)
        except BaseException:
            session.__exit__(None, None)  # it may be in the midst of an epoch
            raise
        self._sessions[member] = session, after.epoch
        return figures, after

    def _trained(self, session: Session, before: MemberState,
                 epochs: int) -> tuple[Figures, MemberState]:
        units = LossUnits(session.work.network, session.data)
        examples = np.array([session.work.examples_of(s) for s in range(session.work.updates)])
        figures = np.full((epochs, 3), np.nan)
        done = 0
        for row in figures:
            done += 1
            session.runner.epoch(reported=True)
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
        session = self._session(member, MemberState())
        session.runner.assemble()
        found = MemberState(0, session.runner.state())
        self._sessions[member] = session, 0
        return found

    def _session(self, member: int, before: MemberState) -> Session:
        """A session of the member with this state; the caller puts it back once it is whole
        again."""
        cached, epoch = self._sessions.pop(member, (None, -1))
        if cached is not None and epoch == before.epoch:
            return cached
        if cached is not None:
            cached.__exit__(None, None)
        while len(self._sessions) >= self._most:
            self._drop()
        session = Session(self._group.members[member], opened=self._opened,
                          data=self._dataset(int(self._group.fold[member])))
        if before.epoch:  # of another trainer it may have a clock that this run has no use for
            known = session.runner.state().keys()
            session.runner.load({k: v for k, v in before.arrays.items() if k in known})
        self.sharding = session.sharding
        return session

    def forget(self, member: int) -> None:
        """Close the session of a member, if there is one."""
        if member in self._sessions:
            self._sessions.pop(member)[0].__exit__(None, None)

    def _dataset(self, fold: int) -> Dataset:
        if fold not in self._datasets:
            if len(self._datasets) >= self._most_datasets:
                self._datasets.clear()
            self._datasets[fold] = self._group.dataset_of(fold)
        return self._datasets[fold]

    def _drop(self) -> None:
        _, (session, _) = self._sessions.popitem(last=False)
        session.__exit__(None, None)

    def close(self) -> None:
        """Close all sessions; a second call does nothing."""
        while self._sessions:
            self._drop()
        self._datasets.clear()
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
    """A MemberTrainer that trains members by ordinary runs, one after the other, on whatever
    device is `opened`."""

    def __init__(self, group: Group, opened: Opened, notify: Callable[[str], None]) -> None:
        self._group, self._notify = group, notify
        self._sessions = MemberSessions(group, opened)
        self._states = [MemberState() for _ in group.members]
        self._figures = np.empty((len(group), 0, 3))

    @property
    def sharding(self) -> str:
        return self._sessions.sharding

    def run(self, active: Rows, epochs: int) -> None:
        first = self._figures.shape[1]
        self._figures = np.concatenate(
            [self._figures, np.full((len(self._group), epochs, 3), np.nan)], axis=1)
        self._train([int(member) for member in active], epochs, first)

    def _train(self, active: list[int], epochs: int, first: int) -> None:
        for member in active:
            self._done(member, first, *self._sessions.train(member, self._states[member], epochs))

    def _done(self, member: int, first: int, figures: Figures, state: MemberState) -> None:
        self._figures[member, first : first + len(figures)] = figures
        self._states[member] = state

    def scores(self) -> Scores:
        return Scores(*(self._figures[:, :, i].copy() for i in range(3)))

    def state(self, members: Rows) -> Arrays:
        for member in members:
            if not self._states[member].arrays:
                self._states[member] = self._sessions.initial(int(member))
        states = [self._states[member] for member in members]
        return {**stacked([state.arrays for state in states]),
                "epoch": np.array([state.epoch for state in states], np.int64)}

    def load(self, members: Rows, state: Mapping[str, NDArray[Any]]) -> None:
        for place, member in enumerate(members):
            arrays = {name: array[place] for name, array in state.items() if name != "epoch"}
            self._states[member] = MemberState(int(state["epoch"][place]), arrays)
        self._forget([int(member) for member in members])

    def _forget(self, members: list[int]) -> None:
        """Sessions of these members no longer have their states."""
        for member in members:
            self._sessions.forget(member)

    def close(self) -> None:
        self._sessions.close()
