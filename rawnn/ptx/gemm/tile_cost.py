"""Predicts the cycles of a GEMM in a tile. Tiles are chosen by this prediction.

Blocks share multiprocessors and run in rounds. A block starts, computes its stages at the rate of
the tensor cores, of L2 or of the copies in flight, adds the partial sums of its warps, sends them
to the other blocks of its cluster, and runs the epilogue on its part of the tile.

Figures are clock cycles at 1,755 MHz. They are fitted to single GEMMs on an H200, timed in chains
of launches with `pdl` on rows as the engine lays them out; every fourth GEMM was held out. The
errors, and what they cost, are in docs/tensor-core-kernels.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rawnn.common.target import Target
from rawnn.plan.tensor import LINE, LONG
from rawnn.ptx.gemm.tiles import GemmShape, Tile, blocks, with_partial_sums
from rawnn.ptx.kernel_registry import Scalars, ceil

CYCLES_PER_US = 1755.0
"""The clock of the figures here."""
FIRST_STAGE_CYCLES, ROUND_CYCLES = 1010.0, 740.0
"""Cycles from the end of the previous kernel to the first stage, and to start each wave of
blocks."""
L2_BYTES_PER_CYCLE, L2_BYTES_PER_CYCLE_UNALIGNED = 36.6, 24.9
"""L2 bandwidth of a multiprocessor, for rows that begin at a cache line and for others."""
COPY_BYTES_PER_CYCLE = 13.7
"""Bandwidth of each stage in flight, which follows from the latency of its copy."""
CLUSTER_SYNC_CYCLES, CLUSTER_FLOATS_PER_CYCLE = 830.0, 3.2
"""Cycles to synchronize a cluster's blocks, and floats a cycle that a block sends to the others."""
EPILOGUE_CYCLES, EPILOGUE_CYCLES_WITH_LOADS = 20.0, 84.0
"""Cycles of one thread for one element of the tile. An epilogue that updates weights, or that of a
float32 GEMM split into three, loads its operands only when the sums are complete."""
RESULTS_PER_CYCLE, WEIGHTS_PER_CYCLE = 8.0, 1.36
"""Elements that one multiprocessor's epilogue stores a cycle, of results and of weights."""
IMBALANCE = 0.13
"""Weight of an uneven last wave. Blocks start while the previous kernel still occupies some
multiprocessors, so one or two blocks each on average mean two or three on some."""
SPLIT_UPDATE_IMBALANCE, SPLIT_UPDATE_SUM = 0.6, 1536
"""The same weight for float32 updates that are split into three, without clusters, and the least
length of their sums. Instructions bound such blocks: those that share a multiprocessor take so much
longer. Shorter sums were not measured."""


def _overlapped(*paces: float) -> float:
    """Cycles of overlapping activities: a little more than the slowest, and more if several are
    slow."""
    slowest = max(paces)
    return slowest * math.pow(sum(math.pow(pace / slowest, 5.0) for pace in paces), 0.2)


def _l2_cycles(p: GemmShape, tile: Tile) -> float:
    """Cycles that L2 needs to deliver one stage of a block."""
    lengths = {"nt": (p.k, p.k), "nn": (p.k, p.n), "tn": (p.m, p.n)}[p.layout]
    paces = (L2_BYTES_PER_CYCLE if length * p.size >= LONG or length * p.size % LINE == 0
             else L2_BYTES_PER_CYCLE_UNALIGNED for length in lengths)
    return sum(rows * tile.bytes / pace for rows, pace in zip((tile.bm, tile.bn), paces,
                                                              strict=True))


def _copy_latency(tile: Tile) -> float:
    """Lower bound of a stage's cycles: the latency of its copy, shared by the stages in flight."""
    return (tile.bm + tile.bn) * tile.bytes / COPY_BYTES_PER_CYCLE / (tile.stages - 1)


# -- by mma.sync -----------------------------------------------------------------------------------

MMA_CYCLES = 8.0
"""Cycles of a multiprocessor's quarter for one 16 x 8 block of one step of mma.sync."""
ISSUE_CYCLES = 1.5
"""Cycles of any other instruction: floats are loaded, rounded or split one by one."""
STEP_CYCLES, SPLIT_STEP_CYCLES = 10.0, 52.0
"""Cycles from a step's fragments to its sums, and the additional cycles of a float32 step that is
split into three products."""
STAGE_CYCLES = 380.0
"""Cycles of a stage's barrier and of loading its first fragments."""
PARTIAL_SUMS_PER_CYCLE = 20.0
"""Partial sums that warps which split the inner dimension store to shared memory a cycle."""


