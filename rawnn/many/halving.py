"""Synchronous successive halving (Jamieson and Talwalkar, 2016): after each rung of epochs the best
part of the candidates continues."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rawnn.common.errors import ConfigError


def rungs_of(candidates: int, epochs: int, halving: float | None,
             min_epochs: int | None) -> tuple[int, ...]:
    """The epochs behind which one of `halving` candidates continues: `min_epochs`, and `halving`
    times the last, below `epochs`, until fewer than `halving` candidates are left. Without
    `min_epochs` the first rung is placed so that this comes true. Raises ConfigError."""
    if halving is None:
        if min_epochs is not None:
            raise ConfigError(f"min_epochs = {min_epochs} plays no part without halving: give "
                              f"halving=3, or leave it out")
        return ()
    if isinstance(halving, bool) or not isinstance(halving, int | float | np.number) \
            or not 1 < halving < math.inf:
        raise ConfigError(f"halving = {halving!r}: give a number above 1; of so many candidates "
                          f"one continues behind each rung")
    if min_epochs is None and candidates < halving:
        return ()
    if min_epochs is None:
        most = int(math.log(max(candidates, 1)) / math.log(halving) + 1e-9)
        min_epochs = max(1, int(epochs / halving ** most))
    if isinstance(min_epochs, bool) or not isinstance(min_epochs, int | np.integer) \
            or not 1 <= min_epochs < max(epochs, 2):
        raise ConfigError(f"min_epochs = {min_epochs!r}: give a whole number from 1 to below "
                          f"epochs = {epochs}")
    found: list[int] = []
    left, rung = float(candidates), float(min_epochs)
    while round(rung) < epochs and left >= halving:
        if not found or round(rung) > found[-1]:
            found.append(round(rung))
            left //= halving
        rung *= halving
    return tuple(found)


def survivors(candidate: NDArray[np.int32], values: NDArray[np.float64], halving: float,
              higher: bool) -> NDArray[np.bool_]:
    """Which members continue, bool [N]: those of the best candidates, one of `halving`, or one. A
    candidate's value is the mean over its members, where `higher` says what is better; one with a
    NaN comes last, and of equal ones the first is better."""
    numbers, inverse = np.unique(candidate, return_inverse=True)
    totals = np.bincount(inverse, weights=values) / np.bincount(inverse)
    order = np.lexsort((numbers, -totals if higher else totals))  # NaN last either way
    count = max(1, int(len(numbers) / halving + 1e-9))
    continues = np.zeros(len(numbers), bool)
    continues[order[:count]] = True
    found: NDArray[np.bool_] = continues[inverse]
    return found
