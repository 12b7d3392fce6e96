"""Groups that share a GPU's memory: where not all fit, some are moved to the host until they train.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rawnn.common.errors import OutOfMemory
from rawnn.many.members import Arrays, MemberTrainer, Rows, Scores, columns_from


class Resident(Protocol):
    """Has device memory that it can do without for a while."""

    def release(self) -> bool:
        """Free what it can; returns whether there was any. Waits for work that uses it."""


def release_another(residents: Sequence[Resident], own: Resident) -> bool:
    """Let one of the others free its memory; returns whether one did."""
    return any(each.release() for each in residents if each is not own)


class MovableMembers:
    """A MemberTrainer of `count` members by another, which `make` makes for a sharding. Where one
    of the `residents` of its device needs the memory, it is closed; it is created again, with the
    states that it had, once its members are waited for. `notify` gets a sentence the first time.
    Raises OutOfMemory where the group does not fit by itself."""

    def __init__(self, count: int, make: Callable[[str], MemberTrainer],
                 residents: list[Resident], notify: Callable[[str], object]) -> None:
        self._members, self._make = np.arange(count, dtype=np.int32), make
        self._residents, self._notify = residents, notify
        self._blocks = [np.empty((count, 0, 3))]  # columns of trainers that were closed
        self._jobs: list[tuple[Rows, int]] = []
        self._state: Arrays = {}  # while there is no trainer
        self._sharding, self._is_crowded = "", False
        residents.append(self)
        self._trainer: MemberTrainer | None = None
        self._sharding = self._resident().sharding

    @property
    def sharding(self) -> str:
        return self._sharding

    def _resident(self) -> MemberTrainer:
        """The trainer, with all jobs enqueued."""
        while self._trainer is None:
            try:
                self._trainer = self._make(self._sharding)
            except OutOfMemory:
                if not release_another(self._residents, self):
                    raise
                if not self._is_crowded:
                    self._notify(f"the GPU has no memory for {len(self._members):,} members and "
                                 f"the other groups at once: they train one after the other")
                self._is_crowded = True
        if self._state:
            self._trainer.load(self._members, self._state)
            self._state = {}
        jobs, self._jobs = self._jobs, []
        for active, epochs in jobs:
            self._trainer.run(active, epochs)
        return self._trainer

    def release(self) -> bool:
        """Move the states of all members to the host, and close the trainer."""
        if self._trainer is None:
            return False
        self._blocks.append(self._trainer.scores().figures)
        self._state = self._trainer.state(self._members)
        self._trainer.close()
        self._trainer = None
        return True

    def run(self, active: Rows, epochs: int) -> None:
        self._jobs.append((active, epochs))
        if self._trainer is not None:
            self._resident()

    def scores(self, first: int = 0) -> Scores:
        known = sum(block.shape[1] for block in self._blocks)
        if self._trainer is None and not self._jobs:
            return Scores.of(columns_from(self._blocks, first))
        own = self._resident().scores(max(first - known, 0))
        if first >= known:
            return own
        return Scores.of(columns_from([*self._blocks, own.figures], first))

    def state(self, members: Rows) -> Arrays:
        if self._state and not self._jobs:
            return {name: array[members] for name, array in self._state.items()}
        return self._resident().state(members)

    def load(self, members: Rows, state: Mapping[str, NDArray[Any]]) -> None:
        self._resident().load(members, state)

    def close(self) -> None:
        if self._trainer is not None:
            self._trainer.close()
            self._trainer = None
