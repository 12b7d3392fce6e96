"""rawnn itself on ensembles: the members of one group, as `rawnn.train_many` trains them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache, partial
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

import rawnn
from rawnn.bench.peers.ensemble import CALL_EPOCHS, Ensemble
from rawnn.bench.peers.rawnn_system import SETS, versions
from rawnn.bench.peers.worker import Offer
from rawnn.data import Dataset, from_arrays
from rawnn.engine.config import Config
from rawnn.engine.machine import Opened, open_device
from rawnn.many.members import Group, MemberTrainer
from rawnn.many.trainers import trainer_of

__all__ = ["Members", "offers", "versions"]

EPOCHS = 2000
"""Epochs that a trainer can run; a program that needs more makes a new one between its samples."""


def offers(problem: Ensemble, device: str, forms: list[str]) -> Iterator[Offer]:
    """`best` in each precision, or other sets of toggles ("bf16:best,sr"). On the host float32
    alone."""
    opened = open_device(device, lambda message: None)
    sets = [(n, o) for n, _, o in (f.partition(":") for f in forms)] or list(SETS.items())
    for precision, opt in sets:
        if opened.device is not None or precision == "float32":
            yield Offer(precision, opt, "wall", partial(Members, problem, opt, device, opened))


def dataset(problem: Ensemble) -> Dataset:
    """The examples, and one row to validate on: the peers do not validate."""
    x, y = problem.arrays()
    return from_arrays((x, y), (x[:1], y[:1]),
                       kind="labels" if problem.loss == "cross_entropy" else "values")


def config_of(problem: Ensemble, opt: str, device: str, epochs: int = EPOCHS) -> Config:
    """What all members share, with the first member's seed."""
    return replace(problem.config(opt, device), epochs=epochs, partial=False)


def group_of(problem: Ensemble, opt: str, device: str) -> Group:
    """All members on all rows."""
    config, data = config_of(problem, opt, device), dataset(problem)
    return Group(
        config=config, dataset=data, rows=(), held_out=(),
        members=tuple(replace(config, seed=problem.seed + i) for i in range(problem.members)),
        fold=np.zeros(problem.members, np.int32), normalisations=(data.normalisation,),
        target_normalisations=(data.target_normalisation,))


class Members:
    """All members, epoch after epoch, enqueued without a wait in between; a sample ends when the
    device is done."""

    def __init__(self, problem: Ensemble, opt: str, device: str, opened: Opened) -> None:
        self._group, self._opened = group_of(problem, opt, device), opened
        self._all = np.arange(problem.members, dtype=np.int32)
        self._trainer: MemberTrainer | None = None
        self._left = 0
        self._is_kernel = bool(self._ready(1).sharding)
        is_at_once = self._is_kernel or opened.device is None
        self.footprint = {"call_s": called(problem, opt, device)} if is_at_once else {}

    def reorder(self, order: NDArray[np.int32]) -> None:
        """Members shuffle by themselves."""

    def _ready(self, epochs: int) -> MemberTrainer:
        """A trainer that can run so many more epochs."""
        if self._trainer is None or self._left < epochs:
            self.close()
            self._trainer = trainer_of(self._group, self._opened, print)
            self._left = EPOCHS
        return self._trainer

    def block(self, epochs: int) -> float:
        trainer = self._ready(epochs)
        begun = perf_counter()
        trainer.run(self._all, epochs)
        if self._is_kernel and self._opened.device is not None:
            self._opened.device.require_usable()  # waits for all streams
        else:
            trainer.scores(EPOCHS)  # what is not enqueued runs once it is waited for
        self._left -= epochs
        return (perf_counter() - begun) * 1e3 / epochs

    def losses(self) -> NDArray[np.floating[Any]]:
        if self._trainer is None:
            return np.zeros(len(self._all))
        found: NDArray[np.floating[Any]] = self._trainer.scores().train_loss[:, -1]
        return found

    def close(self) -> None:
        """Free what the trainer holds."""
        if self._trainer is not None:
            self._trainer.close()
            self._trainer = None

    __del__ = close


@lru_cache(16)
def called(problem: Ensemble, opt: str, device: str) -> float:
    """Seconds from a call of `rawnn.train_many` to its result, with an empty cache of kernels. Not
    taken of members that train one after the other, launch by launch."""
    config = config_of(problem, opt, device, CALL_EPOCHS)
    x, y = problem.arrays()
    with TemporaryDirectory() as folder, patch.dict(os.environ, RAWNN_CACHE=folder):
        begun = perf_counter()
        rawnn.train_many([replace(config, seed=problem.seed + i) for i in range(problem.members)],
                         data=(x, y), validation=(x[:1], y[:1]))
        return perf_counter() - begun
