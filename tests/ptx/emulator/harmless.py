# ruff: noqa: E501
"""Planted faults that change nothing that anybody could see, and why."""

from __future__ import annotations

from tests.ptx.emulator.faults import Fault, argument

HARMLESS: dict[str, str] = {
    "gemm/mma_loss.cuh: zero fill: values[0][i] = i < count ? cross_entropy_slope(p, here, share) : "
    "0.0f; [68]":
        "columns that do not exist are not stored, and 1 overflows as little as 0",
    "gemm/mma_loss.cuh: zero fill: values[i] = here ? slope : 0.0f; [30]":
        "columns that do not exist are not stored, and 1 overflows as little as 0",
    "gemm/mma_loss.cuh: bounds check: if (count <= 0) return; [4]":
        "it saves work: losses, gradients and stores are of `count` elements, which are none",
    "gemm/mma_finish.cuh: zero fill: for (int j = 0; j < 4; ++j) values[i][j] = 0.0f; [46]":
        "sums replace it where there is a row; other rows are not stored nor checked for overflow",
    "losses/loss_rows.cuh: index: wide_gradient && column + 128 * q + 4 <= cols, cols - column - 128 * "
    "q); [37]":
        "the last four gradients are stored one by one then, which takes time only",
    **dict.fromkeys(
        (f"{file}: index: if (bias != nullptr) load_part<4>(found.bias, bias + column, "
         f"column + 4 <= n, n - column); [65]" for file in ("gemm/mma_loss.cuh",
                                                            "gemm/mma_epilogue.cuh")),
        "the last four biases are loaded one by one then, which takes time only"),
    "gemm/mma_epilogue.cuh: zero fill: float slope = 0.0f; [17]":
        "an activation without a slope does not use it; for others the saved one replaces it",
    "gemm/mma_update.cuh: bounds check: if (full) return; [4]":
        "it saves work: what follows stores three of each four numbers once more",
    "fused/narrow_inner.cu: barrier: __syncwarp();  // keeps these loads before those of the "
    "weights in the queue to memory [2]":
        "it is there for speed: loads are asked for in that order; nothing is exchanged",
    "gemm/wgmma.cu: index: if (biased && q == 0) row[TILE::kN] = group.bias[2 * half]; [54]":
        "the sums are products with ones: all columns of a row are the same",
    "gemm/wgmma_scaled.cu: zero fill: changed = __syncthreads_or(columns_change ? 1 : 0); [49]":
        "factors of scales that have not changed are ones",
    "gemm/mma_scaled.cuh: index: __device__ __forceinline__ bool writes() const { return kDeep ? "
    "lane % 8 == 0 : lane < 8; } [66]":
        "of each eight lanes another one writes, and all of them know as much",
    "gemm/mma_scaled.cuh: zero fill: unsigned int beyond = 0u; [23]":
        "a scale that fits stays as it is however often it is looked at; that takes time only",
    "gemm/mma_scaled.cuh: zero fill: unsigned int beyond = 0u; [23] #2":
        "for the same reason as the one above",
    "gemm/mma_scaled.cuh: zero fill: unsigned int largest = 0u;  // in the lane's row, or in "
    "the column that it writes [24]":
        "1 stands for the smallest number of all, which fits every scale",
    "gemm/mma_scaled.cuh: barrier: __syncwarp(); [4]":
        "the lane that writes a scale changes it with the first stage, ahead of a barrier like it",
    "gemm/mma_scaled.cuh: zero fill: return ((low ? (kDeep ? 64 : Ready::kBytes) : 0) + [47]":
        "a byte is none of a descriptor's units of 16",
    "gemm/wgmma_scaled.cu: zero fill: TILE::kCluster > 1 ? TILE::kCluster * Parts::kRows * "
    "Parts::kPitch * 4 + 16 : 0; [81]":
        "without a cluster the operands take more room than the sums, by more than a byte",
    "fused/linear.cu: zero fill: for (int absent = warps; absent < 8; ++absent) "
    "partial_words[12 * c + absent] = 0.0f; [83]":
        "it adds the same to every class, which a softmax does not show",
    **dict.fromkeys((
        "persistent/input.cuh: zero fill: const int a = i < count ? order[first + i] : 0; [46]",
        "persistent/input.cuh: zero fill: const int b = i < second_count ? order[second + i] : 0; "
        "[54]",
    ), "numbers of examples that do not exist are not used"),
    "persistent/by_examples.cuh: bounds check: if (warp_index() >= WARPS || first >= SHAPE::kSent) return; [2]":
        "a warp without examples has none that is its own: it reads and publishes nothing",
    "persistent/by_examples.cuh: zero fill: if (lane % 4 != 0) total[q] = 0.0f; [39]":
        "of outputs behind the tenth, which do not exist and of which nothing is stored",
    **dict.fromkeys((
        "fused/head_rows.cuh: zero fill: float of_label = 0.0f; [18]",
        "gemm/mma_loss.cuh: zero fill: float of_label = 0.0f; [18]",
    ), "the lane that has the label sets it, and the others' is used in no loss"),
    "persistent/loss.cuh: barrier: __syncwarp(); [4]":
        "the shuffles ahead of it bring the lanes together as well",
    "persistent/loss.cuh: zero fill: const float of_label = is ? z[label * SHAPE::kPitch] : 0.0f; [56]":
        "where the label is none of the outputs nothing is right and the power is NaN without it",
    "persistent/shared_softmax.cuh: zero fill: powers[i] = m < count ? mine[m * SHAPE::kPitch] : 0.0f; [55]":
        "what does not exist is left out of the slopes as well",
    "persistent/shared_softmax.cuh: zero fill: if (stores && at.part == (here ? place % Tasks::kLanes : 0)) { "
    "[58]":
        "any one lane of an example may say that its label is elsewhere, or none",
    "persistent/gradient_all_reduce.cuh: mark: return without_flag_bit(ptx::load_flagged(at)); [11]":
        "of micro-batches: a unit in the last place of one in four sums, which the flag bit takes",
    "persistent/gradient_all_reduce.cuh: zero fill: return parts + tile * kTileQuads + (at.there ? lane_index() : "
    "0); [61]":
        "lanes that have no part ask for any that is there, and leave what comes",
    "persistent/trace.cuh: barrier: __syncwarp(); [4]":
        "the clock of the lane that comes first is as good, and no other stores",
    "fused/head_rows.cuh: index: bias[row] = biases[row] - rate * (sums[2 * half] + decay * "
    "biases[row]); [46]":
        "all columns of a product with ones are the same sum",
    "limits/microbenchmarks.cu: barrier: for (int round = 0; round < rounds; ++round) "
    "ptx::cluster_barrier(); [47]":
        "the barrier is there to be timed: nothing is exchanged across it",
    "limits/microbenchmarks.cu: wait: pdl_wait(); [2]":
        "the kernel touches no memory: it is there to be timed",
    "limits/microbenchmarks_wgmma.cu: wait: ptx::wait_for_products<1>(); [4]":
        "it only keeps the queue short: all products are waited for behind the loop",
    "limits/microbenchmarks_wgmma.cu: wait: ptx::wait_for_products<1>(); [4] #2":
        "it only keeps the queue short: all products are waited for behind the loop",
    "limits/microbenchmarks_wgmma.cu: wait for one too few: ptx::wait_for_products<1>(); [9]":
        "it only keeps the queue short: all products are waited for behind the loop",
    "limits/microbenchmarks_wgmma.cu: wait for one too few: ptx::wait_for_products<1>(); [9] #2":
        "it only keeps the queue short: all products are waited for behind the loop",
    "primitives/common.cuh: bounds check: if (threads <= 32) return; [2]":
        "it saves work: of one warp the sum over all warps is its own",
    "primitives/common.cuh: zero fill: const float high = i + half < N ? values[(i + half) % LENGTH] : 0.0f; "
    "[69]":
        "it comes to lanes that hold padding, whose index is negative",
    **dict.fromkeys((
        "elementwise/gather.cu: zero fill: Piece next = piece_at(index < total ? index : 0, inputs, parts, "
        "answers); [45]",
        "elementwise/gather.cu: zero fill: next = piece_at(index < total ? index : 0, inputs, parts, answers); "
        "[41] #2",
    ), "behind the last piece any will do, as nothing is done with it"),
    "elementwise/gather.cu: zero fill: raw[i] = 0u; [10]":
        "elements behind the last of a row are not stored",
    "fused/head_rows.cuh: bound: if (row >= batch || column >= classes) values[0][i] = 0.0f; [32]":
        "the probability of a class that does not exist is zero already",
    "fused/head_rows.cuh: zero fill: b[c][0] = b[c][1] = b[c][2] = b[c][3] = 0u; [45]":
        "the scores of classes that do not exist are replaced by minus infinity",
    **dict.fromkeys((
        "fused/head.cu: zero fill: biases[thread] = bias != nullptr && thread < classes ? bias[thread] "
        ": 0.0f; [71]",
        "fused/narrow_inner.cu: zero fill: head_shifts[i] = exists ? biases[DEPTH - 1][c] : 0.0f; [50]",
    ), "it adds the same to every class, which a softmax does not show, or to classes that do not "
       "exist"),
    **dict.fromkeys((
        "fused/head_rows.cuh: zero fill: for (int i = 0; i < TILES * 4; ++i) sums[i / 8][i / 4 % 2][i "
        "% 4] = 0.0f; [69]",
        "fused/linear.cu: zero fill: for (int c = 0; c < CLASSES; ++c) sums[c] = 0.0f; [43]",
    ), "it adds the same to every class, which a softmax does not show"),
    "fused/head.cu: zero fill: old[c][0] = old[c][1] = old[c][2] = old[c][3] = 0u; [51]":
        "the gradients of classes that do not exist are zeros",
    "fused/linear.cu: zero fill: : 0.0f; [32] #3":
        "the pixels of rows past the batch are zeros",
    "fused/linear.cu: zero fill: const float before = writes ? *weight : 0.0f;  // early, to "
    "overlap with all other loads [41]":
        "what does not write does not use the weight either",
    "fused/linear_pieces.cuh: zero fill: const float before1 = second ? bias[c + 1] : 0.0f; [48]":
        "the second of the classes is not stored where there is one",
    "fused/linear.cu: zero fill: const float shift = warp == 0 && lane < CLASSES ? bias[lane] : 0.0f; "
    "[62]":
        "lanes without a class go on with minus infinity in place of their sum",
    "fused/linear.cu: zero fill: dz_words[(CLASSES / 2) * kPlane + 2 * row + 1] = 0.0f; [56]":
        "the sums of a class that does not exist are not stored",
    "fused/linear.cu: zero fill: if (lane == (label < CLASSES ? label : 0)) { [38]":
        "of a label that is no class any one lane may write that its loss is NaN",
    "gemm/mma_copy.cuh: zero fill: inner = PANEL::kDeep ? across * kPerChunk : 0; [45]":
        "a wide operand's copies do not use it",
    "gemm/mma_sums.cuh: bounds check: if (!biased) return; [6]":
        "it saves work: blocks that have no bias leave its sums in their padding, where none of "
        "them reads any",
    **dict.fromkeys((
        "fused/narrow_fetch.cuh: barrier: __syncwarp();  // racecheck attributes the "
        "initialization to all lanes [6]",
        "gemm/skinny_parts.cuh: barrier: __syncwarp();  // racecheck attributes the "
        "initialization to all lanes [4]",
    ), "one thread does what is ahead of it and what is behind it"),
    "fused/narrow.cu: bounds check: if (!layer.working) return; [6]":
        "a warp without pixels has no weights either: what it loads is masked to zeros, and not "
        "used",
    **dict.fromkeys((
        "fused/narrow_inner.cu: zero fill: const float share = exists ? __fdividef(1.0f, "
        "static_cast<float>(batch)) : 0.0f; [78]",
        "fused/narrow_pieces.cuh: zero fill: words[2 * i] = load_pixels(from[i], exists ? present(col, "
        "FEATURES) : 0u); [73]",
    ), "rows behind the batch are computed like the others, from rows that are padded to 16 bytes, "
       "and masked where an update reads them"),
    **dict.fromkeys((
        "fused/narrow_pieces.cuh: zero fill: at + 1 < FEATURES ? v[1] : 0.0f); [67]",
        "fused/narrow_pieces.cuh: zero fill: weights[i / 4][i % 4] = pack_pair<T>(at < FEATURES ? v[0] "
        ": 0.0f,  // padding may be NaN [63]",
    ), "the pixels of columns that do not exist are zeros"),
    "fused/narrow_pieces.cuh: zero fill: for (int i = 0; i < 2; ++i) values[i] = row + 8 * i < rows ? "
    "bias[row + 8 * i] : 0.0f; [82]":
        "the biases of rows that do not exist are not stored",
    "fused/narrow_pieces.cuh: zero fill: return mask != 0u ? *reinterpret_cast<const unsigned "
    "int*>(from) & mask : 0u; [73]":
        "the weights of columns that do not exist count as zeros, or are not stored",
    "persistent/input.cuh: zero fill: x[i] = 0.0f; [8]":
        "the gradients of examples that do not exist are zeros",
    "losses/pointwise.cuh: zero fill: values[i] = i < count ? LOSS::gradient(values[i], targets[i]) * "
    "share : 0.0f; [75]":
        "it is not stored, and a one overflows no more than a zero",
    **dict.fromkeys((
        "gemm/skinny.cu: barrier: __syncwarp(); [2]",
        "gemm/skinny.cu: barrier: __syncwarp(); [2] #3",
    ), "it brings a warp together ahead of the block's barrier, which orders the same"),
    **dict.fromkeys((
        "gemm/skinny_backward.cuh: barrier: __syncwarp(); [4]",
        "gemm/skinny_backward.cuh: barrier: __syncwarp(); [4] #2",
    ), "it brings the mover's warp together ahead of the block's barrier, which orders the same"),
    "gemm/skinny_weights.cuh: zero fill: const unsigned int pair_of_ones = g == 0 ? "
    "pack_pair<T>(1.0f, 1.0f) : 0u; [71]":
        "only the first row of the product is used",
    "gemm/skinny_backward.cuh: zero fill: return max(depth * kSlot + 1024 + (UPDATE ? kXTile : 0), "
    "sums); [54]":
        "the bytes are divided by four: one more makes no difference",
    "train_steps stochastic rounding, decay alone, 2x3 SFGF: barrier: __syncthreads(); [2] #3":
        "without biases, and with weights that are no float32, copies of weights are of what was "
        "there a barrier sooner; for the inputs there is the barrier behind the copies",
    "train_steps float32 inputs, a schedule, 8x1 FSFF: zero fill: float rate = thread >= 255 ? "
    "rates[cursor_now + 0] : 0.0f; [52]":
        "the thread that makes the rule is the only one that uses its rate",
    **dict.fromkeys((
        "train_steps Adam in an order, 12x2 FGFS, l2, turning: exchange: receive_flags<E0>("
        "transport, received_E0, n1); [4]",
        *("train_steps softmax, SGD, 12x1 FGGG, l2: exchange: receive_flags<"
          f"E{n}>(transport, received_E{n}, n{boundary}); [4]"
          for n, boundary in enumerate((1, 2, 3, 2, 1))),
    ), "the flags of the same blocks come in another exchange of the micro-batch; without a second "
       "exchange it is caught"),
}
"""By Fault.name."""

