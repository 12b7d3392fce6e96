"""Whether systems trained the same ensemble: some members' mean losses of the first epochs, from
the same initial weights on the same batches in the same order.

The reference is computed in float64 by NumPy. Of each member and epoch the allowed difference is a
share of how far the loss has moved since its first step, and a share of the loss, as for single
networks (loss_check.py); and SLACK times what float32 costs the same member in NumPy. Where a
coarser precision goes beyond that, the members are trained again with operands that are rounded
up or down at random (rounding.py), and TIMES the furthest of those is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.bench.peers.ensemble import Ensemble
from rawnn.bench.peers.loss_check import SLACK, TOLERANCES
from rawnn.bench.peers.numpy_many import Stacked
from rawnn.bench.peers.numpy_system import as_it_is
from rawnn.bench.peers.rounding import BITS, MOST_WORK, TIMES, WAYS, stochastically_rounded
from rawnn.bench.peers.training_problem import Problem
from rawnn.bench.peers.worker import CHECKED_EPOCHS, Made

Losses = NDArray[np.float64]
"""[epochs, members that are checked]"""


@dataclass(frozen=True)
class Reference:
    """In float64: the loss of each checked member's first step, and the mean loss of each epoch;
    `cost` is how far float32 is from it."""

    first: Losses
    epochs: Losses
    cost: Losses

    def share(self, losses: Losses, numbers: str, more: Losses | float = 0.0) -> float:
        """The largest share of the tolerance that a member used up in an epoch; above 1 is
        wrong."""
        if losses.shape != self.epochs.shape or not np.isfinite(losses).all():
            return float("inf")
        moved, own = TOLERANCES.get(numbers, TOLERANCES["bf16"])
        movement = np.maximum.accumulate(np.abs(self.epochs - self.first))
        allowed = moved * movement + own * np.abs(self.first) + np.maximum(SLACK * self.cost, more)
        return float((np.abs(losses - self.epochs) / allowed).max())


@lru_cache(4)
def reference(problem: Ensemble) -> Reference:
    first, epochs = trained(problem, np.float64)
    _, coarse = trained(problem, np.float32)
    return Reference(first, epochs, np.maximum.accumulate(np.abs(coarse - epochs)))


def trained(problem: Ensemble, kind: Any,
            operand: Callable[[NDArray[Any]], NDArray[Any]] = as_it_is) -> tuple[Losses, Losses]:
    """The first loss [members] and the epochs' mean losses of the members that are checked."""
    stacked, first = Stacked(problem, problem.checked, kind, operand), None
    epochs = []
    for epoch in range(CHECKED_EPOCHS):
        order, losses = problem.order_of(epoch, problem.checked), []
        for step in range(problem.steps):
            losses.append(stacked.step(order[:, step * problem.batch:(step + 1) * problem.batch]))
        first = losses[0] if first is None else first
        epochs.append(np.mean(losses, axis=0, dtype=np.float64))
    assert first is not None
    return np.asarray(first, np.float64), np.stack(epochs)


def share(problem: Ensemble, made: Made) -> float:
    """The largest share of the tolerance that a program's losses used up; above 1 is wrong."""
    right = reference(problem)
    losses = np.array([np.nan if v is None else v for v in made.losses], np.float64)
    if losses.size != right.epochs.size:
        return float("inf")
    losses = losses.reshape(right.epochs.shape)
    found = right.share(losses, made.numbers)
    work = problem.flops * CHECKED_EPOCHS * problem.steps * len(problem.checked)
    if not 1 < found < np.inf or made.numbers not in BITS or work > MOST_WORK:
        return found
    return right.share(losses, made.numbers, TIMES * rounding_cost(problem, made.numbers))


@lru_cache(8)
def rounding_cost(problem: Ensemble, numbers: str) -> Losses:
    """How far rounding the operands of a precision at random moves the losses."""
    right = reference(problem)
    operands = [stochastically_rounded(BITS[numbers], way) for way in range(WAYS)]
    away = [np.abs(trained(problem, np.float32, operand)[1] - right.epochs) for operand in operands]
    return np.maximum.accumulate(np.nan_to_num(np.max(away, axis=0), nan=0.0, posinf=0.0))


def checker(problem: Problem, made: Sequence[tuple[str, Made]]) -> Callable[[Made], float]:
    """What says how much of the tolerance a program of an ensemble used up."""
    assert isinstance(problem, Ensemble)
    return lambda program: share(problem, program)
