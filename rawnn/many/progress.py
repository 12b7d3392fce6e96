"""What is known of members while they train: how far each is, what it reached, why it stopped."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.common.errors import ConfigError
from rawnn.many.members import Arrays


class Status(IntEnum):
    """Whether a member trains on, or why not."""

    ACTIVE = 0
    FINISHED = 1
    STOPPED = 2
    HALVED = 3
    DIVERGED = 4
    PAUSED = 5

    @property
    def words(self) -> str:
        """As tables have it."""
        return {0: "active", 1: "finished", 2: "stopped early", 3: "halved", 4: "diverged",
                5: "paused"}[self]


FIGURES = ("train_loss", "test_loss", "test_accuracy")
"""The last dimension of `history`."""
HIGHER_IS_BETTER = ("test_accuracy",)


@dataclass(eq=False)
class Progress:
    """Arrays over the N members.

    epoch: int64, the epochs that each has behind it.
    status: int32, of Status.
    rung: int32, how many rungs of successive halving each was passed by.
    best, best_epoch, waited: float64 and int64, as early stopping knows them.
    history: float64 [N, epochs, 3], the FIGURES behind each epoch, NaN where there are none.
    """

    epoch: NDArray[np.int64]
    status: NDArray[np.int32]
    rung: NDArray[np.int32]
    best: NDArray[np.float64]
    best_epoch: NDArray[np.int64]
    waited: NDArray[np.int64]
    history: NDArray[np.float64]

    @classmethod
    def new(cls, members: int, epochs: int) -> Progress:
        """Of members that have not begun."""
        return cls(np.zeros(members, np.int64), np.zeros(members, np.int32),
                   np.zeros(members, np.int32), np.full(members, np.nan),
                   np.zeros(members, np.int64), np.zeros(members, np.int64),
                   np.full((members, epochs, 3), np.nan))

    @classmethod
    def of(cls, arrays: Arrays, epochs: int) -> Progress:
        """As `arrays` has it, with room for so many epochs."""
        found = cls(**{field.name: arrays[field.name].copy() for field in fields(cls)})
        missing = epochs - found.history.shape[1]
        if missing > 0:
            more = np.full((len(found.epoch), missing, 3), np.nan)
            found.history = np.concatenate([found.history, more], axis=1)
        return found

    def arrays(self) -> Arrays:
        """Copies of all, by name."""
        return {field.name: getattr(self, field.name).copy() for field in fields(self)}

    @property
    def active(self) -> NDArray[np.int64]:
        """The members that train on."""
        return np.flatnonzero(self.status == Status.ACTIVE)

    def figure(self, name: str, epoch: int | NDArray[np.int64]) -> NDArray[np.float64]:
        """[N], what each member reached behind `epoch`, or behind its last where that is less; NaN
        before the first."""
        last = np.minimum(epoch, self.epoch)
        values = self.history[np.arange(len(last)), np.maximum(last, 1) - 1, FIGURES.index(name)]
        return np.where(last > 0, values, np.nan)


@dataclass(frozen=True)
class ManyReport:
    """What a listener's `reported` is given of many networks, once an epoch.

    epoch: the epoch that is done.
    members: how many trained in it; `total`: how many there are.
    best_member: the number of the member with the best figure behind this epoch, -1 for none.
    monitor, best: the name of the figure, and that member's.
    steps_per_second: training steps of all members together, validation included in the time.
    seconds_left: about, until all are done; NaN where it is not known.
    """

    epoch: int
    members: int
    total: int
    best_member: int
    monitor: str
    best: float
    steps_per_second: float
    seconds_left: float


def best_of(values: NDArray[np.float64], name: str) -> NDArray[np.int64]:
    """The row of the best value of the figure `name` in each column, int64 [columns], the first of
    equal ones; -1 where there is none."""
    lines = np.ascontiguousarray(values.T)
    missing = np.isnan(lines)
    known = np.where(missing, -np.inf if name in HIGHER_IS_BETTER else np.inf, lines)
    found = known.argmax(axis=1) if name in HIGHER_IS_BETTER else known.argmin(axis=1)
    is_known = ~missing[np.arange(len(lines)), found]  # infinite values are, too
    return np.where(missing.all(axis=1), -1, np.where(is_known, found, missing.argmin(axis=1)))


def member_numbers(given: object) -> list[int]:
    """Numbers of members that a caller lists. Raises ConfigError for anything else."""
    numbers: list[Any] = list(given) if isinstance(given, Iterable) else [given]
    if not isinstance(given, Iterable) or any(
            isinstance(n, bool) or not isinstance(n, int | np.integer) for n in numbers):
        raise ConfigError(f"members = {given!r}: give a list of whole numbers, such as [3, 17]")
    return [int(n) for n in numbers]
