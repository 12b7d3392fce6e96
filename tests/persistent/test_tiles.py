"""How warps share a GEMM and a softmax: the fastest of all ways, each counted task by task."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from rawnn.persistent import tiles
from rawnn.persistent.layout import layout_of
from rawnn.persistent.phases.gemm import BACKWARD, GRADIENT, Gemm
from rawnn.persistent.phases.phase import Barrier
from rawnn.persistent.sharding import pitch
from rawnn.persistent.tiles import COSTS, Tiling, global_state_tiling, tiling
from tests.persistent.problems import HOPPER
from tests.persistent.sampling import sampled

SHAPES = [(1, 1, 1), (2, 1, 7), (3, 5, 13), (8, 4, 98), (16, 16, 8), (1, 64, 30), (49, 2, 6)]
WARPS = (1, 4, 8, 16)


def tasks_of(rows: int, columns: int, down: int, across: int, split: int) -> int:
    return len(list(product(range(0, rows, down), range(0, columns, across), range(split))))


def ways(rows: int, columns: int, steps: int, may_split: bool, most_tiles: int
         ) -> Iterator[tuple[int, int, int]]:
    """A task has at most the tiles that there are, and a part of the sums three steps at least; all
    parts fit the scratch memory."""
    for down, across, split in product((1, 2), (1, 2, 4), (1, 2, 4, 8, 16)):
        if down > rows or across > max(columns, 1) or down * across > most_tiles:
            continue
        floats = split * rows * 16 * pitch(columns * 8)
        if split == 1 or (may_split and -(-steps // split) >= 3
                          and floats <= tiles.SCRATCH_FLOATS):
            yield down, across, split


def cycles_of(rows: int, columns: int, steps: int, warps: int, numbers: str,
              way: tuple[int, int, int]) -> float:
    """The most of what the busiest warp, the loads, the tensor cores and the issue take."""
    costs, (down, across, split) = COSTS[numbers], way
    depth = len(range(0, steps, split)) if split > 1 else steps
    of_warps = np.zeros(warps)
    loads = products = instructions = 0.0
    for task in range(tasks_of(rows, columns, down, across, split)):
        of_warps[task % warps] += costs.task + down * across * costs.task_tile + depth * (
            costs.step + down * across * costs.step_tile)
        loads += depth * (4 * down + 2 * across)
        products += depth * down * across * costs.products
        instructions += tiles.TASK_INSTRUCTIONS + tiles.TILE_INSTRUCTIONS * down * across \
            + depth * ((4 * down + 2 * across) * costs.instructions
                       + down * across * costs.products + 3)
    adding = costs.splitting + split * costs.splitting_part if split > 1 else 0.0
    return adding + max(of_warps.max(), 1.3 * loads, 1.5 * products * tiles.MMA_CYCLES / 4,
                        1.2 * instructions / 4)


@pytest.mark.parametrize("numbers", COSTS)
@pytest.mark.parametrize(("may_split", "most_tiles"), [(True, 8), (False, 8), (True, 1), (True, 4)])
def test_a_gemm_is_shared_in_the_way_that_takes_least(numbers: str, may_split: bool,
                                                      most_tiles: int) -> None:
    for (rows, columns, steps), warps in product(SHAPES, WARPS):
        expected = {way: cycles_of(rows, columns, steps, warps, numbers, way)
                    for way in ways(rows, columns, steps, may_split, most_tiles)}
        found = tiling(rows, columns, steps, warps, numbers, may_split=may_split,
                       most_tiles=most_tiles)
        way = found.down, found.across, found.split
        assert found.cycles == pytest.approx(expected[way])
        assert found.cycles == pytest.approx(min(expected.values()))
        assert found.tasks == tasks_of(rows, columns, *way)


def test_gradients_with_state_in_global_memory_load_it_in_the_fewest_rounds() -> None:
    for (rows, columns, _), warps in product(SHAPES, WARPS):
        every = []
        for down, across in product((1, 2), (1, 2, 4)):
            if down <= rows and across <= columns:
                tasks = tasks_of(rows, columns, down, across, 1)
                rounds = len(range(0, tasks, warps))
                every.append(Tiling(down, across, 1, tasks, rounds * (
                    tiles.GLOBAL_ROUND + tiles.GLOBAL_TILE * down * across)))
        found = global_state_tiling(rows, columns, warps)
        assert found in every
        assert found.cycles == min(each.cycles for each in every)


def softmax_cycles(columns: int, outputs: int, blocks: int, warps: int, lanes: int, shared: int
                   ) -> float:
    """Of the busiest warp: outputs of a lane one by one, statistics of all that share an example
    once more, the sums over lanes in halves; and what rows of the same banks cost."""
    parts = blocks * shared
    of_lane = len(range(0, outputs, lanes * shared))
    if parts > 1:
        of_lane += len(range(0, parts, lanes))
    rows = sum(tiles.SOFTMAX_ROW if number < tiles.MOST_UNROLLED else tiles.SOFTMAX_AGAIN
               for number in range(of_lane))
    halvings = {4: 2, 8: 3, 16: 4}[lanes] * (2 if parts > 1 else 1)
    examples_of_warp = 32 // lanes
    rounds = len(range(0, columns // examples_of_warp * shared, warps))
    conflicts = {4: 0, 8: 1, 16: 3}[lanes] * 2 * outputs * columns / 32
    return rounds * (rows + tiles.SOFTMAX_STEP * halvings) + conflicts \
        + (tiles.SOFTMAX_EXCHANGE if parts > 1 else 0.0)


@pytest.mark.parametrize("columns", [8, 32, 128])
@pytest.mark.parametrize("outputs", [2, 10, 100, 1000])
@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.parametrize("many", [True, False])
def test_a_softmax_is_shared_in_the_way_that_takes_least(columns: int, outputs: int, blocks: int,
                                                         many: bool) -> None:
    for warps in WARPS:
        expected = {(lanes, shared): softmax_cycles(columns, outputs, blocks, warps, lanes, shared)
                    for lanes in (4, 8, 16) for shared in ((1, 2, 4, 8) if many else (1,))}
        found = tiles._softmax(columns, outputs, blocks, warps, many)
        assert found.cycles == pytest.approx(expected[found.lanes, found.warps])
        assert found.cycles == pytest.approx(min(expected.values()))


def test_a_weight_gradient_begins_at_the_first_warp_that_has_nothing_to_do() -> None:
    """Tasks are dealt warp by warp, those of gradients and of their sums of biases one behind the
    other; behind a barrier, or a GEMM that others add up, all warps are free."""
    moved = 0
    for seed in range(60):
        layout = layout_of(sampled(seed), HOPPER.shared)
        d, first, free = layout.sharding, 0, 0
        for phase in layout.schedule.micro_batch:
            assert first == free
            first = phase.next_warp(layout, first)
            if isinstance(phase, Barrier):
                free = 0
            if not isinstance(phase, Gemm):
                continue
            if phase.kind == GRADIENT:
                shared = layout.layers[phase.layer].update
                for _ in range(shared.tasks):
                    free = (free + 1) % d.warps
                if d.problem.bias:
                    for _ in range(0, -(-phase.n // 8), shared.across):
                        free = (free + 1) % d.warps
                moved += free > 0
            else:
                shared, free = phase.tiling(d), 0
                if phase.kind == BACKWARD and not phase.epilogue.send and shared.split == 1:
                    for _ in range(shared.tasks):
                        free = (free + 1) % d.warps
    assert moved
