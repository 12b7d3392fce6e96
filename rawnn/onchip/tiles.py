"""How the warps of a block share a product, and what that takes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from rawnn.onchip.decompose import Decomposition, ceil, pitch

SCRATCH_FLOATS = 6144
"""Most floats of partial sums of a product that is split."""


@dataclass(frozen=True)
class Tiling:
    """A task is `down` x `across` tiles of 16 x 8 over one of `split` parts of the inner dimension;
    the block has `tasks` of them. `cycles` is what the product is expected to take."""

    down: int
    across: int
    split: int
    tasks: int
    cycles: float


@dataclass(frozen=True)
class ProductCosts:
    """Cycles of a warp's step of 8 along the inner dimension, a + b for each of its tiles, of the
    start and end of a task likewise, and of adding up split sums; what the shared memory, the
    tensor cores and the issue of instructions take at least is counted beside (H200). float16 is
    taken to be as bfloat16: its instructions are the same in number, and not measured."""

    step: float
    step_tile: float
    task: float = 100.0
    task_tile: float = 30.0
    splitting: float = 220.0
    splitting_part: float = 20.0
    products: int = 1
    instructions: float = 2.0


COSTS = {
    "float32": ProductCosts(15.0, 38.0, products=3, instructions=3.5),
    "tf32": ProductCosts(22.0, 10.0),
    "bfloat16": ProductCosts(22.0, 8.0),
    "float16": ProductCosts(22.0, 8.0),
}
TASK_INSTRUCTIONS, TILE_INSTRUCTIONS = 40, 20
"""Of a task, and of each of its tiles, besides the steps."""
MMA_CYCLES = 6.5
"""Of one product of 16 x 8 x 8 (or x 16 of bfloat16) on one of the four sub-cores (H200)."""


@cache
def tiling(rows: int, columns: int, steps: int, warps: int, numbers: str, *,
           may_split: bool = True, most_tiles: int = 8) -> Tiling:
    """The fastest way to share `rows` x `columns` tiles with `steps` steps each."""
    costs, best = COSTS[numbers], None
    for down in (1, 2):
        for across in (1, 2, 4):
            if down > rows or (across > columns and across > 1) or down * across > most_tiles:
                continue
            for split in (1, 2, 4, 8, 16) if may_split else (1,):
                if split > 1 and (ceil(steps, split) < 3 or split * rows * 16
                                  * pitch(columns * 8) > SCRATCH_FLOATS):
                    continue
                found = _tiling(costs, rows, columns, steps, warps, down, across, split)
                if best is None or found.cycles < best.cycles - 1e-9:
                    best = found
    assert best is not None
    return best


def _tiling(costs: ProductCosts, rows: int, columns: int, steps: int, warps: int, down: int,
            across: int, split: int) -> Tiling:
    tiles, depth = down * across, ceil(steps, split)
    tasks = ceil(rows, down) * ceil(columns, across) * split
    loads = 4 * down + 2 * across
    chain = ceil(tasks, warps) * (depth * (costs.step + costs.step_tile * tiles)
                                  + costs.task + costs.task_tile * tiles)
    shared = 1.3 * loads * tasks * depth
    tensor = 1.5 * tasks * depth * tiles * costs.products * MMA_CYCLES / 4
    issue = 1.2 * tasks * (depth * (loads * costs.instructions + tiles * costs.products + 3)
                           + TASK_INSTRUCTIONS + TILE_INSTRUCTIONS * tiles) / 4
    cycles = max(chain, shared, tensor, issue)
    if split > 1:
        cycles += costs.splitting + costs.splitting_part * split
    return Tiling(down, across, split, tasks, cycles)


def far_tiling(rows: int, columns: int, warps: int) -> Tiling:
    """The same for gradients whose tiles' state comes from the L2 cache ahead of the product: more
    tiles a task are more loads at once."""
    found = [Tiling(down, across, 1, tasks,
                    ceil(tasks, warps) * (FAR_ROUND + FAR_TILE * down * across))
             for down in (1, 2) for across in (1, 2, 4)
             if down <= rows and across <= columns
             for tasks in (ceil(rows, down) * ceil(columns, across),)]
    return min(found, key=lambda tiling: tiling.cycles)


FAR_ROUND, FAR_TILE = 600.0, 150.0
"""Cycles of a round of tasks, and more for each of a task's tiles (H200)."""


SOFTMAX_ROW, SOFTMAX_AGAIN, SOFTMAX_SHARED = 30.0, 45.0, 250.0
"""Cycles of an output of a lane in the softmax, where its outputs stay in registers and where not,
and of two meetings of the warps that share it."""
MOST_KEPT = 12


@cache
def softmax_warps(columns: int, outputs: int, warps: int) -> int:
    """Warps that share the outputs of eight examples: a lane has a quarter of its warp's."""
    return min((n for n in (1, 2, 4, 8, 16) if n == 1 or n * columns // 8 <= warps),
               key=lambda n: softmax_cycles(columns, outputs, warps, n))


def softmax_cycles(columns: int, outputs: int, warps: int, shared: int = 0) -> float:
    """What the outputs take in the softmax, shared by so many warps (0: by as many as is best)."""
    shared = shared or softmax_warps(columns, outputs, warps)
    each, tasks = ceil(outputs, 4 * shared), columns // 8 * shared
    rounds = each * ceil(tasks, warps) * max(1.0, min(tasks, warps) / 4)
    row = SOFTMAX_ROW if each <= MOST_KEPT else SOFTMAX_AGAIN
    return row * rounds + (SOFTMAX_SHARED if shared > 1 else 0.0)


def softmax_floats(d: Decomposition) -> int:
    """Floats of scratch memory by which warps that share an example tell each other what they
    found."""
    p = d.problem
    return 32 * d.warps if p.labelled and softmax_warps(d.columns, p.outputs, d.warps) > 1 else 0
