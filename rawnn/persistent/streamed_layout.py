"""Where everything lies in a step whose operands stream from L2: the shared memory of a block, and
the workspaces in global memory."""

from __future__ import annotations

from rawnn.persistent.block_memory import Memory
from rawnn.persistent.phases.streamed_text import gathers, input_floats
from rawnn.persistent.sharding import STREAMED_WIDTH, TILE, WARP, Sharding, ceil
from rawnn.persistent.streamed import MOST_OUTPUTS, splits_of


def streamed_quads(d: Sharding) -> tuple[int, int, int]:
    """Quads in global memory of a sharding whose operands stream: two buffers of the gathered
    boundaries, the new weights of layers between the first and the last, and those of the last."""
    of_block = ceil(d.columns, 32) * WARP
    return (2 * len(gathers(d)) * d.tp_size * of_block,
            ceil(d.problem.depth - 2, 3) * d.tp_size**2 * WARP, d.tp_size * WARP)


def streamed_memory(d: Sharding, room: int) -> Memory:
    """The shared memory of a block: weights in float32, the words of bfloat16 of the block's rows,
    and where there is room the inputs of one or two steps."""
    p, memory = d.problem, Memory()
    steps, input_steps, middle = p.layers[1] // 16, 2 * ceil(p.layers[0], 32), p.depth - 2
    share = steps // d.peers
    if d.peers > 1:
        input_steps = 2 * d.peers * ceil(input_steps // 2, d.peers)
    memory.take("weights1", input_steps * TILE, "weights")
    memory.take("weights", middle * steps * TILE, "weights")
    memory.take("last weights", TILE, "weights")
    memory.take("words", middle * steps * 2 * WARP, "weights in 16 bits")
    memory.take("last words", (share + (d.peers > 1)) * 4 * WARP, "weights in 16 bits")
    memory.take("biases", MOST_OUTPUTS * p.depth, "biases")
    for boundary in range(1, p.depth):
        memory.take(f"own a{boundary}", ceil(d.columns, 32) * TILE, "activations")
    for boundary in range(1, p.depth - 1 if p.bias else 2 if d.peers == 1 else 1):
        memory.take(f"own z{boundary}", ceil(d.columns, 32) * TILE, "gradients")
    memory.take("logits", p.outputs * d.pitch, "outputs")
    memory.take("gradient", MOST_OUTPUTS * d.pitch // 2, "gradients")
    memory.take("y", 2 * d.columns, "targets")
    memory.take("rows", 2 * d.columns, "numbers of examples")
    memory.take("copies", 4, "inputs")
    memory.take("tallies", 2, "losses")
    if d.peers > 1:
        _take_of_clusters(d, memory)
    else:
        parts = max(ceil(n, ceil(n, d.warps)) for n in (steps, input_steps // 2))
        for scratch in ("scratch0", "scratch1"):
            memory.take(scratch, parts * d.columns * 8, "scratch")
    for stage in ("x0", "x1"):
        if memory.has(input_floats(d), room) or (d.peers > 1 and stage == "x0"):
            memory.take(stage, input_floats(d), "inputs")
    return memory


def _take_of_clusters(d: Sharding, memory: Memory) -> None:
    """The operands that clusters share (ptx/persistent/streamed_clusters.cuh), and two receive
    buffers of partial sums. The logits of a step are its exchange number depth - 1 of them."""
    p = d.problem
    memory.take("staged", p.layers[1] // d.peers * d.columns // 2, "activations")
    memory.take("peers", d.peers * d.columns * STREAMED_WIDTH // 2, "activations")
    logits = d.columns * (8 + 2 * ceil(max(p.outputs - 8, 0), 2))
    for number in (0, 1):
        floats = splits_of(d) * d.columns * STREAMED_WIDTH
        if number == (p.depth - 1) % 2:
            floats = max(floats, logits)
        memory.take(f"parts{number}", d.peers * floats, "receive buffers")
    memory.take("barriers", 4, "barriers")