OUT_OF_REACH: dict[str, str] = {
    "persistent/by_examples.cuh: bounds check: if (warp_index() >= WARPS) return; [2]":
        "in none of these plans has a warp more than one task, so that the others have none",
    "persistent/elements.cuh: bound: if (row[i] < count) store_two<SHAPE>(to, slope[i].x, "
    "slope[i].y); [16]":
        "the row behind the last gets the zero that it has, but where slices are of 8 outputs more "
        "than whole tiles, as in none of these plans",
    "persistent/elements.cuh: index: loss.template of<2>({row, row}, {column, column + 2}, [45]":
        "in none of these plans has a block more pairs of a loss's sums than threads",
    "gemm/mma_finish.cuh: bounds check: if (!whole) return; [6]":
        "what is fetched then is not used; that a GPU wants such reads aligned shows there alone",
    "gemm/mma_loss.cuh: bound: const bool none = label < 0 || label >= n; [40]":
        "labels of the CPU emulator's networks are classes, as a reference has no other; "
        "tests/ptx/test_emulator_plans.py has some that are none",
    **dict.fromkeys((
        "gemm/mma_sums.cuh: barrier: __syncwarp(); [6]",
        "gemm/skinny_parts.cuh: barrier: __syncwarp(); [4] #2",
    ),
        "the cluster's barrier wants a warp's lanes together (.aligned); on the host each arrives "
        "by itself"),
}
"""Faults that a GPU would show and the CPU emulator does not, and why; by Fault.name."""


def why_harmless(fault: Fault) -> str:
    """Why a fault changes nothing; "" of one that should be caught."""
    return HARMLESS.get(fault.name) or argument(fault)