def cycles(p: GemmShape, tile: Tile, target: Target) -> float:
    """Predicted cycles of a GEMM by mma.sync."""
    warps, steps = tile.wm * tile.wn * tile.wk, tile.bytes / 32 / tile.wk
    down, across = tile.bm // tile.wm // 16, tile.bn // tile.wn // 16
    of_8, three = 2 * down * across, p.times == 3

    wide = ("nt", "nn", "tn").index(p.layout)  # operands that are loaded word by word
    issued = 4 * (down + across) * (2 + wide / 2 + three) if p.size == 4 else 0.0
    multiplied = MMA_CYCLES * of_8 * p.times
    busy = warps / 4 * steps * (multiplied + ISSUE_CYCLES * (issued + (4 * of_8 if three else 0)))
    alone = max(steps * (STEP_CYCLES + (SPLIT_STEP_CYCLES if three else 0) + multiplied)
                + STAGE_CYCLES, _copy_latency(tile))
    copied = _l2_cycles(p, tile)
    imbalance, resident = IMBALANCE, 0
    if three and p.layout == "tn" and tile.cluster == 1 and p.k >= SPLIT_UPDATE_SUM:
        imbalance, resident = SPLIT_UPDATE_IMBALANCE, _resident_split_blocks(tile, target)
    return _total_cycles(p, tile, target, _blocks_per_multiprocessor(p, tile, target),
                         lambda concurrent: _overlapped(concurrent * busy, concurrent * copied,
                                                        alone),
                         parts=tile.wk / PARTIAL_SUMS_PER_CYCLE, imbalance=imbalance,
                         resident=resident)


def _blocks_per_multiprocessor(p: GemmShape, tile: Tile, target: Target) -> int:
    """Blocks resident on a multiprocessor; their registers are estimated."""
    three = p.times == 3
    down, across = tile.bm // tile.wm // 16, tile.bn // tile.wn // 16
    registers = 44 + 8 * down * across * (2 if three and tile.wk < 8 else 1) \
        + 4 * (down + across) * (2 if three else 1) + (8 * across if three else 0)
    return _fitting_blocks(tile, target, max(registers, 48))


