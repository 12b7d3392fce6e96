"""Whether systems did the same work: their losses over the first steps, from the same initial
weights on the same batches.

The reference is the median of all systems' float32 losses, step by step; with three systems one
that is wrong does not move it. Compared are means over windows of WINDOW steps: rounding makes
single steps differ by more, and training amplifies it. A difference is allowed as a share of how
far the loss went since the first step, so that a wrong update shows, and a share of the loss itself
for what rounding does to it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rawnn.bench.peers.worker import Made

WINDOW = 16
TOLERANCES = {"float32": (0.01, 1e-4), "tf32": (0.03, 1e-3), "bf16": (0.1, 1e-2)}
"""Number class -> the shares of the loss's movement and of the loss that windows may differ by."""


def reference(made: Sequence[tuple[str, Made]]) -> NDArray[np.float64] | None:
    """The losses that all programs, with their systems, are compared with: float64 [steps]. None
    unless two systems at least have losses in float32."""
    first: dict[str, list[float | None]] = {}
    for system, program in made:
        if program.numbers == "float32" and not program.reason \
                and len(program.losses) > len(first.get(system, [])):
            first[system] = program.losses
    longest = max((len(losses) for losses in first.values()), default=0)
    whole = [losses for losses in first.values() if len(losses) == longest]
    if len(first) < 2 or not longest:
        return None
    if len(whole) < 2:
        return _numbers(whole[0])
    found: NDArray[np.float64] = np.median([_numbers(w) for w in whole], axis=0)
    return found


def _numbers(losses: Sequence[float | None]) -> NDArray[np.float64]:
    return np.array([math.nan if v is None else v for v in losses], np.float64)


def share(losses: Sequence[float | None], right: NDArray[np.float64], numbers: str) -> float:
    """The largest share of the tolerance that a window used up; above 1 is wrong, and so are losses
    that are not finite."""
    mine, theirs = windows(_numbers(losses)), windows(right[:len(losses)])
    if not len(mine) or not np.isfinite(mine).all():
        return float("inf")
    moved, own = TOLERANCES.get(numbers, TOLERANCES["bf16"])
    start = right[0]
    allowed = moved * np.abs(windows(right) - start).max() + own * abs(start)
    return float(np.abs(mine - theirs).max() / allowed)


def windows(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Means of WINDOW neighbouring steps, of the rest, too."""
    return np.array([losses[i:i + WINDOW].mean() for i in range(0, len(losses), WINDOW)])
