"""Which steps split the examples of their softmax among the blocks (phases/by_examples.py)."""

from __future__ import annotations

from rawnn.persistent.problem import Problem
from rawnn.persistent.sharding import BY_EXAMPLES, DSMEM, SHARDED, Sharding, ceil, up

MOST_OUTPUTS = 16
"""Outputs at most: the rows of a tile of a GEMM, and four lanes publish four each."""
THREADS = 512


def sharding_by_examples(p: Problem, tp_size: int) -> Sharding | None:
    """The sharding by `tp_size` blocks; None where no kernel has it."""
    found = Sharding(p, tp_size, 1, THREADS, SHARDED + BY_EXAMPLES)
    return None if tp_size == 1 or why_not_by_examples(found) else found


def why_not_by_examples(d: Sharding) -> str:
    """Why blocks cannot split the examples; "" where they can."""
    p = d.problem
    for reason, found in (
            ("it takes a network of one layer", p.depth != 1),
            ("its loss must be cross-entropy with labels", not p.labelled),
            (f"its outputs must be at most {MOST_OUTPUTS}", p.outputs > MOST_OUTPUTS),
            ("its GEMMs must be those of float32 or tf32", p.numbers not in ("float32", "tf32")),
            ("its inputs must be bytes that are not normalised",
             p.inputs != "uint8" or p.normalised or not p.converted),
            ("its blocks are one cluster", d.dp_size > 1 or d.transport != DSMEM or d.tp_size < 2),
            ("it takes no micro-batches, and the memory of a whole multiprocessor",
             d.micro_batches > 1 or d.resident > 0 or d.members is not None)):
        if found:
            return reason
    if softmax_warps(d) > d.warps // 2:
        return "half of the warps, with eight examples each, must have room for those of a block"
    return ""


def steps_of_inputs(d: Sharding) -> int:
    """Steps of 16 of the forward GEMM."""
    return ceil(d.ins(0), 16)


def steps_of_examples(d: Sharding) -> int:
    """Steps of 16 of the weight gradient."""
    return ceil(d.columns, 16)


def input_pitch(d: Sharding) -> int:
    """Values of 16 bits from one example to the next: an odd number of eights."""
    return up(d.ins(0), 16) + 8


def input_floats(d: Sharding) -> int:
    """Floats that the inputs of a step take."""
    return 16 * steps_of_examples(d) * input_pitch(d) // 2


def planes_pitch(d: Sharding) -> int:
    """Values of 16 bits of an input's weights, or of an example's gradients: of each output three
    (`Rows` in ptx/persistent/by_examples.cuh)."""
    return 40 if d.problem.outputs <= 10 else 56


def forward_tiles(d: Sharding) -> int:
    """Tiles of 8 examples of a task of the forward GEMM."""
    return 4 if d.columns > 64 else 2


def forward_warps(d: Sharding) -> int:
    """Warps that do the forward GEMM, while the others prepare inputs."""
    return min(ceil(d.columns // 8, forward_tiles(d)), d.warps // 2)


def first_free_warp(d: Sharding) -> int:
    """The first warp without a part in the forward GEMM and the softmax."""
    return max(forward_warps(d), softmax_warps(d))


def softmax_warps(d: Sharding) -> int:
    """Warps with the softmax of a block's examples, eight of each warp."""
    return ceil(d.own_examples, 8)
