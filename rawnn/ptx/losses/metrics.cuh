// Sums of what a step reports: over a warp, over the block, and over the grid if it has more than one
// block. The order is fixed, so results repeat bit for bit.
//
// Several blocks have two ways. They write their sums to a row of the step's own, and a later kernel
// adds up the rows of many steps (loss_sums.cu), so only readers of the loss wait for it. Or they share
// a workspace of int32 [1 + 2 * blocks], whose first element is 0 before and after every launch: each
// block writes its sums there, and the last one to finish (by a ticket) adds them up. Launches that
// share a workspace must not overlap.
#pragma once
#include "primitives/common.cuh"

// The sums of one thread.
struct Tally {
  float loss;
  int right;
};

// The partial sums of a step's blocks: row s of [steps, count] belongs to step s. Both are null if the
// step is reported at once, and `correct` is null if nothing is counted.
struct Parts {
  float* loss;
  int* correct;
  int count;
};

// Sums over the block, valid in thread 0. Null outputs are not summed.
__device__ __forceinline__ void block_tally(Tally& tally, const float* loss, const int* correct) {
  if (loss != nullptr && correct != nullptr) {
    block_sums(tally.loss, tally.right);
  } else if (loss != nullptr) {
    tally.loss = block_sum(tally.loss);
  } else {
    tally.right = block_sum(tally.right);
  }
}

// Writes the sums of block number `block` to the row of the step. All threads must call it.
__device__ __forceinline__ void leave_parts(Tally tally, const Parts& parts, int step, int block) {
  block_tally(tally, parts.loss, parts.correct);
  if (threadIdx.x == 0) {
    const long long place = static_cast<long long>(step) * parts.count + block;
    if (parts.loss != nullptr) parts.loss[place] = tally.loss;
    if (parts.correct != nullptr) parts.correct[place] = tally.right;
  }
}

// Writes loss[step] = the sum over `terms` (a mean) and correct[step], or the block's partial sums if
// there are `parts`. All threads must call it.
__device__ __forceinline__ void report_tally(Tally tally, int* __restrict__ workspace,
                                             int step, float terms, float* loss, int* correct,
                                             const Parts& parts = {}) {
  if (parts.count > 0) {
    leave_parts(tally, parts, step, static_cast<int>(blockIdx.x));
    return;
  }
  block_tally(tally, loss, correct);
  const int blocks = static_cast<int>(gridDim.x);
  const int thread = static_cast<int>(threadIdx.x);
  if (blocks > 1) {
    __shared__ bool last;
    volatile int* const partial = workspace + 1;
    if (thread == 0) {
      partial[2 * blockIdx.x] = __float_as_int(tally.loss);
      partial[2 * blockIdx.x + 1] = tally.right;
      __threadfence();
      last = atomicAdd(workspace, 1) == blocks - 1;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    tally = {0.0f, 0};
    for (int block = thread; block < blocks; block += static_cast<int>(blockDim.x)) {
      tally.loss += __int_as_float(partial[2 * block]);
      tally.right += partial[2 * block + 1];
    }
    block_tally(tally, loss, correct);
    if (thread == 0) *workspace = 0;
  }
  if (thread == 0) {
    if (loss != nullptr) loss[step] = tally.loss / terms;
    if (correct != nullptr) correct[step] = tally.right;
  }
}

// A warp reports a step of `rows` rows: loss[step] = the mean of loss_of(row), correct[step] = the sum
// of `right`. Each lane has the loads of UNROLL rows in flight at a time.
template <int UNROLL = 4, typename LOSS>
__device__ __forceinline__ void warp_report(LOSS loss_of, const int* right, int rows, int step,
                                            float* loss, int* correct) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  float sum = 0.0f;
  int count = 0;
#pragma unroll UNROLL
  for (int row = lane; row < rows; row += 32) {
    sum += loss_of(row);
    count += right[row];
  }
  sum = warp_sum(sum);
  count = warp_sum(count);
  if (lane == 0) {
    loss[step] = sum / static_cast<float>(rows);
    correct[step] = count;
  }
}