def _resident_split_blocks(tile: Tile, target: Target) -> int:
    """Most blocks of a product that is split into three on a multiprocessor, by the registers of
    the compiled kernels (results/kernels.json). The estimate above has more of them: the figures of
    this module were fitted with it."""
    of_16 = (tile.bm // tile.wm // 16) * (tile.bn // tile.wn // 16)
    return _fitting_blocks(tile, target, 24 + of_16 * (28 if tile.wk < 8 else 20))


def _fitting_blocks(tile: Tile, target: Target, registers: int) -> int:
    warps = tile.wm * tile.wn * tile.wk
    return max(min(target.shared_per_multiprocessor // (1024 + shared(tile)),
                   target.threads // (32 * warps),
                   target.registers // (32 * registers * warps)), 1)


def shared(tile: Tile) -> int:
    """Shared memory of a block of mma.cu, in bytes."""
    s: Scalars = tile.scalars()
    return with_partial_sums(s, s["STAGES"] * s["BYTES"] * (s["BM"] + s["BN"]))


def _total_cycles(p: GemmShape, tile: Tile, target: Target, fit: int, pace: Callable[[int], float],
                  parts: float = 0.0, first: float = FIRST_STAGE_CYCLES, floats_per_cycle: float
                  = CLUSTER_FLOATS_PER_CYCLE, imbalance: float = IMBALANCE, resident: int = 0
                  ) -> float:
    """Cycles of all blocks. A multiprocessor holds `fit` of them in a full round, and up to
    `resident` where blocks lie unevenly (0: as many). `concurrent` blocks take `pace(concurrent)`
    cycles a stage. Infinite for a cluster that the GPU does not support."""
    multiprocessors = _concurrent_blocks(tile.cluster, target)
    if not multiprocessors:
        return math.inf
    stages = ceil(ceil(p.k, tile.bytes // p.size), tile.cluster)
    sums = tile.bm * tile.bn
    finished = sums / tile.cluster
    updates = p.layout == "tn"
    each = EPILOGUE_CYCLES_WITH_LOADS if updates or p.times == 3 else EPILOGUE_CYCLES
    ending = finished / (32 * tile.wm * tile.wn * tile.wk) * each
    per_cycle = WEIGHTS_PER_CYCLE if updates else RESULTS_PER_CYCLE
    written = finished / per_cycle / target.multiprocessors

    def round_of(concurrent: int, count: int) -> float:
        exchanged = 0.0
        if tile.cluster > 1:
            sent = concurrent * (sums - finished)
            exchanged = CLUSTER_SYNC_CYCLES + sent / floats_per_cycle
        return ROUND_CYCLES + stages * pace(concurrent) + concurrent * parts * sums + ending \
            + count * written + exchanged

    whole, rest = divmod(blocks(p, tile.bm, tile.bn) * tile.cluster, multiprocessors * fit)
    taken = first + (whole * round_of(fit, multiprocessors * fit) if whole else 0.0)
    if not rest:
        return taken
    concurrent = ceil(rest, multiprocessors)
    last, most = round_of(concurrent, rest), concurrent
    if not whole:  # the previous kernel still occupies some: twice as many blocks
        most = max(concurrent, min(resident or fit,
                                   ceil(2 * rest, multiprocessors) - rest // multiprocessors))
    return taken + last + (imbalance * (round_of(most, rest) - last) if most > concurrent else 0.0)


def _concurrent_blocks(cluster: int, target: Target) -> int:
    """Blocks resident on the GPU in clusters of `cluster`, one on a multiprocessor. The driver is
    asked about powers of two only; a GPU that supports a cluster supports smaller ones."""
    larger = min((size for size in target.at_once if size >= cluster), default=0)
    return target.at_once[larger] // cluster * cluster if larger else 0


# -- by wgmma --------------------------------------------------------------------------------------

WGMMA_MULTIPLIES_PER_CYCLE = 1520.0
"""16-bit multiplications a cycle of a multiprocessor's tensor cores."""
WGMMA_STAGE_CYCLES = 250.0
"""Least cycles of a stage in addition to its multiplications."""


def cycles_wgmma(p: GemmShape, tile: Tile, target: Target) -> float:
    """Predicted cycles of a GEMM of 16- or 8-bit operands by wgmma."""
    busy = tile.bm * tile.bn * tile.bytes / 2 / WGMMA_MULTIPLIES_PER_CYCLE
    alone = max(WGMMA_STAGE_CYCLES + busy, _copy_latency(tile))
    copied = _l2_cycles(p, tile)
    taken = with_partial_sums(tile.scalars(), tile.stages * tile.bytes * (tile.bm + tile.bn) + 1024)
    fit = max(min(target.shared_per_multiprocessor // (taken + 1024),
                  target.threads // (8 * tile.bm * tile.wn)), 1)
    return _total_cycles(p, tile, target, fit,
                         lambda concurrent: _overlapped(concurrent * busy, concurrent * copied,
                                                        alone))


@dataclass(frozen=True)
class StageCycles:
    """Cycles of a float32 stage by wgmma in each layout: of one block, and of two that share a
    multiprocessor. `first` replaces FIRST_STAGE_CYCLES, `floats_per_cycle`
    CLUSTER_FLOATS_PER_CYCLE."""

    nt: tuple[float, ...]
    nn: tuple[float, ...]
    tn: tuple[float, ...]
    first: float
    floats_per_cycle: float


TF32_STAGE_CYCLES: Mapping[tuple[int, int], StageCycles] = {
    (3, 64): StageCycles(nt=(1520.0, 2340.0), nn=(1590.0, 2370.0), tn=(2020.0, 2800.0),
                         first=1250.0, floats_per_cycle=1.9),
    (1, 64): StageCycles(nt=(1010.0, 1490.0), nn=(990.0, 1490.0), tn=(1300.0, 1590.0), first=1250.0,
                         floats_per_cycle=1.9),
    (1, 128): StageCycles(nt=(1240.0,), nn=(1350.0,), tn=(1400.0,), first=2140.0,
                          floats_per_cycle=1.9),
    (1, 256): StageCycles(nt=(1880.0,), nn=(2100.0,), tn=(), first=2500.0, floats_per_cycle=1.9),
}
"""By the tensor-core products for each product, and the rows of the operand in shared memory."""
RAGGED_TN = 1.16
"""Of the cycles of a stage of 128 columns in tn, where the last tile has fewer."""

SCALED_STAGE_CYCLES: Mapping[int, StageCycles] = {
    64: StageCycles(nt=(1420.0, 2080.0), nn=(1400.0, 2130.0), tn=(1880.0, 2260.0), first=2490.0,
                    floats_per_cycle=1.6),
    128: StageCycles(nt=(2070.0,), nn=(2070.0,), tn=(2270.0,), first=4150.0, floats_per_cycle=1.6),
}
"""The same for scaled float16 products, by columns of the tile. The first stage includes its
scales."""


def _from_stage_cycles(p: GemmShape, tile: Tile, target: Target, paces: StageCycles,
                       factor: float = 1.0) -> float:
    pace: tuple[float, ...] = getattr(paces, p.layout)
    return _total_cycles(p, tile, target, len(pace),
                         lambda concurrent: factor * pace[concurrent - 1],
                         first=paces.first, floats_per_cycle=paces.floats_per_cycle)


def cycles_wgmma_scaled(p: GemmShape, tile: Tile, target: Target) -> float:
    """Predicted cycles of a float32 GEMM by wgmma of scaled float16."""
    return _from_stage_cycles(p, tile, target, SCALED_STAGE_CYCLES[tile.bn])


def cycles_wgmma_tf32(p: GemmShape, tile: Tile, target: Target) -> float:
    """Predicted cycles of a float32 GEMM by wgmma."""
    other = tile.bm if p.layout == "nn" else tile.bn
    ragged = p.times == 1 and p.layout == "tn" and other == 128 and p.n % 128 != 0
    return _from_stage_cycles(p, tile, target, TF32_STAGE_CYCLES[p.times, other],
                              RAGGED_TN if ragged else 1.0)
