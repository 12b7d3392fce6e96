// The loss of a step in shared memory: z [outputs, kPitch] of the examples becomes dz in place, and
// each thread tallies what it has seen. Examples from `present` on get a gradient of 0. `made` says what
// is kept of a gradient: all of it (AsItIs), or that times the loss scale (onchip_scale.cuh).
#pragma once
#include "losses.cuh"
#include "metrics.cuh"
#include "onchip_device.cuh"

struct AsItIs {
  __device__ __forceinline__ float operator()(float gradient) const { return gradient; }
};

// Softmax cross-entropy with labels: dz = (p - onehot(y)) * share. LANES threads take an example.
// `logits` are all OUTPUTS rows; dz goes to the rows of `dz`, which are those from `first` on, `count`
// of them; the two may be the same memory where first is 0. Each example leaves a tally.
template <typename SHAPE, int OUTPUTS, int LANES, typename MADE = AsItIs>
__device__ __forceinline__ void softmax_loss(const float* logits, float* dz, int first, int count,
                                             const int* labels, int present, float share,
                                             Tally* tallies, MADE made = {}) {
  constexpr int side = 32 / LANES;  // examples of a warp
  constexpr int each = ceil_div(OUTPUTS, LANES);
  constexpr bool kept = each <= 8;  // in registers
  const int lane = lane_index();
  const int part = lane / side;
  for (int from = warp_index() * side; from < SHAPE::kColumns;
       from += SHAPE::kThreads / 32 * side) {
    const int example = from + lane % side;
    const bool there = example < present;
    const int label = there ? labels[example] : -1;
    const float* const z = logits + example;
    float values[kept ? each : 1] = {};
    const auto value_of = [&](int i) {
      const int m = i * LANES + part;
      if constexpr (kept) return values[i];
      return m < OUTPUTS ? z[m * SHAPE::kPitch] : -infinity();
    };
    if constexpr (kept) {
#pragma unroll
      for (int i = 0; i < each; ++i) {
        const int m = i * LANES + part;
        values[i] = m < OUTPUTS ? z[m * SHAPE::kPitch] : -infinity();
      }
    }
    float best = -infinity();
    int predicted = OUTPUTS;
    float odd = 0.0f;  // a NaN where one is among the values
#pragma unroll 8
    for (int i = 0; i < each; ++i) {
      const float value = value_of(i);
      const int m = i * LANES + part;
      if (value != value) odd = value;
      if (value > best || (value == best && m < predicted)) best = value, predicted = m;
    }
#pragma unroll
    for (int step = side; step < 32; step *= 2) {
      const float value = __shfl_xor_sync(kFullWarp, best, step);
      const int m = __shfl_xor_sync(kFullWarp, predicted, step);
      if (value > best || (value == best && m < predicted)) best = value, predicted = m;
    }
    float total = odd;
    float labelled = 0.0f;
#pragma unroll 8
    for (int i = 0; i < each; ++i) {
      const float power = expf(value_of(i) - best);
      if (i * LANES + part == label) labelled = power;
      if constexpr (kept) values[i] = power;
      total += power;
    }
#pragma unroll
    for (int step = side; step < 32; step *= 2) {
      total += __shfl_xor_sync(kFullWarp, total, step);
      labelled += __shfl_xor_sync(kFullWarp, labelled, step);
    }
    if (total != total) predicted = 0;  // all probabilities are NaN: the first maximum is at 0
    const float inverse = 1.0f / total;
    __syncwarp();
#pragma unroll 8
    for (int i = 0; i < each; ++i) {
      const int m = i * LANES + part;
      const int row = m - first;
      if (m < OUTPUTS && row >= 0 && row < count) {
        const float power = kept ? value_of(i) : expf(value_of(i) - best);
        const float slope = (power * inverse - (m == label ? 1.0f : 0.0f)) * share;
        dz[row * SHAPE::kPitch + example] = there ? made(slope) : 0.0f;
      }
    }
    if (part == 0) {
      if (label < 0 || label >= OUTPUTS) labelled = not_a_number();
      const Tally seen = {negative_log(labelled * inverse), predicted == label ? 1 : 0};
      tallies[example] = there ? seen : Tally{0.0f, 0};
    }
  }
}

// A mean over all elements: the first `count` of ROWS outputs of z, with targets [example][PITCH].
// Each thread leaves a tally.
template <typename SHAPE, typename LOSS, int ROWS, int PITCH, typename MADE = AsItIs>
__device__ __forceinline__ void pointwise_loss(float* z, const float* targets, int count,
                                               int present, float share, Tally* tallies,
                                               MADE made = {}) {
  Tally tally = {0.0f, 0};
#pragma unroll 2
  for (int i = thread_index(); i < count * SHAPE::kColumns; i += SHAPE::kThreads) {
    const int row = i / SHAPE::kColumns;
    const int example = i % SHAPE::kColumns;
    float* const at = z + row * SHAPE::kPitch + example;
    float slope = 0.0f;
    if (example < present) {
      const float target = targets[example * PITCH + row];
      tally.loss += LOSS::loss(*at, target);
      tally.right += LOSS::right(*at, target) ? 1 : 0;
      slope = made(LOSS::gradient(*at, target) * share);
    }
    *at = slope;
  }
  tallies[thread_index()] = tally;
}

// One warp adds up COUNT tallies, in the same order each time; the sum is valid in its first lane.
template <int COUNT>
__device__ __forceinline__ Tally add_tallies(const Tally* tallies) {
  Tally total = {0.0f, 0};
#pragma unroll 4
  for (int i = lane_index(); i < COUNT; i += 32) {
    const Tally one = tallies[i];
    total.loss += one.loss;
    total.right += one.right;
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    total.loss += __shfl_down_sync(kFullWarp, total.loss, step);
    total.right += __shfl_down_sync(kFullWarp, total.right, step);
  }
  return total;
}

// The numbers that a step's loss is the mean of: of all steps, or of each.
__device__ __forceinline__ float terms_of(float terms, int) { return terms; }

template <typename F>
__device__ __forceinline__ float terms_of(const F& terms, int step) {
  return terms(step);
}

// At the end of a launch the last block to come adds up what `parts` blocks left of each step, in
// their order: loss[s], correct[s]. It also puts all counters back to 0. `last` is a word of shared
// memory.
template <typename SHAPE, typename TERMS>
__device__ __forceinline__ void report_steps(const float2* left, int parts, int steps, TERMS terms,
                                             unsigned int* ticket, unsigned int* counters,
                                             int count_counters, float* loss, int* correct,
                                             int* last) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    *last = atomicAdd(ticket, 1u) == gridDim.x - 1u ? 1 : 0;
  }
  __syncthreads();
  if (*last == 0) return;
  __threadfence();
  for (int s = thread_index(); s < steps; s += SHAPE::kThreads) {
    Tally total = {0.0f, 0};
    for (int i = 0; i < parts; ++i) {
      const float2 part = __ldcg(left + static_cast<long long>(s) * parts + i);
      total.loss += part.x;
      total.right += __float_as_int(part.y);
    }
    loss[s] = total.loss / terms_of(terms, s);
    if (correct != nullptr) correct[s] = total.right;
  }
  if (threadIdx.x == 0) *ticket = 0u;
  for (int i = thread_index(); i < count_counters; i += SHAPE::kThreads) {
    counters[i] = 0u;
  }
}
