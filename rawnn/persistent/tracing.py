"""Traced kernels, which stamp the end of each part of a phase, and what their stamps say.

A stamp is the clock of a multiprocessor, read by one lane of each warp. A phase ends in a block
when its last warp gets to the end of it, so that the phases of a step add up to the step. A phase
may have parts: work, waiting for a receive buffer or the other groups, sending.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rawnn.persistent.choose import Choice
from rawnn.persistent.layout import LAUNCH_STAMPS, NANOSECOND_WORDS, Layout
from rawnn.persistent.stamps import Stamp, stamps

WRAPS = 2**32
"""Stamps are the lower half of a clock: differences are taken by this modulus."""


AHEAD = 2**20
"""Cycles by which a warp may begin before the first one."""


def traced(chosen: Choice, steps: int) -> Choice:
    """The same choice, whose kernel stamps the phases of its first `steps` steps."""
    layout = replace(chosen.layout, traced=steps, stamps=0)
    return replace(chosen, layout=replace(layout, stamps=len(stamps(layout.schedule))))


@dataclass(frozen=True)
class Trace:
    """What a traced launch stamped, in cycles of the multiprocessors.

    `stamps` are those of a step in order. `cycles` [steps, blocks, stamps] are those by which the
    last warp came later to a stamp than to the one before; the first of a step follows the last of
    the step before. `own` [steps, blocks, stamps, warps] are those that each warp took itself.
    `load` and `store` [blocks] are what a launch takes ahead of the steps and behind them.
    `clock` is cycles a microsecond, and `us` the microseconds from the first block's begin to the
    last one's end, both by the GPU's clock; 0 where that stood still.
    """

    stamps: tuple[Stamp, ...]
    cycles: NDArray[np.int64]
    own: NDArray[np.int64]
    load: NDArray[np.int64]
    store: NDArray[np.int64]
    clock: float
    us: float

    @property
    def step(self) -> NDArray[np.int64]:
        """Cycles of each step [steps, blocks]."""
        total: NDArray[np.int64] = self.cycles.sum(axis=2)
        return total


def read_trace(layout: Layout, words: NDArray[np.unsignedinteger]) -> Trace:
    """What the workspace `trace` of a layout's kernel says, once it has run as many steps as are
    traced."""
    d, found = layout.sharding, tuple(stamps(layout.schedule))
    steps, blocks, warps = layout.traced, d.blocks, d.warps
    step_plans = steps * blocks * len(found) * warps
    of_launch = blocks * LAUNCH_STAMPS * warps
    flat = np.asarray(words).astype(np.int64) % WRAPS
    each = flat[:step_plans].reshape(steps, blocks, len(found), warps)
    launch = flat[step_plans : step_plans + of_launch].reshape(blocks, LAUNCH_STAMPS, warps)
    time = flat[step_plans + of_launch :].reshape(blocks, NANOSECOND_WORDS // 2, 2)
    # [blocks, stamps in order, warps], since the launch began
    began = launch[:, 0, 0][:, None, None]
    line = np.concatenate([launch[:, 1:2], each.transpose(1, 0, 2, 3).reshape(
        blocks, steps * len(found), warps)], axis=1)
    line = _unwrapped(line - began)
    last = line.max(axis=2)
    cycles = np.diff(last, axis=1).reshape(blocks, steps, len(found)).transpose(1, 0, 2)
    own = np.diff(line, axis=1).reshape(blocks, steps, len(found), warps).transpose(1, 0, 2, 3)
    since = (launch - began) % WRAPS
    ends = np.where(since >= WRAPS - AHEAD, since - WRAPS, since).max(axis=2)
    now = time[..., 0] + time[..., 1] * WRAPS
    ns = now[:, 1] - now[:, 0]
    rates = ends[:, -1][ns > 0] / ns[ns > 0] * 1e3
    return Trace(found, cycles, own, ends[:, 1], (ends[:, 3] - ends[:, 2]) % WRAPS,
                 float(np.median(rates)) if len(rates) else 0.0,
                 float(now[:, 1].max() - now[:, 0].min()) / 1e3)


def _unwrapped(line: NDArray[np.int64]) -> NDArray[np.int64]:
    """Times of a clock that may have wrapped around, each at most that much behind the one before
    it (axis 1)."""
    steps = np.diff(line % WRAPS, axis=1) % WRAPS
    # The stamps of warps differ by less than half a turn: a small step back is none.
    steps = np.where(steps >= WRAPS // 2, steps - WRAPS, steps)
    return np.concatenate([line[:, :1] % WRAPS, steps], axis=1).cumsum(axis=1)
