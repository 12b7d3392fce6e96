"""Whether systems trained the same ensemble: some members' mean losses of the first epochs, from
the same initial weights on the same batches in the same order.

The reference is computed in float64 by NumPy. Of each member and epoch the allowed difference is a
share of how far the loss has moved since its first step, and a share of the loss, as for single
networks (loss_check.py); and SLACK times what float32 costs the same member in NumPy. Where a
coarser precision goes beyond that, it may cost what rounding does (rounding.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rawnn.bench.peers import rounding
from rawnn.bench.peers.ensemble import Ensemble
from rawnn.bench.peers.loss_check import SLACK, as_array, share_of_tolerance
from rawnn.bench.peers.numpy_many import Stacked
from rawnn.bench.peers.training_problem import Problem
from rawnn.bench.peers.worker import CHECKED_EPOCHS, Cost, Losses, ReadyProgram, ShareOf


@dataclass(frozen=True)
class Reference:
    """In float64: the loss of each checked member's first step [members], the mean loss of each
    epoch [epochs, members], and how far float32 is from it."""

    first: NDArray[np.float64]
    epochs: NDArray[np.float64]
    cost: NDArray[np.float64]

    def share(self, losses: Losses, precision: str, more: Cost = 0.0) -> float:
        """As rounding.Reference has it."""
        mine = as_array(losses)
        if mine.size == self.epochs.size:
            mine = mine.reshape(self.epochs.shape)
        return share_of_tolerance(mine, self.epochs, self.first,
                                  np.maximum(SLACK * self.cost, more), precision)

    def distance(self, losses: NDArray[np.float64]) -> NDArray[np.float64]:
        """As rounding.Reference has it."""
        return np.abs(by_epoch(losses) - self.epochs)


def by_epoch(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """The means [epochs, members] of the losses of all steps [steps, members]."""
    return np.asarray(losses.reshape(CHECKED_EPOCHS, -1, losses.shape[1]).mean(axis=1))


@lru_cache(4)
def reference(problem: Ensemble) -> Reference:
    exact, coarse = (Stacked(problem, problem.checked, kind).checked_losses()
                     for kind in (np.float64, np.float32))
    return Reference(exact[0], by_epoch(exact), np.maximum.accumulate(
        np.abs(by_epoch(coarse) - by_epoch(exact))))


def share(problem: Ensemble, made: ReadyProgram) -> float:
    """The largest share of the tolerance that a program's losses used up; above 1 is wrong."""
    return rounding.share(reference(problem), problem, made)


def checker(problem: Problem, made: Sequence[tuple[str, ReadyProgram]]) -> ShareOf:
    """What says how much of the tolerance a program of an ensemble used up."""
    assert isinstance(problem, Ensemble)
    return lambda program: share(problem, program)
