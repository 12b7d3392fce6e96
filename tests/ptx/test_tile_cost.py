"""The predicted cycles of a GEMM in a tile, against a count of blocks and bytes one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from rawnn.common.target import Target, known
from rawnn.ptx.gemm import mma, tile_cost
from rawnn.ptx.gemm.tile_cost import (
    SCALED_STAGE_CYCLES,
    TF32_STAGE_CYCLES,
    cycles,
    cycles_wgmma,
    cycles_wgmma_scaled,
    cycles_wgmma_tf32,
)
from rawnn.ptx.gemm.tiles import GemmShape, Tile

HOPPER = known((9, 0))
SYNC = [*mma.TUNE_TILES, *mma.CLUSTER_TUNE_TILES]
LARGE = [Tile(128, 64, 8, 1, 1, 3, cluster, bytes=128) for cluster in (1, 2, 8)]
WIDE = [Tile(128, 128, 8, 1, 1, 3, cluster, bytes=128) for cluster in (1, 3, 8)]


def shapes(size: int, times: int = 1) -> list[GemmShape]:
    """Of every layout; rows that begin at cache lines and that do not, long and short; one round of
    blocks, a part of one, and several."""
    generator = np.random.default_rng([size, times])
    sizes = [(8, 10, 784), (60, 120, 100), (512, 512, 512), (4096, 1024, 640), (3056, 789, 621)]
    sizes += [tuple(map(int, generator.integers(1, 3000, 3))) for _ in range(12)]  # type: ignore[misc]
    return [GemmShape(layout, *of, size, times) for layout in ("nt", "nn", "tn") for of in sizes]


def rows_of_operands(p: GemmShape) -> tuple[int, int]:
    """Bytes of a row of a and of b, as they are stored."""
    a = {"n": (p.m, p.k), "t": (p.k, p.m)}[p.layout[0]]
    b = {"n": (p.k, p.n), "t": (p.n, p.k)}[p.layout[1]]
    return a[1] * p.size, b[1] * p.size


def of_l2(p: GemmShape, tile: Tile) -> float:
    """Of a stage: each operand's part of the tile, faster where rows begin at cache lines. Rows of
    512 bytes or more are padded to such."""
    found = 0.0
    for rows, length in zip((tile.bm, tile.bn), rows_of_operands(p), strict=True):
        is_aligned = length >= 512 or length % 128 == 0
        found += rows * tile.bytes / (tile_cost.L2_BYTES_PER_CYCLE if is_aligned
                                      else tile_cost.L2_BYTES_PER_CYCLE_UNALIGNED)
    return found


def of_copies(tile: Tile) -> float:
    """A copy's latency, which all stages but one share."""
    stage = tile.bytes * (tile.bm + tile.bn)
    return stage / tile_cost.COPY_BYTES_PER_CYCLE / (tile.stages - 1)


def together(*activities: float) -> float:
    """The norm of order 5."""
    return float(np.linalg.norm(activities, 5))


def shared_memory(tile: Tile, extra: int = 0) -> int:
    """Bytes of the stages, or of the partial sums of a block and of its cluster where those are
    more or lie behind them."""
    s = tile.scalars()
    return mma.with_partial_sums(s, tile.stages * tile.bytes * (tile.bm + tile.bn) + extra)


