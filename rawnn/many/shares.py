"""Members of a group in shares: each GPU, or each rank, has a trainer of the whole group and trains
its share of the active members. Nothing passes between them but results, and the states of members
that move where fewer train on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.common.errors import ConfigError
from rawnn.engine.machine import Opened
from rawnn.many.members import Arrays, Group, MemberTrainer, Rows, Scores

UNEVEN = 1.1
"""Members move once a share has so many times its part: fewer blocks than run at once end no
sooner."""
Make = Callable[[Group, Opened, Callable[[str], None], int], MemberTrainer]
"""Makes the trainer of a group on a device, chosen for so many members at once."""
Kind = tuple[str, str]
"""The name of a trainer's class, and its sharding."""


def kind_of(trainer: MemberTrainer) -> Kind:
    """What is to be the same in all shares, so that a member has the same bits in each."""
    return type(trainer).__name__, trainer.sharding


def check_alike(kinds: Mapping[str, Kind]) -> None:
    """Raise ConfigError unless the trainers of all places, by their names, are of one kind."""
    (first, wanted), *others = kinds.items()
    for name, kind in others:
        if kind != wanted:
            raise ConfigError(f"{name} cannot train the network as {first} does, "
                              f"{wanted[1] or 'launch by launch'}: name GPUs of one kind, or a "
                              f"sharding that all can")


class SharedMembers(ABC):
    """A MemberTrainer of a share for each of so many `places`, or for each member where there are
    fewer. `at_once` are the members that train at once in one place, where so many do in all."""

    def __init__(self, group: Group, places: int, at_once: int) -> None:
        self._group, self._shares = group, (shares := min(len(group), places))
        self._owner = np.empty(len(group), np.int32)  # the share that has each member's state
        order = np.argsort([config.epochs for config in group.members], kind="stable")
        self._owner[order] = np.arange(len(group)) % shares
        self.at_once = -(-at_once // places)

    def run(self, active: Rows, epochs: int) -> None:
        self._balance(active)
        self._run([active[where] for where in self._places(active)], epochs)

    def _places(self, members: Rows) -> list[NDArray[np.intp]]:
        """For each share, where its members stand among these."""
        owner = self._owner[members]
        return [np.flatnonzero(owner == share) for share in range(self._shares)]

    def _balance(self, active: Rows) -> None:
        """Move members from shares that have more than their part of the active ones."""
        counts = np.bincount(self._owner[active], minlength=self._shares)
        part = -(-len(active) // self._shares)
        if counts.max() <= part * UNEVEN:
            return
        owner, moved = self._owner.copy(), list[int]()
        for member in active[::-1].tolist():
            least = int(counts.argmin())
            if counts[owner[member]] > counts[least] + 1:
                counts[owner[member]] -= 1
                counts[least] += 1
                owner[member] = least
                moved.append(member)
        members = np.array(sorted(moved), np.int32)
        state = self.state(members)
        self._owner = owner
        self.load(members, state)

    def scores(self, first: int = 0) -> Scores:
        # What a share did not train is NaN there.
        return Scores.of(np.fmax.reduce(self._figures(first)))

    def state(self, members: Rows) -> Arrays:
        places = self._places(members)
        found: Arrays = {}
        parts = self._states([members[where] for where in places])
        given = [(where, part) for where, part in zip(places, parts, strict=True) if where.size]
        for name in given[0][1]:
            if all(name in part for _, part in given):
                like = given[0][1][name]
                found[name] = np.empty((len(members), *like.shape[1:]), like.dtype)
                for where, part in given:
                    found[name][where] = part[name]
        return found

    def load(self, members: Rows, state: Mapping[str, NDArray[Any]]) -> None:
        places = self._places(members)
        self._load([members[where] for where in places],
                   [{name: array[where] for name, array in state.items()} for where in places])

    @abstractmethod
    def _run(self, active: Sequence[Rows], epochs: int) -> None:
        """Have each share train its active members."""

    @abstractmethod
    def _figures(self, first: int) -> Sequence[NDArray[np.float64]]:
        """[members, columns from `first` on, 3] of each share; waits."""

    @abstractmethod
    def _states(self, members: Sequence[Rows]) -> Sequence[Arrays]:
        """The states of each share's members, {} for none; waits."""

    @abstractmethod
    def _load(self, members: Sequence[Rows], states: Sequence[Arrays]) -> None:
        """Replace the states of each share's members."""
