"""About how long a product takes in a tile: what tiles are chosen by.

Blocks share multiprocessors and come in rounds. A block begins, goes through its stages at the
pace of tensor cores, L2 cache and copies under way, adds up its warps' parts, hands them to the
other blocks of its cluster, and finishes its share of the tile. All figures are clock cycles, of
which 1,755 are a microsecond. They were fitted to products alone on an H200, each by a chain of
launches with `pdl` on rows as the engine lays them out, and every fourth product was left out. How
far off they are, and what choosing by them costs, stands in docs/toggles/mma.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rawnn.common.target import Target
from rawnn.plan.tensor import LINE, LONG
from rawnn.ptx.gemm.tiles import GemmShape, Tile, blocks, with_partial_sums
from rawnn.ptx.kernel_registry import Scalars, ceil

FIRST, AGAIN = 1010.0, 740.0
"""From the end of the kernel ahead to the first stage, beside what every round of blocks takes to
begin."""
FROM_L2, ASTRIDE = 36.6, 24.9
"""Bytes a cycle that a multiprocessor gets from the L2 cache, of rows that begin with cache lines
and of others."""
COPYING = 13.7
"""Bytes a cycle of each stage that is under way: what a stage takes to arrive."""
EXCHANGE, HANDED = 830.0, 3.2
"""For the blocks of a cluster to meet, and floats a cycle that one hands to the others."""
EACH, EACH_LATE = 20.0, 84.0
"""For a thread to finish one number of the tile, one after the other: of results by one product,
and of weights and by three for one, whose threads fetch what they read when the sums are there."""
WRITTEN, UPDATED = 8.0, 1.36
"""Numbers a cycle that a multiprocessor finishes, of results and of weights."""
UNEVEN = 0.13
"""How much counts that blocks lie unevenly: they begin while those of the kernel ahead hold some of
the multiprocessors, and a last round of less than one or two each is then two or three on some."""


def _paced(*paces: float) -> float:
    """Cycles of what goes on at the same time: little more than the slowest, more where several
    are as slow."""
    slowest = max(paces)
    return slowest * math.pow(sum(math.pow(pace / slowest, 5.0) for pace in paces), 0.2)


def _copied(p: GemmShape, tile: Tile) -> float:
    """Cycles in which the L2 cache delivers a stage of a block."""
    lengths = {"nt": (p.k, p.k), "nn": (p.k, p.n), "tn": (p.m, p.n)}[p.layout]
    paces = (FROM_L2 if length * p.size >= LONG or length * p.size % LINE == 0 else ASTRIDE
             for length in lengths)
    return sum(rows * tile.bytes / pace for rows, pace in zip((tile.bm, tile.bn), paces,
                                                              strict=True))


def _arriving(tile: Tile) -> float:
    """Cycles a stage at least, where further ones are on their way."""
    return (tile.bm + tile.bn) * tile.bytes / COPYING / (tile.stages - 1)


# -- by mma.sync -----------------------------------------------------------------------------------

MMA = 8.0
"""Cycles that a quarter of a multiprocessor takes for one 16 x 8 block of a step of mma.sync."""
ISSUE = 1.5
"""For any other instruction: floats are loaded, rounded or split one by one."""
STEP, FURTHER = 10.0, 52.0
"""From one step's fragments to its sums; what the further products of a float32 step add."""
STAGE = 380.0
"""For the barrier of a stage, and until its first fragments are there."""
PARTS = 20.0
"""Sums a cycle that warps which share the inner dimension leave in shared memory."""


def cycles(p: GemmShape, tile: Tile, target: Target) -> float:
    """By mma.sync."""
    warps, steps = tile.wm * tile.wn * tile.wk, tile.bytes / 32 / tile.wk
    down, across = tile.bm // tile.wm // 16, tile.bn // tile.wn // 16
    of_8, three = 2 * down * across, p.times == 3

    wide = ("nt", "nn", "tn").index(p.layout)  # operands that are loaded word by word
    issued = 4 * (down + across) * (2 + wide / 2 + three) if p.size == 4 else 0.0
    multiplied = MMA * of_8 * p.times
    busy = warps / 4 * steps * (multiplied + ISSUE * (issued + (4 * of_8 if three else 0)))
    alone = max(steps * (STEP + (FURTHER if three else 0) + multiplied) + STAGE, _arriving(tile))
    copied = _copied(p, tile)
    return _whole(p, tile, target, _resident(p, tile, target),
                  lambda beside: _paced(beside * busy, beside * copied, alone),
                  parts=tile.wk / PARTS)


def _resident(p: GemmShape, tile: Tile, target: Target) -> int:
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
    return with_partial_sums(s, s["STAGES"] * s["BYTES"] * (s["BM"] + s["BN"]))


