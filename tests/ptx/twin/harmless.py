"""Planted faults that change nothing that anybody could see, and why."""

from __future__ import annotations

from tests.ptx.twin.faults import Fault, argument

HARMLESS: dict[str, str] = {
    "narrow.cu: barrier: __syncwarp();  // keeps these loads ahead of the weights' in the queue to "
    "memory [2]":
        "it is there for speed: loads are asked for in that order; nothing is exchanged",
    "wgmma.cu: index: if (biased && group.column0 == 0 && q == 0) row[TILE::kN] = "
    "group.bias[2 * half]; [76]":
        "the sums are products with ones: all columns of a row are the same",
    "linear.cu: zero fill: for (int absent = warps; absent < 8; ++absent) "
    "partial_words[12 * c + absent] = 0.0f; [83]":
        "it adds the same to every class, which a softmax does not show",
    "narrow.cu: index: load_fragments<true>(words, head_gradient + (16 * tile + lane % 16) * "
    "kRows); [65]":
        "lanes 16 to 31 give the rows of two matrices that are not used",
    "onchip_loss.cuh: barrier: __syncthreads(); [2]":
        "each step ends with one, behind all tallies; it is there for whoever calls it elsewhere",
    "onchip_loss.cuh: barrier: __syncwarp(); [4]":
        "lanes write over nothing but what they alone have read",
    "onchip_product.cuh: zero fill: for (int j = 0; j < NT; ++j) step.b[j][0] = step.b[j][1] = "
    "0.0f; [60]":
        "the other factor of the step that is filled up is zero",
    "onchip_product.cuh: zero fill: for (int q = 0; q < 4; ++q) step.a[i][q] = 0.0f; [46]":
        "the other factor of the step that is filled up is zero",
    **dict.fromkeys(
        (f"train_steps {name}: barrier: cluster_{half}<Shape>(); [2]"
         for name in ("clusters share sums, 1x8", "float16, 1x1") for half in ("arrive", "wait")),
        "a cluster is one block here: it is nothing"),
    **dict.fromkeys(
        (f"train_steps {name}: barrier: __syncthreads(); [2] #3"
         for name in ("Adam in an order, 4x1 FSFF", "Adam in an order, state far, 2x1 FSFF",
                      "Adam in an order, state far, 2x3 FSFF")),
        "one warp fetches both the order and the few rows here; with long rows it is caught"),
    "head.cu: index: bias[row] = biases[row] - rate * (sums[2 * half] + decay * biases[row]); [48]":
        "all columns of a product with ones are the same sum",
    "floors.cu: barrier: for (int round = 0; round < rounds; ++round) ptx::cluster_barrier(); [47]":
        "the barrier is there to be timed: nothing is exchanged across it",
    "floors.cu: wait: pdl_wait(); [2]":
        "the kernel touches no memory: it is there to be timed",
    "floors_wgmma.cu: wait: ptx::wait_for_products<1>(); [4]":
        "it only keeps the queue short: all products are waited for behind the loop",
    "floors_wgmma.cu: wait: ptx::wait_for_products<1>(); [4] #2":
        "it only keeps the queue short: all products are waited for behind the loop",
    "floors_wgmma.cu: wait for one too few: ptx::wait_for_products<1>(); [9]":
        "it only keeps the queue short: all products are waited for behind the loop",
    "floors_wgmma.cu: wait for one too few: ptx::wait_for_products<1>(); [9] #2":
        "it only keeps the queue short: all products are waited for behind the loop",
}
"""By Fault.name."""

OUT_OF_REACH: dict[str, str] = {
    "skinny_backward.cuh: zero fill: const unsigned int mask = is_finite(magnitude) ? 0xffffffffu "
    ": 0u; [62]":
        "it makes -0 of the NaN that a GPU's arithmetic gives, 0x7fffffff; the host gives another",
}
"""Faults that a GPU would show and the twin does not, and why; by Fault.name."""


def why_harmless(fault: Fault) -> str:
    """Why a fault changes nothing; "" of one that should be caught."""
    return HARMLESS.get(fault.name) or argument(fault)
