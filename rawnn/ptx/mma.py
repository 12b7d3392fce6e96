"""Matrix products on tensor cores: by mma.sync (sm_80), and by wgmma (sm_90a) large ones, those of
float32 by kernels of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache

from rawnn.device.target import Target
from rawnn.ptx.family import Family
from rawnn.ptx.table import Scalars, ceil
from rawnn.ptx.tiles import (
    MANY,
    SOME,
    Product,
    Tile,
    blocks,
    filling,
    register_family,
    with_sums,
)

SYNC = Family("mma", "matrix products of any shape on tensor cores by mma.sync",
              ("asynchronous copies",))
WGMMA = Family("wgmma", "large matrix products on tensor cores by wgmma", ("wgmma",))

TILES = (
    Tile(16, 32, 1, 1, 8, 4, bytes=256), Tile(16, 32, 1, 1, 4, 2, bytes=128),
    Tile(16, 32, 1, 1, 8, 4, 2, bytes=256), Tile(16, 32, 1, 1, 8, 4, 4, bytes=256),
    Tile(16, 32, 1, 1, 8, 4, 8, bytes=256), Tile(32, 32, 1, 1, 4, 4, bytes=256),
    Tile(32, 32, 1, 1, 8, 3, 2, bytes=256), Tile(32, 32, 2, 1, 4, 4, bytes=128),
    Tile(64, 64, 2, 2, 1, 4, bytes=128), Tile(64, 64, 2, 2, 2, 4, bytes=128),
    Tile(128, 128, 2, 4, 1, 3, bytes=128),
)
"""What a product's tile is chosen from: of 27 tried, those without which any of 54 products was
slower (H200; float32, tf32 and bfloat16)."""

MMA = 11.7
"""Clock cycles that a quarter of a multiprocessor takes for one 16 x 8 block of a step."""
ISSUE = 0.56
"""For any other instruction: floats are loaded, rounded or split one by one."""
FROM_L2 = 57.0
"""Bytes a cycle that a multiprocessor gets from the L2 cache."""
STEP, FURTHER = 162.0, 46.0
"""From one step's fragments to its sums; what the further products of a float32 step add."""
STAGE = 105.0
"""For the barrier of a stage."""
MEMORY = 483.0
"""Until a copy has arrived."""
FIRST = 1470.0
"""For a block to begin, and for its first copies."""
FINISHED = 8.2
"""Sums a cycle that go through shared memory to the epilogue."""
EXCHANGE = 3200.0
"""For the blocks of a cluster to add up their parts."""


