"""About how long a product takes in a tile: what tiles are chosen by.

Blocks share multiprocessors and come in rounds. A block begins, goes through its stages at the
pace of the slowest of tensor cores, L2 cache, a stage's latency and copies under way, adds up its
warps' parts, hands them to the other blocks of its cluster, and finishes its share of the tile.
All figures are clock cycles, of which 1,755 are a microsecond. They were fitted to 1,349 timings by
mma.sync and 208 by wgmma on an H200, each a chain of one launch in a graph: 29 products of odd
sizes in float32, tf32 and bfloat16, 36 and 21 tiles. They are off by 19 and 24 % in the mean, and
choosing by them costs 6 % against the fastest tile (at most 46 %). Paces of float32 by wgmma follow
from whole steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rawnn.device.target import Target
from rawnn.ptx.table import Scalars, ceil
from rawnn.ptx.tiles import Product, Tile, blocks, with_sums

FIRST = 2300.0
"""For a block to begin, and for its first copies."""
FINISHED = 6.2
"""Sums a cycle that go through shared memory to the epilogue."""
EXCHANGE, HANDED = 580.0, 3.9
"""For the blocks of a cluster to meet, and floats a cycle that one hands to the others."""
FROM_L2 = 23.7
"""Bytes a cycle that a multiprocessor gets from the L2 cache, of rows that begin anywhere in a
sector of it; of rows that begin with cache lines it gets up to twice as many."""

MMA = 11.8
"""Cycles that a quarter of a multiprocessor takes for one 16 x 8 block of a step of mma.sync."""
ISSUE = 1.4
"""For any other instruction: floats are loaded, rounded or split one by one."""
STEP, FURTHER = 275.0, 13.0
"""From one step's fragments to its sums; what the further products of a float32 step add."""
STAGE = 167.0
"""For the barrier of a stage."""
MEMORY = 668.0
"""Until a copy has arrived."""


def cycles(p: Product, tile: Tile, target: Target) -> float:
    """By mma.sync."""
    warps, steps = tile.wm * tile.wn * tile.wk, tile.bytes / 32 / tile.wk
    down, across = tile.bm // tile.wm // 16, tile.bn // tile.wn // 16
    of_8, three = 2 * down * across, p.times == 3

    wide = ("nt", "nn", "tn").index(p.layout)  # operands that are loaded word by word
    issued = 4 * (down + across) * (2 + wide / 2 + three) if p.size == 4 else 0.0
    multiplied = MMA * of_8 * p.times
    busy = warps / 4 * steps * (multiplied + ISSUE * (issued + (4 * of_8 if three else 0)))
    copied = (tile.bm + tile.bn) * tile.bytes / FROM_L2
    alone = max(steps * (STEP + (FURTHER if three else 0) + multiplied) + STAGE,
                MEMORY / (tile.stages - 1))
    return _whole(p, tile, target, _resident(p, tile, target),
                  lambda beside: max(beside * busy, beside * copied, alone), tile.wk)


