"""Members of a group spread over several GPUs of this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.common.errors import RawnnError
from rawnn.common.interrupts import EpochAborted
from rawnn.many.gpus import Gpu, result_of
from rawnn.many.members import Arrays, Group, MemberTrainer, Rows
from rawnn.many.sessions import SessionMembers
from rawnn.many.shares import Make, SharedMembers, check_alike, trainer_kind


class SpreadMembers(SharedMembers):
    """A MemberTrainer over GPUs, each with a trainer that `make` makes in its thread. All have the
    sharding that is chosen for the members that train on one of them, of `at_once` on all. `first`
    is the place of the GPU that gets the first member."""

    def __init__(self, group: Group, gpus: Sequence[Gpu], make: Make,
                 notify: Callable[[str], None], at_once: int, first: int = 0,
                 ends_together: bool = False) -> None:
        super().__init__(group, len(gpus), at_once, ends_together)
        self._gpus = [gpus[(first + share) % len(gpus)] for share in range(self._shares)]
        self._trainers: list[MemberTrainer] = []
        self._running: list[Future[None]] = []
        try:
            self._make(make, notify)
        except BaseException:
            self.close()
            raise

    def _make(self, make: Make, notify: Callable[[str], None]) -> None:
        """All at the same time; the first to come plans and compiles for the others."""
        listeners = (notify, *[_ignore] * (self._shares - 1))
        making = [gpu.submit(make, self._group, gpu.opened, listener, self.at_once)
                  for gpu, listener in zip(self._gpus, listeners, strict=True)]
        try:
            for each in making:
                result_of(each)
        finally:
            wait(making)
            pairs = [(gpu, each.result()) for gpu, each in zip(self._gpus, making, strict=True)
                     if each.exception() is None]
            self._gpus, self._trainers = [gpu for gpu, _ in pairs], [own for _, own in pairs]
        check_alike({gpu.name: trainer_kind(trainer) for gpu, trainer in
                     zip(self._gpus, self._trainers, strict=True)})

    @property
    def sharding(self) -> str:
        return next(filter(None, (trainer.sharding for trainer in self._trainers)), "")

    def _wait(self) -> None:
        """Wait until all that runs is enqueued. Raises what the first GPU that failed raised."""
        running, self._running = self._running, []
        for each in running:
            result_of(each)

    def _run(self, active: Sequence[Rows], epochs: int) -> None:
        self._running += [gpu.submit(trainer.run, members, epochs) for gpu, trainer, members in
                          zip(self._gpus, self._trainers, active, strict=True)]

    def _figures(self, first: int) -> Sequence[NDArray[np.float64]]:
        self._wait()
        reading = [gpu.submit(trainer.scores, first)
                   for gpu, trainer in zip(self._gpus, self._trainers, strict=True)]
        try:
            return [result_of(each).figures for each in reading]
        except (EpochAborted, KeyboardInterrupt):  # only this thread is interrupted
            for trainer in self._trainers:
                if isinstance(trainer, SessionMembers):
                    trainer.abort()
            raise

    def _states(self, members: Sequence[Rows]) -> Sequence[Arrays]:
        self._wait()
        reading = [gpu.submit(trainer.state, own) if len(own) else None for gpu, trainer, own in
                   zip(self._gpus, self._trainers, members, strict=True)]
        return [result_of(each) if each is not None else {} for each in reading]

    def _each(self, act: Callable[[Any, Any], None], *arguments: Sequence[Any]) -> None:
        """In the GPUs' threads: NumPy copies without Python's lock."""
        acting = [gpu.submit(act, *own) for gpu, own in
                  zip(self._gpus, zip(*arguments, strict=True), strict=False)]
        for each in acting:
            result_of(each)

    def _load(self, members: Sequence[Rows], states: Sequence[Arrays]) -> None:
        self._wait()
        loading = [gpu.submit(trainer.load, own, state) for gpu, trainer, own, state in
                   zip(self._gpus, self._trainers, members, states, strict=True) if len(own)]
        for each in loading:
            result_of(each)

    def close(self) -> None:
        self._running.clear()
        closing = [gpu.submit(trainer.close)
                   for gpu, trainer in zip(self._gpus, self._trainers, strict=False)]
        for each in closing:
            with suppress(RawnnError):  # of a GPU that failed before
                each.result()


def _ignore(message: str) -> None:
    """What one GPU has said need not be said by each."""
