"""Whether systems did the same work: their losses over the first steps, from the same initial
weights on the same batches.

The reference is the truth, in float64, where a system gives it (PyTorch does), else the median of
all systems' float32 losses, step by step: with three systems one that is wrong does not move it.
Compared are means over windows of WINDOW steps. Allowed is a share of how far the loss has moved
since the first step, so that a wrong update shows, a share of the loss itself for what rounding
does to it, and SLACK times what float32 costs this very run: training amplifies rounding, in some
networks by more than any fixed tolerance. That cost is the median over the systems of their float32
losses' distance from the truth; of two systems the greater, but at most ALIKE times the lesser. One
that is wrong does not move it far in either case. What coarser classes cost is measured where it
matters (rounding.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rawnn.bench.peers.worker import TRUTH, WINDOW, Cost, Losses, ReadyProgram

TOLERANCES = {"float32": (0.01, 1e-4), "tf32": (0.03, 1e-3), "bf16": (0.1, 1e-2)}
"""Precision -> the shares of the loss's movement and of the loss that windows may differ by."""
SLACK = 8.0
ALIKE = 4.0
"""Of two right runs in float32 one may be so many times as far from float64 as the other."""


@dataclass(frozen=True)
class Reference:
    """What losses are compared with: float64 [steps], and what float32 costs by windows."""

    losses: NDArray[np.float64]
    cost: NDArray[np.float64]

    def share(self, losses: Losses, precision: str, more: Cost = 0.0) -> float:
        """The largest share of the tolerance that a window used up; above 1 is wrong, and so are
        losses that are not finite. `more` is what the class costs this very run, by windows, where
        that is known."""
        mine, right = windows(as_array(losses)), windows(self.losses[:len(losses)])
        return share_of_tolerance(mine, right, self.losses[0], np.maximum(
            SLACK * self.cost, more)[:len(right)], precision)

    def distance(self, losses: NDArray[np.float64]) -> NDArray[np.float64]:
        """How far losses are away, by windows."""
        return np.abs(windows(losses) - windows(self.losses))


def share_of_tolerance(mine: NDArray[np.float64], right: NDArray[np.float64],
                       start: NDArray[np.float64], cost: NDArray[np.float64],
                       precision: str) -> float:
    """The largest share of the tolerance that losses [windows, ...] used up, of which the first
    ones are `start` [...] and precision costs `cost`; infinity for losses that are not finite or
    not as many as those that are `right`."""
    if not len(mine) or mine.shape != right.shape or not np.isfinite(mine).all():
        return math.inf
    moved, own = TOLERANCES.get(precision, TOLERANCES["bf16"])
    movement = np.maximum.accumulate(np.abs(right - start))
    return float((np.abs(mine - right) / (moved * movement + own * np.abs(start) + cost)).max())


def reference(made: Sequence[tuple[str, ReadyProgram]]) -> Reference | None:
    """What all programs, with their systems, are compared with. None unless two systems at least
    have losses in float32."""
    first: dict[str, list[float | None]] = {}
    truth: list[float | None] = []
    for system, program in made:
        if program.reason:
            continue
        if program.precision == TRUTH and len(program.losses) > len(truth):
            truth = program.losses
        if program.precision == "float32" and len(program.losses) > len(first.get(system, [])):
            first[system] = program.losses
    if len(first) < 2:
        return None
    longest = max(len(losses) for losses in first.values())
    whole = [as_array(losses) for losses in first.values() if len(losses) == longest]
    right = as_array(truth)
    if len(right) == longest and np.isfinite(right).all():
        costs = [np.maximum.accumulate(np.abs(windows(w) - windows(right))) for w in whole]
        usual = np.median(costs, axis=0)
        if len(costs) == 2:
            usual = np.minimum(np.maximum(*costs), ALIKE * np.minimum(*costs))
        return Reference(right, np.nan_to_num(usual, nan=0.0))
    right = np.median(whole, axis=0) if len(whole) > 1 else whole[0]
    return Reference(right, np.zeros(len(windows(right))))


def as_array(losses: Losses) -> NDArray[np.float64]:
    """Losses [steps], NaN for None."""
    return np.array([math.nan if v is None else v for v in losses], np.float64)


def windows(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Means of WINDOW neighbouring steps, of the rest, too."""
    return np.array([losses[i:i + WINDOW].mean() for i in range(0, len(losses), WINDOW)])
