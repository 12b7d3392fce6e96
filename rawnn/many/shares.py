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
from rawnn.many.members import Arrays, Group, MemberTrainer, Rows, Scores, as_slice

UNEVEN = 1.1
"""Members move to other shares once one has more than so many times an equal part. A smaller excess
costs no time: blocks that do not fill a GPU end no sooner if they are fewer."""
Make = Callable[[Group, Opened, Callable[[str], None], int], MemberTrainer]
"""Makes the trainer of a group on a device, chosen for so many members at once."""
Kind = tuple[str, str]
"""The name of a trainer's class, and its sharding."""


def trainer_kind(trainer: MemberTrainer) -> Kind:
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
    fewer. `at_once` are the members that train at once in one place, where so many do in all.
    Members that follow one another are in different shares, as they often stop at about the same
    time; where nothing but their epochs ends them and all have equally many (`ends_together`), they
    are in one, whose states are then contiguous."""

    def __init__(self, group: Group, places: int, at_once: int,
                 ends_together: bool = False) -> None:
        self._group, self._shares = group, (shares := min(len(group), places))
        self._owner = np.empty(len(group), np.int32)  # the share that has each member's state
        epochs = [config.epochs for config in group.members]
        share_of = np.arange(len(group)) * shares // len(group) \
            if ends_together and min(epochs) == max(epochs) else np.arange(len(group)) % shares
        self._owner[np.argsort(epochs, kind="stable")] = share_of
        self.at_once = -(-at_once // places)
        self._columns = 0
        self._moved = 0
        """Columns of scores, and how many of them there were when members moved last."""

    def run(self, active: Rows, epochs: int) -> None:
        self._balance(active)
        self._columns += epochs
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
        self._owner, self._moved = owner, self._columns
        self.load(members, state)

    def scores(self, first: int = 0) -> Scores:
        figures = self._figures(first)
        if first < self._moved:  # what a share did not train is NaN there
            return Scores.of(np.fmax.reduce(figures))
        found = np.empty(figures[0].shape)
        places = self._places(np.arange(len(self._group), dtype=np.int32))

        def copy(where: NDArray[np.intp], own: NDArray[np.float64]) -> None:
            found[as_slice(where)] = own[as_slice(where)]

        self._each(copy, places, figures)
        return Scores.of(found)

    def state(self, members: Rows) -> Arrays:
        places = self._places(members)
        found: Arrays = {}
        parts = self._states([members[where] for where in places])
        given = [(where, part) for where, part in zip(places, parts, strict=True) if where.size]
        for name, like in given[0][1].items():
            if all(name in part for _, part in given):
                found[name] = np.empty((len(members), *like.shape[1:]), like.dtype)

        def copy(where: NDArray[np.intp], part: Arrays) -> None:
            for name, array in found.items():
                array[as_slice(where)] = part[name]

        self._each(copy, *zip(*given, strict=True))
        return found

    def load(self, members: Rows, state: Mapping[str, NDArray[Any]]) -> None:
        places = self._places(members)
        self._load([members[where] for where in places],
                   [{name: array[where] for name, array in state.items()} for where in places])

    def _each(self, act: Callable[[Any, Any], None], *arguments: Sequence[Any]) -> None:
        """Call `act` for each share's arguments; they have nothing to do with one another."""
        for own in zip(*arguments, strict=True):
            act(*own)

    @abstractmethod
    def _run(self, active: Sequence[Rows], epochs: int) -> None:
        """Have each share train its active members."""

    @abstractmethod
    def _figures(self, first: int) -> Sequence[NDArray[np.float64]]:
        """[members, columns from `first` on, 3] of each share, in order; waits."""

    @abstractmethod
    def _states(self, members: Sequence[Rows]) -> Sequence[Arrays]:
        """The states of each share's members, {} for none; waits."""

    @abstractmethod
    def _load(self, members: Sequence[Rows], states: Sequence[Arrays]) -> None:
        """Replace the states of each share's members."""
