"""Matrix products (GEMMs) on tensor cores: by mma.sync (sm_80), and large ones by wgmma (sm_90a),
with separate kernels for float32."""

from __future__ import annotations

from functools import cache
from itertools import product as combinations

from rawnn.common.target import Target
from rawnn.model.optimizers import UPDATE_RULES
from rawnn.ptx.family import Family
from rawnn.ptx.gemm.tile_cost import (
    SCALED_STAGE_CYCLES,
    TF32_STAGE_CYCLES,
    cycles,
    cycles_wgmma,
    cycles_wgmma_scaled,
    cycles_wgmma_tf32,
    shared,
)
from rawnn.ptx.gemm.tiles import (
    UPDATE,
    GemmShape,
    Tile,
    register_family,
    spanning,
    with_partial_sums,
)
from rawnn.ptx.kernel_registry import Scalars, ceil

SYNC = Family("mma", "matrix products of any shape on tensor cores by mma.sync",
              ("asynchronous copies",))
WGMMA = Family("wgmma", "large matrix products on tensor cores by wgmma", ("wgmma",))

TILES = (
    Tile(16, 32, 1, 1, 4, 2, bytes=128), Tile(16, 32, 1, 1, 8, 4, bytes=256),
    Tile(32, 32, 1, 1, 4, 4, bytes=256), Tile(32, 32, 2, 1, 4, 4, bytes=128),
    Tile(64, 64, 2, 2, 1, 4, bytes=128), Tile(64, 64, 2, 2, 2, 4, bytes=128),
    Tile(128, 64, 4, 2, 2, 3, bytes=128), Tile(128, 128, 2, 4, 1, 3, bytes=128),
    *(Tile(32, 32, 1, 1, 8, 3, cluster, bytes=256) for cluster in (1, 2, 4, 8)),
    *(Tile(64, 64, 2, 2, 2, 4, cluster, bytes=128) for cluster in (2, 4, 8)),
    Tile(16, 32, 1, 1, 8, 4, 4, bytes=256),
)
"""The tiles that a GEMM's tile is chosen from, the last one for large GEMMs. docs/notes/mma.md says
how they were selected."""

ROWS = (Tile(32, 64, 1, 2, 4, 4, 8, bytes=256),)
"""The tile for GEMMs whose tile has to span rows, which its softmax needs. Other GEMMs do not get
it: docs/notes/mma.md says why."""


STREAMED = Tile(64, 64, 2, 2, 1, 2, bytes=128)
"""The tile of an update that streams its weights: small, so that many blocks of a multiprocessor
read and write at the same time."""
STREAMED_ROWS, STREAMED_WEIGHTS = 64, 1 << 23


def streams_weights(p: GemmShape, target: Target) -> bool:
    """Whether an update is bound by reading and writing its weights, more than an L2 cache holds:
    the model of tiles does not know device memory."""
    return target.has("wgmma") and p.layout == "tn" and p.size in (2, 4) \
        and p.k <= STREAMED_ROWS and p.m * p.n >= STREAMED_WEIGHTS


@cache
def choose(p: GemmShape, target: Target) -> Tile:
    """The tile with the fewest predicted cycles among those that the GPU's shared memory and the
    number format allow. A float32 warp has the registers for at most 32 x 32 in eight warps."""
    if streams_weights(p, target):
        return STREAMED
    return min(spanning(p, (
        tile for tile in (*TILES, *(ROWS if p.rows else ()))
        if shared(tile) <= target.shared_per_block
        and (p.times == 1 or (tile.bm * tile.bn <= 1024 * tile.wm * tile.wn
                              and tile.wm * tile.wn * tile.wk <= 8)))),
               key=lambda tile: cycles(p, tile, target))


def _shared(s: Scalars) -> int:
    return with_partial_sums(s, s["STAGES"] * s["BYTES"] * (s["BM"] + s["BN"]))


TUNE_TILES = (
    Tile(16, 32, 1, 1, 8, 4, bytes=256), Tile(16, 32, 1, 1, 4, 2, bytes=128),
    Tile(16, 64, 1, 2, 4, 4, bytes=128), Tile(32, 32, 1, 1, 4, 4, bytes=256),
    Tile(32, 32, 2, 1, 4, 4, bytes=128), Tile(32, 64, 2, 2, 1, 2, bytes=128),
    Tile(32, 64, 1, 2, 4, 3, bytes=256), Tile(64, 64, 2, 2, 1, 4, bytes=128),
    Tile(64, 64, 2, 2, 2, 4, bytes=128), Tile(128, 64, 4, 2, 1, 4, bytes=128),
)
"""Further tiles that `tune` tries."""
CLUSTER_TUNE_TILES = (Tile(64, 64, 2, 2, 2, 4, 2, bytes=128),
                      Tile(64, 64, 2, 2, 2, 4, 4, bytes=128))
