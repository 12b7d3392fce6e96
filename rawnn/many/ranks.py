"""Members of a group spread over ranks, the processes of a launcher, each on a device of its own.

All ranks do the same, from the data to each decision, with the results of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.distributed import Team
from rawnn.engine.machine import Opened
from rawnn.many.members import Arrays, Group, MemberTrainer, Rows
from rawnn.many.shares import Make, SharedMembers, check_alike, trainer_kind


class RankMembers(SharedMembers):
    """A MemberTrainer over the ranks of `team`, all of which make one for each group, in the same
    order, and call the same methods. A rank without a share of the group has no trainer of it."""

    def __init__(self, group: Group, opened: Opened, team: Team, make: Make,
                 notify: Callable[[str], None], at_once: int, first: int = 0) -> None:
        super().__init__(group, team.world_size, at_once)
        self._team, self._first = team, first
        share = (team.rank - first) % team.world_size
        self._own = share if share < self._shares else None
        self._trainer: MemberTrainer | None = None
        if share == 0:
            self._trainer = make(group, opened, notify, self.at_once)
        chosen = team.any("the sharding", self._trainer.sharding if self._trainer else "")
        if share and self._own is not None:
            config = replace(group.config, sharding=chosen or group.config.sharding)
            self._trainer = make(replace(group, config=config), opened, lambda message: None,
                                 self.at_once)
        kinds = team.gather("the trainers", trainer_kind(self._trainer) if self._trainer else None)
        check_alike({f"rank {rank}": tuple(kind) for rank, kind in enumerate(kinds) if kind})

    @property
    def sharding(self) -> str:
        own = self._trainer.sharding if self._trainer is not None else ""
        return self._team.any("the sharding", own)

    def _run(self, active: Sequence[Rows], epochs: int) -> None:
        if self._trainer is not None and self._own is not None:
            self._trainer.run(active[self._own], epochs)

    def _figures(self, first: int) -> Sequence[NDArray[np.float64]]:
        own = None if self._trainer is None else self._trainer.scores(first).figures
        found = self._gathered("scores", own)
        of_shares = [found[(self._first + share) % self._team.world_size]
                     for share in range(self._shares)]
        return [array for array in of_shares if array is not None]  # all shares have some

    def _states(self, members: Sequence[Rows]) -> Sequence[Arrays]:
        own: Arrays = {}
        if self._trainer is not None and self._own is not None and len(members[self._own]):
            own = self._trainer.state(members[self._own])
        names = self._team.gather("the names of states", list(own))
        found: list[Arrays] = [{} for _ in range(self._team.world_size)]
        for name in dict.fromkeys(name for each in names for name in each):
            # One by one, as a message has an upper limit.
            for rank, array in enumerate(self._gathered(name, own.get(name))):
                if array is not None:
                    found[rank][name] = array
        return [found[(self._first + share) % self._team.world_size]
                for share in range(self._shares)]

    def _gathered(self, what: str, own: NDArray[Any] | None) -> list[NDArray[Any] | None]:
        """The arrays of all ranks, None of one that has none."""
        packed = None if own is None else [str(own.dtype), own.shape, own.tobytes()]
        return [None if each is None else
                np.frombuffer(each[2], np.dtype(each[0])).reshape(each[1])
                for each in self._team.gather(what, packed)]

    def _load(self, members: Sequence[Rows], states: Sequence[Arrays]) -> None:
        if self._trainer is not None and self._own is not None and len(members[self._own]):
            self._trainer.load(members[self._own], states[self._own])

    def close(self) -> None:
        if self._trainer is not None:
            self._trainer.close()
