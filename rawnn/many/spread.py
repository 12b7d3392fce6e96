"""Members of a group spread over several GPUs. Nothing passes between these but the states of
members that move where fewer train on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.common.errors import ConfigError, RawnnError
from rawnn.engine.machine import Opened
from rawnn.many.gpus import Gpu
from rawnn.many.members import Arrays, Group, MemberTrainer, Rows, Scores

UNEVEN = 1.1
"""Members move once a GPU has so many times its share: fewer blocks than run at once end no sooner.
"""
Make = Callable[[Group, Opened, Callable[[str], None], int], MemberTrainer]
"""Makes the trainer of a group on a device, chosen for so many members at once."""


class SpreadMembers:
    """A MemberTrainer over several GPUs. Each has a trainer of the whole group, by `make`, and
    trains its share of the active members, so that any member can move to any GPU. All have the
    sharding that is chosen for the members of one of them. `first` is the place of the GPU that
    gets the first member."""

    def __init__(self, group: Group, gpus: Sequence[Gpu], make: Make,
                 notify: Callable[[str], None], first: int = 0) -> None:
        count = min(len(group), len(gpus))
        self._group = group
        self._gpus = [gpus[(first + i) % len(gpus)] for i in range(count)]
        self._trainers: list[MemberTrainer] = []
        self._running: list[Future[None]] = []
        self._owner = np.empty(len(group), np.int32)  # the place of the GPU that has its state
        order = np.argsort([config.epochs for config in group.members], kind="stable")
        self._owner[order] = np.arange(len(group)) % count
        share = -(-len(group) // count)
        try:
            self._make(make, share, notify)
        except BaseException:
            self.close()
            raise

    def _make(self, make: Make, share: int, notify: Callable[[str], None]) -> None:
        """The first trainer chooses the sharding, and compiles what the others read from the
        cache."""
        first = self._gpus[0].submit(make, self._group, self._gpus[0].opened, notify,
                                     share).result()
        self._trainers.append(first)
        config = self._group.config
        group = replace(self._group, config=replace(
            config, sharding=first.sharding or config.sharding))
        making = [gpu.submit(make, group, gpu.opened, lambda message: None, share)
                  for gpu in self._gpus[1:]]
        errors = [error for each in making if (error := each.exception()) is not None]
        self._trainers += [each.result() for each in making if each.exception() is None]
        if errors:
            raise errors[0]
        for gpu, trainer in zip(self._gpus, self._trainers, strict=True):
            if (type(trainer), trainer.sharding) != (type(first), first.sharding):
                raise ConfigError(f"{gpu.name} cannot train the network as {self._gpus[0].name} "
                                  f"does, {first.sharding}: name GPUs of one kind, or a sharding "
                                  f"that both can")

    @property
    def sharding(self) -> str:
        return next(filter(None, (trainer.sharding for trainer in self._trainers)), "")

    def _parts(self, members: Rows) -> list[tuple[Gpu, MemberTrainer, NDArray[np.intp]]]:
        """For each GPU that has some of these members: where they stand among them."""
        owner = self._owner[members]
        return [(gpu, trainer, where) for place, (gpu, trainer) in
                enumerate(zip(self._gpus, self._trainers, strict=True))
                if (where := np.flatnonzero(owner == place)).size]

    def run(self, active: Rows, epochs: int) -> None:
        self._balance(active)
        owner = self._owner[active]
        self._running += [
            gpu.submit(trainer.run, active[owner == place], epochs) for place, (gpu, trainer) in
            enumerate(zip(self._gpus, self._trainers, strict=True))]

    def _balance(self, active: Rows) -> None:
        """Move members from GPUs that have more than their share of the active ones."""
        counts = np.bincount(self._owner[active], minlength=len(self._gpus))
        share = -(-len(active) // len(self._gpus))
        if not len(active) or counts.max() <= share * UNEVEN:
            return
        moved: list[int] = []
        owner = self._owner.copy()
        for member in active[::-1].tolist():
            least = int(counts.argmin())
            if counts[owner[member]] > share or counts[owner[member]] > counts[least] + 1:
                counts[owner[member]] -= 1
                counts[least] += 1
                owner[member] = least
                moved.append(member)
        members = np.array(sorted(moved), np.int32)
        state = self.state(members)
        self._owner = owner
        self.load(members, state)

    def _wait(self) -> None:
        """Wait until all that runs is enqueued. Raises what the first GPU that failed raised."""
        running, self._running = self._running, []
        for each in running:
            each.result()

    def scores(self, first: int = 0) -> Scores:
        self._wait()
        reading = [gpu.submit(trainer.scores, first) for gpu, trainer in
                   zip(self._gpus, self._trainers, strict=True)]
        found = [each.result().figures for each in reading]
        return Scores.of(np.fmax.reduce(found))  # what a GPU did not train is NaN there

    def state(self, members: Rows) -> Arrays:
        self._wait()
        reading = [(where, gpu.submit(trainer.state, members[where]))
                   for gpu, trainer, where in self._parts(members)]
        parts = [(where, each.result()) for where, each in reading]
        names = [name for name in parts[0][1] if all(name in part for _, part in parts)]
        found: Arrays = {}
        for name in names:
            like = parts[0][1][name]
            found[name] = np.empty((len(members), *like.shape[1:]), like.dtype)
            for where, part in parts:
                found[name][where] = part[name]
        return found

    def load(self, members: Rows, state: Mapping[str, NDArray[Any]]) -> None:
        self._wait()
        loading = [gpu.submit(trainer.load, members[where],
                              {name: array[where] for name, array in state.items()})
                   for gpu, trainer, where in self._parts(members)]
        for each in loading:
            each.result()

    def close(self) -> None:
        self._running.clear()
        closing = [gpu.submit(trainer.close) for gpu, trainer in
                   zip(self._gpus, self._trainers, strict=False)]
        for each in closing:
            with suppress(RawnnError):  # of a GPU that failed before
                each.result()
