"""Which steps can stream their operands from L2 (ptx/persistent/streamed.cuh), and how."""

from __future__ import annotations

from rawnn.persistent.problem import Problem
from rawnn.persistent.sharding import (
    ALL_GATHERED,
    REPLICATED,
    STREAM,
    STREAMED_WIDTH,
    Sharding,
    ceil,
)

THREADS = 512
"""Threads of a block, of which each has 128 registers."""
MOST_BATCH = THREADS // STREAMED_WIDTH
"""Examples of a step at most: each thread adds up one element of the block's part [8, examples] of
a hidden boundary (`add_up` in ptx/persistent/streamed_products.cuh)."""
LEAST_PEERS = 4
"""Blocks of a cluster that the search tries at least: fewer save too few bytes for their hop."""
MOST_PEERS = 8
"""Blocks of a cluster at most: every GPU with clusters has them of this size, and the 16 warps of a
block share its owners and pairs of tiles (ptx/persistent/streamed_clusters.cuh)."""
MOST_OUTPUTS = 16
"""Outputs of the network at most: the inner dimension of an mma.m16n8k16, which has the gradient of
the last layer as an operand (`last_backward` in ptx/persistent/streamed.cuh)."""


def splits_of(d: Sharding) -> int:
    """Warps of a block that share the inner dimension of a cluster's GEMM: as many as let eight
    warps multiply. Each of them sends partial sums."""
    pairs = d.columns // 32
    across = 2 if pairs * d.peers > 8 else 1
    return max(1, min(8 // (pairs * ceil(d.peers, across)), d.problem.layers[1] // 16 // d.peers))


def streamed_sharding(p: Problem, peers: int = 1) -> Sharding | None:
    """The sharding of a problem whose operands stream, in clusters of `peers` blocks; None where no
    kernel has it."""
    boundaries = REPLICATED + ALL_GATHERED * (p.depth - 1) + REPLICATED
    found = Sharding(p, p.layers[1] // STREAMED_WIDTH, 1, THREADS, boundaries, transport=STREAM,
                     peers=peers)
    return None if why_not_streamed(found) else found


def why_not_streamed(d: Sharding) -> str:
    """Why operands cannot stream; "" where they can."""
    p = d.problem
    for reason, found in (
            ("its products must be in bfloat16, of inputs that are rounded ahead",
             p.numbers != "bfloat16" or not p.rounded or bool(p.streams)),
            ("its optimizer must be SGD without momentum", bool(p.states) or p.timed),
            ("its loss must be cross-entropy with labels", not p.labelled),
            ("it needs two hidden layers or more", p.depth < 3),
            ("its hidden layers must have one width, a multiple of 16",
             len(set(p.layers[1:-1])) != 1 or p.layers[1] % 16 > 0),
            ("its inputs must be a multiple of 8", p.layers[0] % 8 > 0),
            (f"its outputs must be at most {MOST_OUTPUTS}", p.outputs > MOST_OUTPUTS),
            (f"its batch must be a multiple of 16, {MOST_BATCH} at most",
             p.batch % 16 > 0 or p.batch > MOST_BATCH),
            ("the slope of its activation must be that of the output", p.saves_input)):
        if found:
            return reason
    if (d.tp_size, d.dp_size, d.threads, d.micro_batches) != (
            p.layers[1] // STREAMED_WIDTH, 1, THREADS, 1):
        return f"it takes {p.layers[1] // STREAMED_WIDTH}x1 blocks of {THREADS} threads"
    if d.peers > 1 and p.layers[1] // 16 % d.peers:
        return f"clusters share {p.layers[1]} features in parts that are multiples of 16"
    if d.peers > 1 and p.batch % 32:
        return "in clusters its batch must be 32 or 64"
    if set(d.boundaries[1:-1]) != {ALL_GATHERED} or d.boundaries[0] + d.boundaries[-1] != \
            2 * REPLICATED:
        return f"its boundaries are {REPLICATED}{ALL_GATHERED * (p.depth - 1)}{REPLICATED}"
    return ""
