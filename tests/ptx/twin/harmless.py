"""Planted faults that change nothing that anybody could see, and why."""

HARMLESS: dict[str, str] = {
    "narrow.cu: barrier: __syncwarp();  // keeps these loads ahead of the weights' in the queue to "
    "memory [2]":
        "it is there for speed: loads are asked for in that order; nothing is exchanged",
    "wgmma.cu: index: if (biased && group.column0 == 0 && q == 0) row[TILE::kN] = "
    "group.bias[2 * half]; [74]":
        "the sums are products with ones: all columns of a row are the same",
    "linear.cu: zero fill: for (int absent = warps; absent < 8; ++absent) "
    "partial_words[12 * c + absent] = 0.0f; [83]":
        "it adds the same to every class, which a softmax does not show",
    "narrow.cu: index: load_fragments<true>(words, head_gradient + (16 * tile + lane % 16) * "
    "kRows); [65]":
        "lanes 16 to 31 give the rows of two matrices that are not used",
    "head.cu: index: bias[row] = biases[row] - rate * (sums[2 * half] + decay * biases[row]); [48]":
        "all columns of a product with ones are the same sum",
}
"""By Fault.name."""
