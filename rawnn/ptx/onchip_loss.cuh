// The loss of a step in shared memory: z [outputs, kPitch] of the examples becomes dz in place, and
// each thread tallies what it has seen. Examples from `present` on get a gradient of 0.
#pragma once
#include "losses.cuh"
#include "metrics.cuh"
#include "onchip_device.cuh"

// Softmax cross-entropy with labels: dz = (p - onehot(y)) * share. LANES threads take an example.
// `logits` are all OUTPUTS rows; dz goes to the rows of `dz`, which are those from `first` on, `count`
// of them; the two may be the same memory where first is 0.
template <typename SHAPE, int OUTPUTS, int LANES>
__device__ __forceinline__ void softmax_loss(float* logits, float* dz, int first, int count,
                                             const int* labels, int present, float share,
                                             Tally& tally) {
  constexpr int side = 32 / LANES;  // examples of a warp
  const int lane = lane_index();
  const int warp = warp_index();
  const int part = lane / side;
  for (int from = warp * side; from < SHAPE::kColumns; from += SHAPE::kThreads / 32 * side) {
    const int example = from + lane % side;
    float* const z = logits + example;
    float best = -infinity();
    int predicted = OUTPUTS;
    bool broken = false;
#pragma unroll 8
    for (int i = 0; i < ceil_div(OUTPUTS, LANES); ++i) {
      const int m = i * LANES + part;
      const float value = m < OUTPUTS ? z[m * SHAPE::kPitch] : -infinity();
      broken = broken || value != value;
      if (value > best || (value == best && m < predicted)) best = value, predicted = m;
    }
#pragma unroll
    for (int step = side; step < 32; step *= 2) {
      const float value = __shfl_xor_sync(kFullWarp, best, step);
      const int m = __shfl_xor_sync(kFullWarp, predicted, step);
      if (value > best || (value == best && m < predicted)) best = value, predicted = m;
    }
    float total = broken ? not_a_number() : 0.0f;
#pragma unroll 8
    for (int i = 0; i < ceil_div(OUTPUTS, LANES); ++i) {
      const int m = i * LANES + part;
      if (m < OUTPUTS) total += expf(z[m * SHAPE::kPitch] - best);
    }
#pragma unroll
    for (int step = side; step < 32; step *= 2) {
      total += __shfl_xor_sync(kFullWarp, total, step);
    }
    if (total != total) predicted = 0;  // all probabilities are NaN: the first maximum is at 0
    const int label = example < present ? labels[example] : -1;
    const float inverse = 1.0f / total;
    const float weight = example < present ? share : 0.0f;
    float labelled = not_a_number();
    if (label >= 0 && label < OUTPUTS) labelled = expf(z[label * SHAPE::kPitch] - best) * inverse;
    __syncwarp();
#pragma unroll 8
    for (int i = 0; i < ceil_div(OUTPUTS, LANES); ++i) {
      const int m = i * LANES + part;
      const int row = m - first;
      if (m < OUTPUTS && row >= 0 && row < count) {
        const float p = expf(z[m * SHAPE::kPitch] - best) * inverse;
        const float slope = (p - (m == label ? 1.0f : 0.0f)) * weight;
        dz[row * SHAPE::kPitch + example] = example < present ? slope : 0.0f;
      }
    }
    if (part == 0 && example < present) {
      tally.loss += negative_log(labelled);
      tally.right += predicted == label ? 1 : 0;
    }
  }
}

// A mean over all elements: the first `count` of ROWS outputs of z, with targets [example][PITCH].
template <typename SHAPE, typename LOSS, int ROWS, int PITCH>
__device__ __forceinline__ void pointwise_loss(float* z, const float* targets, int count,
                                               int present, float share, Tally& tally) {
#pragma unroll 1
  for (int i = thread_index(); i < ROWS * SHAPE::kColumns; i += SHAPE::kThreads) {
    const int row = i / SHAPE::kColumns;
    const int example = i % SHAPE::kColumns;
    if (row >= count) break;
    float* const at = z + row * SHAPE::kPitch + example;
    float slope = 0.0f;
    if (example < present) {
      const float target = targets[example * PITCH + row];
      tally.loss += LOSS::loss(*at, target);
      tally.right += LOSS::right(*at, target) ? 1 : 0;
      slope = LOSS::gradient(*at, target) * share;
    }
    *at = slope;
  }
}

// Leaves the block's tally of step `step` where the last block finds it. `sums` is shared memory for
// a Tally of each warp; a barrier must lie ahead of the next call. All threads must call it.
template <typename SHAPE>
__device__ __forceinline__ void leave_in_warps(Tally tally, Tally* sums) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    tally.loss += __shfl_xor_sync(kFullWarp, tally.loss, step);
    tally.right += __shfl_xor_sync(kFullWarp, tally.right, step);
  }
  const int warp = warp_index();
  if (lane_index() == 0) sums[warp] = tally;
}

template <typename SHAPE>
__device__ __forceinline__ Tally add_warps(const Tally* sums) {
  Tally total = {0.0f, 0};
#pragma unroll
  for (int warp = 0; warp < SHAPE::kThreads / 32; ++warp) {
    total.loss += sums[warp].loss;
    total.right += sums[warp].right;
  }
  return total;
}

// At the end of a launch the last block to come adds up what `parts` blocks left of each step, in
// their order: loss[first + s], correct[first + s]. It also puts all counters back to 0.
template <typename SHAPE>
__device__ __forceinline__ void report_steps(const float2* left, int parts, int steps, float terms,
                                             unsigned int* ticket, unsigned int* counters,
                                             int count_counters, float* loss, int* correct) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(ticket, 1u) == gridDim.x - 1u;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  for (int s = thread_index(); s < steps; s += SHAPE::kThreads) {
    Tally total = {0.0f, 0};
    for (int i = 0; i < parts; ++i) {
      const float2 part = __ldcg(left + static_cast<long long>(s) * parts + i);
      total.loss += part.x;
      total.right += __float_as_int(part.y);
    }
    loss[s] = total.loss / terms;
    if (correct != nullptr) correct[s] = total.right;
  }
  if (threadIdx.x == 0) *ticket = 0u;
  for (int i = thread_index(); i < count_counters; i += SHAPE::kThreads) {
    counters[i] = 0u;
  }
}
