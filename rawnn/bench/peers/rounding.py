"""What coarse operands cost a run, measured: the same steps in NumPy, the operands of every product
rounded at random.

No fixed share of a loss says how far tf32 may move it: training amplifies rounding, in some
networks by more than a wrong optimizer would. So where a program's losses are further from the
truth than the fixed shares allow, its network is trained WAYS times with operands that are rounded
up or down at random, in proportion to how near either is: each is as valid a run as the program's
own. The program may be as far away as TIMES the furthest of them. What is wrong by more than
rounding is still found, and a network that rounding hardly moves gets no wider tolerance.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rawnn.bench.peers.ensemble import Ensemble
from rawnn.bench.peers.numpy_many import Stacked
from rawnn.bench.peers.numpy_system import Loop, Tensor
from rawnn.bench.peers.training_problem import Problem
from rawnn.bench.peers.worker import CHECKED_EPOCHS, Cost, Losses, ReadyProgram

BITS = {"tf32": 10, "bf16": 7}
"""Precision -> fraction bits of its operands; float32's own cost is known from the systems."""
WAYS = 8
TIMES = 2.0
"""In 629-387-675-36-49 at batch 2 with Adam, whose losses in tf32 such runs move by up to 3.3 times
the fixed shares, rounding to the nearest uses up 0.34 of this, a run without the last bias 6.1, one
on other batches 9.6 (results/trials/peers.toml)."""
MOST_WORK = 1e11
"""Operations of a run up to which it is measured: all ways take some seconds. A larger one has
batches over which rounding averages out, and only the fixed shares."""


class Reference(Protocol):
    """What losses are compared with: of one network (loss_check.py) or of members
    (many_check.py)."""

    def share(self, losses: Losses, precision: str, more: Cost = 0.0) -> float:
        """The largest share of the tolerance that losses used up, above 1 is wrong; `more` is what
        the precision costs."""

    def distance(self, losses: NDArray[np.float64]) -> NDArray[np.float64]:
        """How far the losses of all steps that are checked are away."""


def share(right: Reference, problem: Problem, made: ReadyProgram) -> float:
    """The largest share of the tolerance that a program's losses used up; above 1 is wrong."""
    found = right.share(made.losses, made.precision)
    networks = len(problem.checked) if isinstance(problem, Ensemble) else 1
    if not 1 < found < np.inf or made.precision not in BITS \
            or problem.flops * CHECKED_EPOCHS * problem.steps * networks > MOST_WORK:
        return found
    away = [right.distance(way) for way in _ways(problem, made.precision)]
    cost = np.maximum.accumulate(np.nan_to_num(np.max(away, axis=0), nan=0.0, posinf=0.0))
    return right.share(made.losses, made.precision, TIMES * cost)  # two errors may cancel later


@lru_cache(8)
def _ways(problem: Problem, precision: str) -> list[NDArray[np.float64]]:
    """The losses of each way; once for all programs of a class."""
    return [losses(problem, stochastically_rounded(BITS[precision], way)) for way in range(WAYS)]


def losses(problem: Problem, operand: Callable[[Tensor], Tensor],
           system: type[Loop] = Loop) -> NDArray[np.float64]:
    """The loss of each step of the epochs that are checked, with such operands of products."""
    loop = Stacked(problem, problem.checked, operand=operand) if isinstance(problem, Ensemble) \
        else system(problem, operand)
    return loop.checked_losses()


def stochastically_rounded(bits: int, seed: int) -> Callable[[Tensor], Tensor]:
    """Rounds float32 to so many fraction bits, up or down: in the mean to what it was."""
    generator, dropped = np.random.default_rng([seed, bits]), 23 - bits
    mask = np.uint32(0xFFFFFFFF << dropped & 0xFFFFFFFF)

    def rounded(array: Tensor) -> Tensor:
        words = np.ascontiguousarray(array, np.float32).view(np.uint32)
        added = generator.integers(0, 1 << dropped, words.shape, np.uint32)
        found: Tensor = ((words + added) & mask).view(np.float32)
        return found

    return rounded