"""Further tiles that `tune` tries on GPUs with clusters."""
UPDATES = {**{rule.fused_kind: f"gemm_{rule.kind}" for rule in UPDATE_RULES.values()
              if rule.is_fused},
           **UPDATE}

register_family(SYNC, "mma", "gemm/mma.cu", "Mma", choose, _shared, others=TUNE_TILES
                + CLUSTER_TUNE_TILES, updates=UPDATES,
                losses=True)


def _shared_wgmma(s: Scalars) -> int:
    return with_partial_sums(s, s["STAGES"] * s["BYTES"] * (s["BM"] + s["BN"]) + 1024)


WGMMA_TILES = (
    Tile(64, 64, 4, 1, 1, 6, bytes=128), Tile(64, 128, 4, 1, 1, 6, bytes=128),
    Tile(128, 64, 8, 1, 1, 5, bytes=128), Tile(128, 128, 8, 1, 1, 5, bytes=128),
    Tile(256, 128, 16, 1, 1, 4, bytes=128),
    *(Tile(*tile, cluster, bytes=128)
      for tile, cluster in combinations(((64, 64, 4, 1, 1, 6), (64, 128, 4, 1, 1, 6),
                                         (128, 64, 8, 1, 1, 5), (128, 128, 8, 1, 1, 4)),
                                        (2, 4, 8))),
)
"""The tiles that a GEMM of 16- or 8-bit operands is chosen from."""


@cache
def choose_wgmma(p: GemmShape, target: Target) -> Tile:
    """The tile with the fewest predicted cycles."""
    return min(spanning(p, WGMMA_TILES), key=lambda tile: cycles_wgmma(p, tile, target))


WGMMA_TUNE_TILES = (
    Tile(64, 64, 4, 1, 1, 6, bytes=128), Tile(64, 128, 4, 1, 1, 4, bytes=128),
    Tile(128, 64, 8, 1, 1, 4, bytes=128), Tile(128, 128, 8, 1, 1, 4, bytes=128),
    Tile(256, 128, 16, 1, 1, 4, bytes=128), Tile(64, 64, 4, 1, 1, 6, 4, bytes=128),
    Tile(128, 128, 8, 1, 1, 4, 2, bytes=128),
)

register_family(WGMMA, "wgmma", "gemm/wgmma.cu", "Wgmma", choose_wgmma, _shared_wgmma,
                others=WGMMA_TUNE_TILES, updates=UPDATES, losses=True, specific=True)


LONGEST_SUM = 32
"""Most stages that one block sums in float32: the rounding error of the 64 additions is at most
twice that of cuBLAS's float32."""


WIDEST_STAGES = 8
"""Least stages of a sum in tiles of 128 x 256. They were measured with sums of 16 stages or more.
What they gain, one round of blocks in place of two, does not depend on the length of a sum, so that
half of that is left to the model of tiles. Shorter sums, whose time is mostly that of the first
stage and of the results, have tiles that were measured."""


def _tiles_wgmma_tf32(p: GemmShape) -> list[Tile]:
    """Tiles with 128 rows of the operand in registers; nn computes the transposed result. Where a
    multiprocessor has one block, it has a stage more. The widest tile leaves no shared memory to
    transpose an operand, or for a cluster's sums; it pays for sums of WIDEST_STAGES on."""
    stages = ceil(p.k, 32)
    return [Tile(*((other, 128) if p.layout == "nn" else (128, other)), 8, 1, 1,
                 4 if other > 64 else 3, cluster, bytes=128)
            for times, other in TF32_STAGE_CYCLES if times == p.times
            for cluster in (1, 2, 3, 4, 8)
            if (other < 256 or (p.layout != "tn" and cluster == 1 and stages >= WIDEST_STAGES))
            and (times == 1 or stages <= LONGEST_SUM * cluster or cluster == 8)]


@cache
def choose_wgmma_tf32(p: GemmShape, target: Target) -> Tile:
    """The tile with the fewest predicted cycles."""
    return min(spanning(p, _tiles_wgmma_tf32(p)),
               key=lambda tile: cycles_wgmma_tf32(p, tile, target))


WGMMA_MARGIN, WGMMA_MARGIN_CLUSTER_8 = 0.9, 0.87
"""Of mma.sync's time, what wgmma may take at most where it does one product for one: its blocks
leave a multiprocessor less room for those of another kernel. For results in clusters of eight: few
rows are predicted too well there (docs/tensor-core-kernels.md)."""


