"""How the warps of a block share a GEMM or a softmax, and the cycles that this takes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from rawnn.persistent.sharding import REPLICATED, Sharding, ceil, pitch

SCRATCH_FLOATS = 6144
"""Most floats of partial sums of a GEMM that is split."""


@dataclass(frozen=True)
class Tiling:
    """How the warps of a block share a GEMM.

    down, across: tiles of 16 x 8 sums of a task.
    split: parts of the inner dimension. A task sums one of them; another phase adds up the parts.
    tasks: of the whole GEMM; each is a warp's.
    cycles: expected of the GEMM.
    """

    down: int
    across: int
    split: int
    tasks: int
    cycles: float


@dataclass(frozen=True)
class GemmCosts:
    """What a GEMM takes on a block's warps, in cycles (H200).

    step, step_tile: a warp's step of 8 along the inner dimension, and more for each of its tiles.
    task, task_tile: the start and end of a task, and more for each of its tiles.
    splitting, splitting_part: adding up the parts of a split GEMM, and more for each part.
    products, instructions: tensor-core products of a tile in a step, and instructions of a load.

    Those of bfloat16 are about the least squares of 48 steps of 22 networks in up to three
    shardings each, of which 4.5 + 8 and 9 + 6 a tile explain as much. float16 has the same.
    """

    step: float
    step_tile: float
    task: float = 100.0
    task_tile: float = 30.0
    splitting: float = 220.0
    splitting_part: float = 20.0
    products: int = 1
    instructions: float = 2.0


COSTS = {
    "float32": GemmCosts(15.0, 38.0, products=3, instructions=3.5),
    "tf32": GemmCosts(22.0, 10.0),
    "bfloat16": GemmCosts(7.0, 6.0, instructions=0.5),
    "float16": GemmCosts(7.0, 6.0, instructions=0.5),
}
TASK_INSTRUCTIONS, TILE_INSTRUCTIONS = 40, 20
"""Instructions of a task, and of each of its tiles, besides the steps."""
MMA_CYCLES = 6.5
"""Of one tensor-core product of 16 x 8 x 8 (or x 16 in 16 bits) on one of four sub-cores (H200)."""


@cache
def tiling(rows: int, columns: int, steps: int, warps: int, numbers: str, *,
           may_split: bool = True, most_tiles: int = 8) -> Tiling:
    """The fastest way to share `rows` x `columns` tiles with `steps` steps of 8 each."""
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


def _tiling(costs: GemmCosts, rows: int, columns: int, steps: int, warps: int, down: int,
            across: int, split: int) -> Tiling:
    """Its cycles are the most of what four things take at least: a warp's tasks one after the
    other, loads from shared memory, the tensor cores, and the issue of instructions."""
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


def update_tiling(rows: int, columns: int, steps: int, warps: int, numbers: str,
                  states: int) -> Tiling:
    """The same for gradients that are updated where they are summed, with so many tensors of
    optimizer state in shared memory: with two, a task has one tile."""
    return tiling(rows, columns, steps, warps, numbers, may_split=False,
                  most_tiles=1 if states > 1 else 8)


def global_state_tiling(rows: int, columns: int, warps: int) -> Tiling:
    """The same for gradients whose optimizer state is loaded from L2 ahead of the GEMM: with more
    tiles a task, more loads are in flight."""
    found = [Tiling(down, across, 1, tasks,
                    ceil(tasks, warps) * (GLOBAL_ROUND + GLOBAL_TILE * down * across))
             for down in (1, 2) for across in (1, 2, 4)
             if down <= rows and across <= columns
             for tasks in (ceil(rows, down) * ceil(columns, across),)]
    return min(found, key=lambda tiling: tiling.cycles)


GLOBAL_ROUND, GLOBAL_TILE = 600.0, 150.0
"""Cycles of a round of tasks, and more for each of a task's tiles (H200)."""


SOFTMAX_ROW, SOFTMAX_AGAIN, SOFTMAX_STEP, SOFTMAX_EXCHANGE = 70.0, 30.0, 75.0, 800.0
"""Cycles of a softmax (H200): an output of a lane, whose code is unrolled for the first
MOST_UNROLLED, and another output; a step of a sum over lanes; an exchange of warps or blocks."""
MOST_UNROLLED = 12


@dataclass(frozen=True)
class SoftmaxTiling:
    """How a block shares a softmax: `lanes` of each of `warps` warps share the outputs of an
    example. `cycles` is expected of it."""

    lanes: int
    warps: int
    cycles: float


def softmax_of(d: Sharding) -> SoftmaxTiling:
    """The fastest way to share a softmax. Of sharded or all-gathered outputs, an example is one
    warp's."""
    outputs = d.shards[-1] if d.shards_softmax else d.problem.outputs
    blocks = d.tp_size if d.shards_softmax else 1
    return _softmax(d.columns, outputs, blocks, d.warps, d.boundaries[-1] == REPLICATED)


@cache
def _softmax(columns: int, outputs: int, blocks: int, warps: int, many: bool) -> SoftmaxTiling:
    ways = [(lanes, shared) for lanes in (4, 8, 16) for shared in ((1, 2, 4, 8) if many else (1,))]
    return min((SoftmaxTiling(*way, _softmax_cycles(columns, outputs, blocks, warps, *way))
                for way in ways), key=lambda found: found.cycles)


def _softmax_cycles(columns: int, outputs: int, blocks: int, warps: int, lanes: int,
                    shared: int) -> float:
    """The cycles of `blocks` blocks that exchange statistics, with `shared` warps each. More than
    four lanes read rows of an example from the same banks."""
    tasks, parts = columns * lanes // 32 * shared, blocks * shared
    rows = ceil(outputs, lanes * shared) + (ceil(parts, lanes) if parts > 1 else 0)
    cycles = SOFTMAX_ROW * min(rows, MOST_UNROLLED) + SOFTMAX_AGAIN * max(rows - MOST_UNROLLED, 0)
    steps = SOFTMAX_STEP * (lanes.bit_length() - 1) * (2 if parts > 1 else 1)
    banks = outputs * columns / 32 * (lanes // 4 - 1) * 2
    exchange = SOFTMAX_EXCHANGE if parts > 1 else 0.0
    return ceil(tasks, warps) * (cycles + steps) + banks + exchange


def softmax_floats(d: Sharding) -> int:
    """Floats of scratch memory for the statistics of warps or blocks that share an example."""
    if not d.problem.labelled:
        return 0
    received = 4 * d.tp_size * d.sent if d.shards_softmax and d.via_l2 else 0
    return received + (statistics_floats(d) if d.shards_softmax or softmax_of(d).warps > 1 else 0)


def statistics_floats(d: Sharding) -> int:
    """Floats of the statistics of a block's warps."""
    return 4 * softmax_of(d).warps * d.columns