def cycles(p: Product, tile: Tile, target: Target) -> float:
    """About how long a product takes in a tile. Blocks share multiprocessors and come in rounds;
    each goes through its stages at the pace of the slowest of tensor cores, L2 cache, a step's
    latency and copies under way. The constants above are fitted to timings of 54 products in each
    of TILES on an H200, to a sixth in the mean; choosing by them costs 4 % (at most 35 %) against
    the fastest of all 27 tiles."""
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
    stages = ceil(ceil(p.k, tile.bytes // p.size), tile.cluster)

    def round_of(beside: int) -> float:
        sums = beside * tile.wk * tile.bm * tile.bn / FINISHED
        return FIRST + stages * max(beside * busy, beside * copied, alone) + sums \
            + (EXCHANGE if tile.cluster > 1 else 0)

    return _in_rounds(p, tile, target, _resident(p, tile, target), round_of)


def _in_rounds(p: Product, tile: Tile, target: Target, fit: int,
               round_of: Callable[[int], float]) -> float:
    """Cycles of all blocks, `fit` of which a multiprocessor runs at once; infinitely many for a
    cluster that the GPU does not have."""
    multiprocessors = target.at_once.get(tile.cluster, 0)
    if not multiprocessors:
        return math.inf
    whole, rest = divmod(blocks(p, tile.bm, tile.bn) * tile.cluster, multiprocessors * fit)
    return whole * round_of(fit) + (round_of(ceil(rest, multiprocessors)) if rest else 0)


def _resident(p: Product, tile: Tile, target: Target) -> int:
    """Blocks on a multiprocessor at once. Registers are estimated."""
    warps, three = tile.wm * tile.wn * tile.wk, p.times == 3
    down, across = tile.bm // tile.wm // 16, tile.bn // tile.wn // 16
    shared = 1024 + max(tile.stages * tile.bytes * (tile.bm + tile.bn),
                        tile.wk * tile.bm * (tile.bn + 8) * 4)
    registers = 44 + 8 * down * across * (2 if three and tile.wk < 8 else 1) \
        + 4 * (down + across) * (2 if three else 1) + (8 * across if three else 0)
    return max(min(target.shared_per_multiprocessor // shared, target.threads // (32 * warps),
                   target.registers // (32 * max(registers, 48) * warps)), 1)


@cache
def choose(p: Product, target: Target) -> Tile:
    """The tile with the fewest predicted cycles of those that the number format allows: in float32
    a warp has registers for 32 x 32."""
    return min((tile for tile in TILES
                if p.times == 1 or tile.bm * tile.bn <= 1024 * tile.wm * tile.wn),
               key=lambda tile: cycles(p, tile, target))


def _shared(s: Scalars) -> int:
    return with_sums(s, s["STAGES"] * s["BYTES"] * (s["BM"] + s["BN"]))


OTHERS = (
    Tile(16, 32, 1, 1, 8, 4, bytes=256), Tile(16, 32, 1, 1, 4, 2, bytes=128),
    Tile(16, 64, 1, 2, 4, 4, bytes=128), Tile(32, 32, 1, 1, 4, 4, bytes=256),
    Tile(32, 32, 2, 1, 4, 4, bytes=128), Tile(32, 64, 2, 2, 1, 2, bytes=128),
    Tile(32, 64, 1, 2, 4, 3, bytes=256), Tile(64, 64, 2, 2, 1, 4, bytes=128),
    Tile(64, 64, 2, 2, 2, 4, bytes=128), Tile(128, 64, 4, 2, 1, 4, bytes=128),
)
"""What `tune` tries besides."""
CUT = (Tile(64, 64, 2, 2, 2, 4, 2, bytes=128), Tile(64, 64, 2, 2, 2, 4, 4, bytes=128))
"""The same where blocks form clusters."""
UPDATES = ("weight_update", "weight_momentum", "weight_adam")

register_family(SYNC, "mma", "mma.cu", "Mma", choose, _shared, others=OTHERS + CUT, updates=UPDATES)


def choose_wgmma(p: Product, target: Target) -> Tile:
    """As many rows and columns a tile as leave every multiprocessor one. Where tiles are too few
    for that, two blocks share the inner dimension of one: on an H200 256 x 1024 x 1024 takes
    4.9 us so, and 5.8 us without."""
    if filling(p, target, 256, 128) >= SOME:
        return Tile(256, 128, 16, 1, 1, 4, bytes=128)
    if filling(p, target, 128, 128) >= SOME:
        return Tile(128, 128, 8, 1, 1, 5, bytes=128)
    if filling(p, target, 64, 128) >= MANY:
        return Tile(64, 128, 4, 1, 1, 6, bytes=128)
    cluster = 2 if p.layout != "tn" and filling(p, target, 64, 64) <= 0.5 else 1
    return Tile(64, 64, 4, 1, 1, 6, cluster, bytes=128)


def _shared_wgmma(s: Scalars) -> int:
    return with_sums(s, s["STAGES"] * s["BYTES"] * (s["BM"] + s["BN"]) + 1024)


WGMMA_OTHERS = (
    Tile(64, 64, 4, 1, 1, 6, bytes=128), Tile(64, 128, 4, 1, 1, 4, bytes=128),
    Tile(128, 64, 8, 1, 1, 4, bytes=128), Tile(128, 128, 8, 1, 1, 4, bytes=128),
    Tile(256, 128, 16, 1, 1, 4, bytes=128), Tile(64, 64, 4, 1, 1, 6, 4, bytes=128),
    Tile(128, 128, 8, 1, 1, 4, 2, bytes=128),
)

register_family(WGMMA, "wgmma", "wgmma.cu", "Wgmma", choose_wgmma, _shared_wgmma,
                others=WGMMA_OTHERS, updates=UPDATES, specific=True)


PACES: Mapping[tuple[int, int], Mapping[str, tuple[float, ...]]] = {
    (3, 64): {"nt": (1700.0, 2500.0), "nn": (1800.0, 2850.0), "tn": (2030.0, 2950.0)},
    (1, 64): {"nt": (1100.0, 1700.0), "nn": (1230.0, 1850.0), "tn": (1265.0, 1900.0)},
    (1, 128): {"nt": (1590.0,), "nn": (1900.0,), "tn": (1530.0,)},
}
"""Cycles of a stage of float32 by wgmma, of one block and of two that share a multiprocessor: by
products for one and by the rows of the operand from shared memory (H200)."""
LONGEST_SUM = 32
"""Stages of a float32 sum in one block: the rounding of its 64 additions leaves an error of at most
twice that of cuBLAS's float32."""


def _tiles_wgmma_tf32(p: Product) -> list[Tile]:
    """128 rows of the operand that comes from registers; nn's is that of the transpose."""
    stages = ceil(p.k, 32)
    return [Tile(*((other, 128) if p.layout == "nn" else (128, other)), 8, 1, 1, 3, cluster,
                 bytes=128)
            for times, other in PACES if times == p.times
            for cluster in ((1,) if other == 128 else (1, 2, 4))
            if times == 1 or stages <= LONGEST_SUM * cluster or cluster == 4]


def _cycles_wgmma_tf32(p: Product, tile: Tile, target: Target) -> float:
    """As `cycles`, with the pace of a stage as measured."""
    pace = PACES[p.times, min(tile.bm, tile.bn)][p.layout]
    stages = ceil(ceil(p.k, tile.bytes // p.size), tile.cluster)

    def round_of(beside: int) -> float:
        return FIRST + stages * pace[beside - 1] + beside * tile.bm * tile.bn / FINISHED \
            + (EXCHANGE if tile.cluster > 1 else 0)

    return _in_rounds(p, tile, target, len(pace), round_of)


@cache
def choose_wgmma_tf32(p: Product, target: Target) -> Tile:
    """The fastest of the tiles, as predicted."""
    return min(_tiles_wgmma_tf32(p), key=lambda tile: _cycles_wgmma_tf32(p, tile, target))


def wgmma_is_faster(p: Product, target: Target) -> bool:
    """Whether a product of float32 is predicted to take less by wgmma than by mma.sync, on a GPU
    that has both; and whether its sums are short enough for that, where it must be as exact."""
    if p.times == 3 and ceil(p.k, 32) > 4 * LONGEST_SUM:
        return False
    return _cycles_wgmma_tf32(p, choose_wgmma_tf32(p, target), target) \
        < cycles(p, choose(p, target), target)


def _shared_wgmma_tf32(s: Scalars) -> int:
    prepared = 4 * min(s["BM"], s["BN"])  # two, of two parts each
    return with_sums(s, s["BYTES"] * (s["STAGES"] * (s["BM"] + s["BN"]) + prepared))


register_family(WGMMA, "wgmma_tf32", "wgmma_tf32.cu", "WgmmaTf32", choose_wgmma_tf32,
                _shared_wgmma_tf32, updates=UPDATES, specific=True)