def by_sync(p: GemmShape, tile: Tile, target: Target) -> float:
    """By mma.sync: 16 x 8 blocks of a warp, the instructions around them, and what is resident."""
    warps = tile.wm * tile.wn * tile.wk
    is_split = p.times == 3
    down, across = tile.bm / tile.wm / 16, tile.bn / tile.wn / 8
    words = 0.0  # floats are loaded and rounded one by one
    if p.size == 4:
        word_by_word = {"nt": 0, "nn": 1, "tn": 2}[p.layout]
        words = (4 * down + 2 * across) * (2 + word_by_word / 2 + (1 if is_split else 0))
        words += 4 * down * across if is_split else 0
    products = tile_cost.MMA_CYCLES * down * across * p.times
    steps = tile.bytes / 32 / tile.wk
    busy = steps * warps / 4 * (products + tile_cost.ISSUE_CYCLES * words)
    chain = tile_cost.STEP_CYCLES + (tile_cost.SPLIT_STEP_CYCLES if is_split else 0) + products
    alone = max(steps * chain + tile_cost.STAGE_CYCLES, of_copies(tile))
    copied = of_l2(p, tile)
    sums = 4 * down * across * (2 if is_split and tile.wk < 8 else 1)
    fragments = (4 * down + 2 * across) * (2 if is_split else 1) + (4 * across if is_split else 0)
    registers = max(44 + sums + fragments, 48)
    fit = max(1, min(target.shared_per_multiprocessor // (1024 + shared_memory(tile)),
                     target.threads // (32 * warps),
                     int(target.registers // (32 * warps * registers))))
    weight, resident = tile_cost.IMBALANCE, fit
    if is_split and p.layout == "tn" and tile.cluster == 1 and p.k >= tile_cost.SPLIT_UPDATE_SUM:
        weight = tile_cost.SPLIT_UPDATE_IMBALANCE
        of_compiled = 24 + down * across / 2 * (28 if tile.wk < 8 else 20)
        resident = max(1, min(target.shared_per_multiprocessor // (1024 + shared_memory(tile)),
                              target.threads // (32 * warps),
                              int(target.registers // (32 * warps * of_compiled))))
    return in_rounds(p, tile, target, fit,
                     lambda n: together(n * busy, n * copied, alone),
                     parts=tile.wk / tile_cost.PARTIAL_SUMS_PER_CYCLE, weight=weight,
                     resident=resident)


def by_wgmma(p: GemmShape, tile: Tile, target: Target) -> float:
    multiplications = tile.bm * tile.bn * tile.bytes / 2
    busy = multiplications / tile_cost.WGMMA_MULTIPLIES_PER_CYCLE
    alone = max(busy + tile_cost.WGMMA_STAGE_CYCLES, of_copies(tile))
    fit = max(1, min(target.shared_per_multiprocessor // (1024 + shared_memory(tile, 1024)),
                     target.threads // (8 * tile.bm * tile.wn)))
    return in_rounds(p, tile, target, fit,
                     lambda n: together(n * busy, n * of_l2(p, tile), alone))


def by_stages(p: GemmShape, tile: Tile, target: Target, paces: Sequence[float], first: float,
              sent: float) -> float:
    return in_rounds(p, tile, target, len(paces), lambda n: paces[n - 1], first=first, sent=sent)


def by_tf32(p: GemmShape, tile: Tile, target: Target) -> float:
    columns = tile.bm if p.layout == "nn" else tile.bn
    found = TF32_STAGE_CYCLES[p.times, columns]
    is_ragged = p.times == 1 and p.layout == "tn" and columns == 128 and p.n % columns
    paces = [tile_cost.RAGGED_TN * pace if is_ragged else pace
             for pace in getattr(found, p.layout)]
    return by_stages(p, tile, target, paces, found.first, found.floats_per_cycle)


def by_scaled(p: GemmShape, tile: Tile, target: Target) -> float:
    found = SCALED_STAGE_CYCLES[tile.bn]
    return by_stages(p, tile, target, getattr(found, p.layout), found.first, found.floats_per_cycle)


def in_rounds(p: GemmShape, tile: Tile, target: Target, fit: int, stage: Callable[[int], float],
              parts: float = 0.0, first: float = tile_cost.FIRST_STAGE_CYCLES,
              sent: float = tile_cost.CLUSTER_FLOATS_PER_CYCLE,
              weight: float = tile_cost.IMBALANCE, resident: int = 0) -> float:
    """Blocks are dealt to multiprocessors one after the other, in rounds of as many as fit."""
    larger = [at_once for size, at_once in sorted(target.at_once.items()) if size >= tile.cluster]
    places = larger[0] - larger[0] % tile.cluster if larger else 0
    if not places:
        return math.inf
    tiles = len(list(product(range(0, p.m, tile.bm), range(0, p.n, tile.bn))))
    of_block = [range(0, p.k, tile.bytes // p.size)[rank::tile.cluster]
                for rank in range(tile.cluster)]
    stages = max(map(len, of_block))
    elements = tile.bm * tile.bn
    own = elements / tile.cluster
    is_update = p.layout == "tn"
    loads = is_update or p.times == 3
    epilogue = own / (32 * tile.wm * tile.wn * tile.wk) * (
        tile_cost.EPILOGUE_CYCLES_WITH_LOADS if loads else tile_cost.EPILOGUE_CYCLES)
    stored = own / target.multiprocessors / (
        tile_cost.WEIGHTS_PER_CYCLE if is_update else tile_cost.RESULTS_PER_CYCLE)

    def of_round(most: int, count: int) -> float:
        """Of `count` blocks in all, `most` on a multiprocessor."""
        taken = tile_cost.ROUND_CYCLES + stages * stage(most) + most * parts * elements
        taken += epilogue + count * stored
        if tile.cluster > 1:
            taken += tile_cost.CLUSTER_SYNC_CYCLES + most * (elements - own) / sent
        return taken

    left, found = tiles * tile.cluster, first
    is_first = True
    while left:
        count = min(left, places * fit)
        most = -(-count // places)
        found += of_round(most, count)
        if is_first and count < places * fit:
            # What runs before leaves half of them free at first.
            uneven = max(most, min(resident or fit, -(-2 * count // places) - count // places))
            if uneven > most:
                found += weight * (of_round(uneven, count) - of_round(most, count))
        is_first = False
        left -= count
    return found


@pytest.mark.parametrize(("predicted", "expected", "tiles", "size", "times"), [
    (cycles, by_sync, SYNC, 2, 1), (cycles, by_sync, SYNC, 4, 1), (cycles, by_sync, SYNC, 4, 3),
    (cycles_wgmma, by_wgmma, mma.WGMMA_TILES, 2, 1),
    (cycles_wgmma, by_wgmma, mma.WGMMA_TILES, 1, 1),
    (cycles_wgmma_tf32, by_tf32, LARGE, 4, 1), (cycles_wgmma_tf32, by_tf32, WIDE, 4, 1),
    (cycles_wgmma_tf32, by_tf32, LARGE, 4, 3),
    (cycles_wgmma_scaled, by_scaled, [*LARGE, *WIDE], 4, 3)])
def test_cycles_are_those_of_the_blocks_of_a_gemm(
        predicted: Callable[..., float], expected: Callable[..., float], tiles: Sequence[Tile],
        size: int, times: int) -> None:
    for p in shapes(size, times):
        for tile in tiles:
            if predicted is cycles_wgmma_tf32 and p.layout == "nn":
                tile = replace(tile, bm=tile.bn, bn=tile.bm)
            assert predicted(p, tile, HOPPER) == pytest.approx(expected(p, tile, HOPPER)), (p, tile)


def test_a_cluster_that_a_gpu_has_not_takes_for_ever() -> None:
    tile, p = Tile(64, 64, 2, 2, 2, 4, 4, bytes=128), GemmShape("nt", 512, 512, 512, 2)
    assert cycles(p, tile, replace(HOPPER, at_once={1: 132, 2: 132})) == math.inf
    assert cycles(p, tile, HOPPER) < math.inf


@pytest.mark.parametrize(("rows", "columns", "k", "tile", "us"), [
    (592, 208, 2176, mma.TILES[1], 25.5), (176, 672, 2160, mma.TILES[1], 22.8),
    (592, 208, 2176, mma.TILES[0], 30.7), (176, 672, 2160, mma.TILES[2], 32.0)])
def test_updates_of_long_sums_in_single_blocks_are_not_predicted_too_fast(
        rows: int, columns: int, k: int, tile: Tile, us: float) -> None:
    """What they took alone, eight in a graph with programmatic edges. Their blocks lie unevenly."""
    found = cycles(GemmShape("tn", rows, columns, k, 4, 3), tile, HOPPER) / tile_cost.CYCLES_PER_US
    assert 0.75 * us < found < 1.2 * us


def test_a_long_update_of_many_small_blocks_is_for_clusters() -> None:
    """It took 25.5 us in single blocks of 16 x 32, and 18.5 us as scaled float16 in clusters."""
    update = GemmShape("tn", 592, 208, 2176, 4, 3)
    assert mma.scaled_is_faster(update, HOPPER)
    assert mma.choose_wgmma_scaled(update, HOPPER).cluster == 8