def _resident(p: Product, tile: Tile, target: Target) -> int:
    """Blocks on a multiprocessor at once. Registers are estimated."""
    warps, three = tile.wm * tile.wn * tile.wk, p.times == 3
    down, across = tile.bm // tile.wm // 16, tile.bn // tile.wn // 16
    registers = 44 + 8 * down * across * (2 if three and tile.wk < 8 else 1) \
        + 4 * (down + across) * (2 if three else 1) + (8 * across if three else 0)
    return max(min(target.shared_per_multiprocessor // (1024 + shared(tile)),
                   target.threads // (32 * warps),
                   target.registers // (32 * max(registers, 48) * warps)), 1)


def shared(tile: Tile) -> int:
    """Bytes of shared memory of a block of mma.cu."""
    s: Scalars = tile.scalars()
    return with_sums(s, s["STAGES"] * s["BYTES"] * (s["BM"] + s["BN"]))


def _whole(p: Product, tile: Tile, target: Target, fit: int, pace: Callable[[int], float],
           parts: int = 1, first: float | None = None, finished: float | None = None) -> float:
    """Cycles of all blocks, `fit` of which a multiprocessor runs at once, `beside` of them at
    `pace(beside)` cycles a stage; infinitely many for a cluster that the GPU does not have."""
    multiprocessors = _at_once(tile.cluster, target)
    if not multiprocessors:
        return math.inf
    stages = ceil(ceil(p.k, tile.bytes // p.size), tile.cluster)
    sums = tile.bm * tile.bn
    first, finished = first or FIRST, finished or FINISHED

    def round_of(beside: int) -> float:
        handed = sums * (tile.cluster - 1) / tile.cluster / HANDED
        return first + stages * pace(beside) + beside * parts * sums / finished \
            + (EXCHANGE + beside * handed if tile.cluster > 1 else 0)

    whole, rest = divmod(blocks(p, tile.bm, tile.bn) * tile.cluster, multiprocessors * fit)
    return whole * round_of(fit) + (round_of(ceil(rest, multiprocessors)) if rest else 0)


def _at_once(cluster: int, target: Target) -> int:
    """Blocks that run at once, one on a multiprocessor, in clusters of any size: nobody is asked
    but about powers of two, and what holds a larger cluster holds a smaller one."""
    larger = min((size for size in target.at_once if size >= cluster), default=0)
    return target.at_once[larger] // cluster * cluster if larger else 0


# -- by wgmma --------------------------------------------------------------------------------------

FIRST_WGMMA, FINISHED_WGMMA = 3600.0, 4.3
"""As FIRST and FINISHED."""
RATE = 1100.0
"""Multiplications of 16 bits a cycle of a multiprocessor's tensor cores."""
ALONE = 506.0
"""A stage at least."""
FROM_L2_WIDE = 22.2
"""As FROM_L2."""


def cycles_wgmma(p: Product, tile: Tile, target: Target) -> float:
    """Of 16- and 8-bit operands, by wgmma."""
    busy = tile.bm * tile.bn * tile.bytes / 2 / RATE
    copied = (tile.bm + tile.bn) * tile.bytes / FROM_L2_WIDE
    taken = with_sums(tile.scalars(), tile.stages * tile.bytes * (tile.bm + tile.bn) + 1024)
    fit = max(min(target.shared_per_multiprocessor // (taken + 1024),
                  target.threads // (8 * tile.bm * tile.wn)), 1)
    return _whole(p, tile, target, fit, lambda beside: max(beside * busy, beside * copied, ALONE),
                  first=FIRST_WGMMA, finished=FINISHED_WGMMA)


@dataclass(frozen=True)
class Paces:
    """Cycles of a stage of float32 by wgmma in each layout, of one block and, where two share a
    multiprocessor, of both."""

    nt: tuple[float, ...]
    nn: tuple[float, ...]
    tn: tuple[float, ...]


PACES: Mapping[tuple[int, int], Paces] = {
    (3, 64): Paces(nt=(1700.0, 2560.0), nn=(2100.0, 2950.0), tn=(2350.0, 3400.0)),
    (1, 64): Paces(nt=(1100.0, 1700.0), nn=(1750.0, 2500.0), tn=(2300.0, 3200.0)),
    (1, 128): Paces(nt=(1700.0,), nn=(2400.0,), tn=(2700.0,)),
}
"""By products for one and by the rows of the operand from shared memory (H200), by whole steps.
Alone products take less: 12 to 29 % in float32, 21 to 51 % in tf32. With paces fitted to that,
which give some products in tf32 to wgmma, steps of one network took 4 % less and those of another
11 % more."""


SCALED: Mapping[int, Paces] = {
    64: Paces(nt=(1500.0, 2000.0), nn=(1350.0, 2100.0), tn=(2100.0, 2500.0)),
    128: Paces(nt=(2050.0,), nn=(2200.0,), tn=(2400.0,)),
}
FIRST_SCALED = {64: 4500.0, 128: 6000.0}
"""The same by scaled products of float16, by columns of the tile, and FIRST, with the scales of the
first stage: fitted to 44 products alone, off by 6 % in the mean (H200)."""


def cycles_wgmma_scaled(p: Product, tile: Tile, target: Target) -> float:
    """Of float32, by wgmma of float16."""
    pace: tuple[float, ...] = getattr(SCALED[tile.bn], p.layout)
    return _whole(p, tile, target, len(pace), lambda beside: pace[beside - 1],
                  first=FIRST_SCALED[tile.bn], finished=FINISHED_WGMMA)


def cycles_wgmma_tf32(p: Product, tile: Tile, target: Target) -> float:
    """Of float32, by wgmma."""
    pace: tuple[float, ...] = getattr(PACES[p.times, min(tile.bm, tile.bn)], p.layout)
    return _whole(p, tile, target, len(pace), lambda beside: pace[beside - 1], first=FIRST_WGMMA,
                  finished=FINISHED_WGMMA)
