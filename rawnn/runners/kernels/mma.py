"""Matrix products on tensor cores: by mma.sync (sm_80) and by wgmma (sm_90a)."""

from __future__ import annotations

from functools import cache

from rawnn.runners.kernels.table import Scalars, ceil
from rawnn.runners.kernels.tiles import Product, Tile, blocks, register_family, sums_bytes


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


def cycles(p: Product, tile: Tile) -> float:
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

    count, fit = blocks(p, tile.bm, tile.bn) * tile.cluster, _resident(p, tile)
    whole, rest = divmod(count, p.multiprocessors * fit)
    return whole * round_of(fit) + (round_of(ceil(rest, p.multiprocessors)) if rest else 0)


def _resident(p: Product, tile: Tile) -> int:
    """Blocks on a multiprocessor at once: of Hopper where there are clusters, else of what has the
    least shared memory. Registers are estimated."""
    warps, three = tile.wm * tile.wn * tile.wk, p.times == 3
    down, across = tile.bm // tile.wm // 16, tile.bn // tile.wn // 16
    shared = 1024 + max(tile.stages * tile.bytes * (tile.bm + tile.bn),
                        tile.wk * tile.bm * (tile.bn + 8) * 4)
    registers = 44 + 8 * down * across * (2 if three and tile.wk < 8 else 1) \
        + 4 * (down + across) * (2 if three else 1) + (8 * across if three else 0)
    memory = (227 if p.clusters else 99) << 10
    return max(min(memory // shared, 65536 // (32 * max(registers, 48) * warps), 64 // warps), 1)


@cache
def choose(p: Product) -> Tile:
    """The tile with the fewest predicted cycles of those that the GPU and the number format allow:
    in float32 a warp has registers for 32 x 32."""
    return min((tile for tile in TILES
                if (tile.cluster == 1 or p.clusters)
                and (p.times == 1 or tile.bm * tile.bn <= 1024 * tile.wm * tile.wn)),
               key=lambda tile: cycles(p, tile))


def _shared(s: Scalars) -> int:
    return max(int(s["STAGES"] * s["BYTES"] * (s["BM"] + s["BN"])), sums_bytes(s))


OTHERS = (
    Tile(16, 32, 1, 1, 8, 4, bytes=256), Tile(16, 32, 1, 1, 4, 2, bytes=128),
    Tile(16, 64, 1, 2, 4, 4, bytes=128), Tile(32, 32, 1, 1, 4, 4, bytes=256),
    Tile(32, 32, 2, 1, 4, 4, bytes=128), Tile(32, 64, 2, 2, 1, 2, bytes=128),
    Tile(32, 64, 1, 2, 4, 3, bytes=256), Tile(64, 64, 2, 2, 1, 4, bytes=128),
    Tile(64, 64, 2, 2, 2, 4, bytes=128), Tile(128, 64, 4, 2, 1, 4, bytes=128),
)
"""What `tune` tries besides."""
UPDATES = ("weight_update", "weight_momentum", "weight_adam")

register_family("mma", "mma.cu", choose, _shared, sums=True, others=OTHERS, updates=UPDATES)


def choose_wgmma(p: Product) -> Tile:
    """As many rows and columns a tile as leave every multiprocessor one. Where tiles are too few
    for that, two blocks share the inner dimension of one: on an H200 256 x 1024 x 1024 takes
    4.9 us so, and 5.8 us without."""
    if blocks(p, 256, 128) >= 100:
        return Tile(256, 128, 16, 1, 1, 4, bytes=128)
    if blocks(p, 128, 128) >= 100:
        return Tile(128, 128, 8, 1, 1, 5, bytes=128)
    if blocks(p, 64, 128) >= 200:
        return Tile(64, 128, 4, 1, 1, 6, bytes=128)
    cluster = 2 if p.layout != "tn" and blocks(p, 64, 64) <= 66 else 1
    return Tile(64, 64, 4, 1, 1, 6, cluster, bytes=128)


def _shared_wgmma(s: Scalars) -> int:
    return max(int(s["STAGES"] * s["BYTES"] * (s["BM"] + s["BN"])) + 1024, sums_bytes(s))


WGMMA_OTHERS = (
    Tile(64, 64, 4, 1, 1, 6, bytes=128), Tile(64, 128, 4, 1, 1, 4, bytes=128),
    Tile(128, 64, 8, 1, 1, 4, bytes=128), Tile(128, 128, 8, 1, 1, 4, bytes=128),
    Tile(256, 128, 16, 1, 1, 4, bytes=128),
)

register_family("wgmma", "wgmma.cu", choose_wgmma, _shared_wgmma, sums=False,
                fixed=("BYTES",), others=WGMMA_OTHERS, updates=UPDATES)
