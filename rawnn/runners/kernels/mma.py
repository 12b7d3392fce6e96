"""Matrix products on tensor cores: by mma.sync (sm_80) and by wgmma (sm_90a)."""

from __future__ import annotations

from rawnn.runners.kernels.table import Scalars
from rawnn.runners.kernels.tiles import Product, Tile, blocks, register_family, sums_bytes


def choose(p: Product) -> Tile:
    """The largest tile of which there are enough to fill a GPU; small ones have warps that share
    the inner dimension. H200: 64 x 784 x 784 in bfloat16 takes 2.9 us in 100 tiles of 16 x 32 and
    8.5 us in 13 tiles of 64 x 64; 1024 cubed 10 us in tiles of 64 x 64 and 16 us in tiles of
    128 x 128; 4096 cubed 470 us and 340 us."""
    if blocks(p, 128, 128) >= 200:
        return Tile(128, 128, 2, 4, 1, 3, bytes=128)
    if blocks(p, 64, 128) >= 200 and p.size > 1:
        return Tile(64, 128, 2, 2, 1, 4, bytes=128)
    if p.k * p.size <= 256 and blocks(p, 32, 64) >= 100:
        return Tile(32, 64, 2, 2, 1, 2, bytes=128)
    if blocks(p, 64, 64) >= 100:
        return Tile(64, 64, 2, 2, 1, 3, bytes=256)
    if blocks(p, 32, 64) >= 100:
        return Tile(32, 64, 2, 2, 2, 4, bytes=256)
    if blocks(p, 32, 32) >= 60:
        return Tile(32, 32, 1, 1, 4, 4, bytes=256)
    if p.k * p.size <= 256:
        return Tile(16, 32, 1, 1, 4, 2, bytes=128)
    if p.layout == "nn" and p.size == 2:
        return Tile(16, 32, 1, 1, 4, 6, bytes=128)
    return Tile(16, 32, 1, 1, 8, 4, bytes=256)


def _shared(s: Scalars) -> int:
    return max(int(s["STAGES"] * s["BYTES"] * (s["BM"] + s["BN"])), sums_bytes(s))


OTHERS = (
    Tile(16, 32, 1, 1, 4, 4, bytes=256), Tile(16, 32, 1, 1, 4, 2, bytes=128),
    Tile(16, 64, 1, 2, 4, 4, bytes=128), Tile(32, 32, 1, 1, 4, 4, bytes=256),
    Tile(32, 32, 2, 1, 4, 4, bytes=128), Tile(32, 64, 2, 2, 1, 2, bytes=128),
    Tile(32, 64, 1, 2, 4, 3, bytes=256), Tile(64, 64, 2, 2, 1, 4, bytes=128),
    Tile(64, 128, 2, 2, 1, 4, bytes=128), Tile(128, 128, 2, 4, 1, 3, bytes=128),
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
