"""Members of a group in parts, each with a trainer of its own on the same device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.many.members import Arrays, Group, MemberTrainer, Rows, Scores


class PartedMembers:
    """A MemberTrainer of a group by one for each of `parts`, the places of their members, that
    `make` makes. Where it raises, those made before are closed."""

    def __init__(self, group: Group, parts: Sequence[Rows],
                 make: Callable[[Group], MemberTrainer]) -> None:
        self._part, self._place = (np.zeros(len(group), np.int32) for _ in range(2))
        for number, places in enumerate(parts):
            self._part[places], self._place[places] = number, np.arange(len(places))
        self._trainers: list[MemberTrainer] = []
        with ExitStack() as closing:
            closing.callback(self.close)
            for places in parts:
                self._trainers.append(make(group.part(places)))
            closing.pop_all()

    @property
    def sharding(self) -> str:
        return self._trainers[0].sharding

    def _each(self, members: Rows) -> Iterator[tuple[MemberTrainer, Rows, NDArray[np.intp]]]:
        """Each trainer with its members among these, as it numbers them, and where they stand."""
        for number, trainer in enumerate(self._trainers):
            where = np.flatnonzero(self._part[members] == number)
            yield trainer, self._place[members[where]], where

    def run(self, active: Rows, epochs: int) -> None:
        for trainer, own, _ in self._each(active):
            trainer.run(own, epochs)

    def scores(self, first: int = 0) -> Scores:
        found = [trainer.scores(first).figures for trainer in self._trainers]
        figures = np.empty((len(self._part), *found[0].shape[1:]))
        for number, part in enumerate(found):
            figures[self._part == number] = part
        return Scores.of(figures)

    def state(self, members: Rows) -> Arrays:
        found: Arrays = {}
        for trainer, own, where in self._each(members):
            for name, array in (trainer.state(own) if len(own) else {}).items():
                shape = (len(members), *array.shape[1:])
                found.setdefault(name, np.empty(shape, array.dtype))[where] = array
        return found

    def load(self, members: Rows, state: Mapping[str, NDArray[Any]]) -> None:
        for trainer, own, where in self._each(members):
            if len(own):
                trainer.load(own, {name: array[where] for name, array in state.items()})

    def close(self) -> None:
        for trainer in self._trainers:
            trainer.close()