def _whole(p: GemmShape, tile: Tile, target: Target, fit: int, pace: Callable[[int], float],
           parts: float = 0.0, first: float = FIRST, handed: float = HANDED) -> float:
    """Cycles of all blocks, `fit` of which a multiprocessor runs at once, `beside` of them at
    `pace(beside)` cycles a stage; infinitely many for a cluster that the GPU does not have."""
    multiprocessors = _at_once(tile.cluster, target)
    if not multiprocessors:
        return math.inf
    stages = ceil(ceil(p.k, tile.bytes // p.size), tile.cluster)
    sums = tile.bm * tile.bn
    finished = sums / tile.cluster
    updates = p.layout == "tn"
    each = EACH_LATE if updates or p.times == 3 else EACH
    ending = finished / (32 * tile.wm * tile.wn * tile.wk) * each
    written = finished / (UPDATED if updates else WRITTEN) / target.multiprocessors

    def round_of(beside: int, count: int) -> float:
        exchanged = EXCHANGE + beside * (sums - finished) / handed if tile.cluster > 1 else 0.0
        return AGAIN + stages * pace(beside) + beside * parts * sums + ending + count * written \
            + exchanged

    whole, rest = divmod(blocks(p, tile.bm, tile.bn) * tile.cluster, multiprocessors * fit)
    taken = first + (whole * round_of(fit, multiprocessors * fit) if whole else 0.0)
    if not rest:
        return taken
    beside = ceil(rest, multiprocessors)
    last, most = round_of(beside, rest), beside
    if not whole:  # with what the kernel ahead holds, twice as many
        most = max(beside, min(fit, ceil(2 * rest, multiprocessors) - rest // multiprocessors))
    return taken + last + (UNEVEN * (round_of(most, rest) - last) if most > beside else 0.0)


def _at_once(cluster: int, target: Target) -> int:
    """Blocks that run at once, one on a multiprocessor, in clusters of any size: nobody is asked
    but about powers of two, and what holds a larger cluster holds a smaller one."""
    larger = min((size for size in target.at_once if size >= cluster), default=0)
    return target.at_once[larger] // cluster * cluster if larger else 0


# -- by wgmma --------------------------------------------------------------------------------------

RATE = 1520.0
"""Multiplications of 16 bits a cycle of a multiprocessor's tensor cores."""
ALONE = 250.0
"""A stage at least, besides its multiplications."""


def cycles_wgmma(p: GemmShape, tile: Tile, target: Target) -> float:
    """Of 16- and 8-bit operands, by wgmma."""
    busy = tile.bm * tile.bn * tile.bytes / 2 / RATE
    alone = max(ALONE + busy, _arriving(tile))
    copied = _copied(p, tile)
    taken = with_partial_sums(tile.scalars(), tile.stages * tile.bytes * (tile.bm + tile.bn) + 1024)
    fit = max(min(target.shared_per_multiprocessor // (taken + 1024),
                  target.threads // (8 * tile.bm * tile.wn)), 1)
    return _whole(p, tile, target, fit,
                  lambda beside: _paced(beside * busy, beside * copied, alone))


@dataclass(frozen=True)
class Paces:
    """Cycles of a stage of float32 by wgmma in each layout, of one block and, where two share a
    multiprocessor, of both; until the first, as FIRST; and what a block hands over, as HANDED."""

    nt: tuple[float, ...]
    nn: tuple[float, ...]
    tn: tuple[float, ...]
    first: float
    handed: float


PACES: Mapping[tuple[int, int], Paces] = {
    (3, 64): Paces(nt=(1520.0, 2340.0), nn=(1590.0, 2370.0), tn=(2020.0, 2800.0), first=1250.0,
                   handed=1.9),
    (1, 64): Paces(nt=(1010.0, 1490.0), nn=(990.0, 1490.0), tn=(1300.0, 1590.0), first=1250.0,
                   handed=1.9),
    (1, 128): Paces(nt=(1270.0,), nn=(1350.0,), tn=(1630.0,), first=2140.0, handed=1.9),
}
"""By products for one and by the rows of the operand from shared memory."""

SCALED: Mapping[int, Paces] = {
    64: Paces(nt=(1420.0, 2080.0), nn=(1400.0, 2130.0), tn=(1880.0, 2260.0), first=2490.0,
              handed=1.6),
    128: Paces(nt=(2070.0,), nn=(2070.0,), tn=(2270.0,), first=4150.0, handed=1.6),
}
"""The same by scaled products of float16, by columns of the tile, with the scales of the first
stage."""


def _by_paces(p: GemmShape, tile: Tile, target: Target, paces: Paces) -> float:
    pace: tuple[float, ...] = getattr(paces, p.layout)
    return _whole(p, tile, target, len(pace), lambda beside: pace[beside - 1], first=paces.first,
                  handed=paces.handed)


def cycles_wgmma_scaled(p: GemmShape, tile: Tile, target: Target) -> float:
    """Of float32, by wgmma of float16."""
    return _by_paces(p, tile, target, SCALED[tile.bn])


def cycles_wgmma_tf32(p: GemmShape, tile: Tile, target: Target) -> float:
    """Of float32, by wgmma."""
    return _by_paces(p, tile, target, PACES[p.times, min(tile.bm, tile.bn)])