def wgmma_is_faster(p: GemmShape, target: Target) -> bool:
    """Whether wgmma is predicted to be faster than mma.sync, on a GPU that has both. For a float32
    GEMM that has to be exact, its sums must also be short enough."""
    if streams_weights(p, target):
        return False
    if p.times == 3 and ceil(p.k, 32) > 8 * LONGEST_SUM:
        return False
    tile = (choose_wgmma_tf32 if p.size == 4 else choose_wgmma)(p, target)
    by_wgmma = (cycles_wgmma_tf32 if p.size == 4 else cycles_wgmma)(p, tile, target)
    of_eight = tile.cluster == 8 and p.layout != "tn"
    worth = 1.0 if p.times != 1 else WGMMA_MARGIN_CLUSTER_8 if of_eight else WGMMA_MARGIN
    return by_wgmma < worth * cycles(p, choose(p, target), target)


def _shared_wgmma_tf32(s: Scalars) -> int:
    prepared = 0 if s["DEEP"] and s["TIMES"] == 1 else 2 * (s["BM"] + s["BN"] - 128)  # two stages
    prepared *= 2 if s["TIMES"] == 3 else 1  # of two parts each
    operands = int(s["BYTES"] * (s["STAGES"] * (s["BM"] + s["BN"]) + prepared))
    return max(operands, with_partial_sums(s, 0))


register_family(WGMMA, "wgmma_tf32", "gemm/wgmma_tf32.cu", "WgmmaTf32", choose_wgmma_tf32,
                _shared_wgmma_tf32, updates=UPDATES, losses=True, specific=True)


def _tiles_wgmma_scaled(p: GemmShape) -> list[Tile]:
    stages = ceil(p.k, 32)  # also the number of float32 additions, half of those by tf32
    return [Tile(128, columns, 8, 1, 1, 3, cluster, bytes=128)
            for columns in SCALED_STAGE_CYCLES for cluster in (1, 2, 3, 4, 8)
            if stages <= 2 * LONGEST_SUM * cluster or cluster == 8]


@cache
def choose_wgmma_scaled(p: GemmShape, target: Target) -> Tile:
    """The tile with the fewest predicted cycles."""
    return min(spanning(p, _tiles_wgmma_scaled(p)),
               key=lambda tile: cycles_wgmma_scaled(p, tile, target))


def scaled_is_faster(p: GemmShape, target: Target) -> bool:
    """Whether a float32 GEMM that has to be exact is predicted to be faster with scaled float16
    operands, on a GPU that has wgmma; and whether its sums are short enough."""
    if p.times != 3 or ceil(p.k, 32) > 16 * LONGEST_SUM or streams_weights(p, target):
        return False
    otherwise = min(cycles(p, choose(p, target), target),
                    cycles_wgmma_tf32(p, choose_wgmma_tf32(p, target), target))
    return cycles_wgmma_scaled(p, choose_wgmma_scaled(p, target), target) < otherwise


def _shared_wgmma_scaled(s: Scalars) -> int:
    prepared = 2 * s["BN"]  # two stages of two parts each
    operands = int(s["BYTES"] * (s["STAGES"] * (s["BM"] + s["BN"]) + prepared))
    return int(max(operands, with_partial_sums(s, 0)) + 3 * 4 * s["BN"])


SCALED_TUNE_TILES = tuple(Tile(128, columns, 8, 1, 1, 3, cluster, bytes=128)
                          for cluster in (1, 2) for columns in (64, 128))

register_family(WGMMA, "wgmma_scaled", "gemm/wgmma_scaled.cu", "WgmmaScaled", choose_wgmma_scaled,
                _shared_wgmma_scaled, others=SCALED_TUNE_TILES, updates=UPDATES, losses=True,
                specific=True, three="f16x3")


PREDICTED = {"mma": (choose, cycles), "wgmma": (choose_wgmma, cycles_wgmma),
             "wgmma_tf32": (choose_wgmma_tf32, cycles_wgmma_tf32),
             "wgmma_scaled": (choose_wgmma_scaled, cycles_wgmma_scaled)}
"""By implementation: how its tile is chosen, and the predicted cycles of a GEMM in that tile."""


def predicted(impl: str, p: GemmShape, target: Target) -> float:
    """Predicted cycles of a GEMM in the tile chosen for it."""
    chosen, taking = PREDICTED[impl]
    return taking(p, chosen(p, target), target)
