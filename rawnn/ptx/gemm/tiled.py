"""GEMMs tiled through shared memory and registers, in float32 arithmetic without tensor cores."""

from __future__ import annotations

from rawnn.common.target import Target
from rawnn.ptx.family import Family
from rawnn.ptx.gemm.tiles import (
    SOME,
    GemmShape,
    Tile,
    filling,
    operand_bytes,
    register_family,
    with_partial_sums,
)
from rawnn.ptx.kernel_registry import Scalars

FAMILY = Family("tiled", "matrix products of any shape through tiles in shared memory and "
                "registers, in float")

DEPTH = 32
"""Elements of the inner dimension in a stage; kTiledDepth in tiled.cu."""


def choose(p: GemmShape, target: Target) -> Tile:
    """A tile for the GEMM: smaller tiles, and warps that share the inner dimension, if larger ones
    would leave most multiprocessors idle."""
    if filling(p, target, 64, 64) >= 1.21:
        return Tile(64, 64, 2, 1, 1, 3)
    if filling(p, target, 32, 32) >= SOME:
        return Tile(32, 32, 2, 1, 4, 2 if p.k <= 2 * DEPTH else 3)
    return Tile(16, 32, 1, 1, 8, 4)


def _shared(s: Scalars) -> int:
    left, right = operand_bytes(s)
    stages = int(s["STAGES"] * DEPTH * (s["BM"] * left + s["BN"] * right))
    return with_partial_sums(s, stages) if s["WK"] > 1 else stages


OTHERS = (
    Tile(16, 32, 1, 1, 8, 4), Tile(16, 32, 1, 1, 4, 3), Tile(32, 32, 2, 1, 4, 3),
    Tile(32, 64, 2, 1, 2, 3), Tile(64, 64, 2, 1, 1, 3), Tile(64, 64, 4, 2, 1, 2),
)
"""Further tiles that `tune` tries."""

register_family(FAMILY, "tiled", "gemm/tiled.cu", "Tiled", choose, _shared,
                tensor_cores=False, others=OTHERS)
