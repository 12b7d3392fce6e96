// The loss scale of float16 on the chip: the gradient of the loss is multiplied by it, updates take it
// out again, and a step with a gradient that a float16 cannot hold changes nothing but the scale.
//
// A weight's gradient is a float32 sum of products of float16: it is finite where both factors are.
// So a step is known to count once the first layer's gradient is: every block notes what it has seen
// (LossScale::found), the blocks of a cluster tell each other by their mailboxes, clusters by a
// quad beside their gradients. All of them decide the same and change their own scale the same way.
#pragma once
#include "persistent/gradient_all_reduce.cuh"

// In shared memory. `found` is not 0 where this block saw an overflow, in even and in odd steps.
struct LossScale {
  float scale;
  float good;  // steps in a row without an overflow
  int found[2];

  // Behind a step, by one thread: as adjust_scale (loss_scale.cu). `next` is 0 or 1, the next step's.
  __device__ __forceinline__ void adjust(bool left_out, int growth, int next) {
    good += 1.0f;
    if (left_out) {
      scale = scale > 2.0f ? 0.5f * scale : 1.0f;
      good = 0.0f;
    } else if (good >= static_cast<float>(growth)) {
      scale = scale < 8388608.0f ? 2.0f * scale : 16777216.0f;
      good = 0.0f;
    }
    found[next] = 0;
  }
};

// What becomes of a gradient of the loss: times the scale, and looked at.
struct ScaledGradient {
  float scale;
  int* found;

  __device__ __forceinline__ float operator()(float gradient) const {
    const float scaled = gradient * scale;
    report_overflow(found, poison<float16>(scaled));
    return scaled;
  }
};

// An optimizer's rule on gradients that are `scale` times too large.
template <typename RULE>
struct Unscaled {
  static constexpr int kStates = RULE::kStates;
  RULE rule;
  float factor;

  template <typename... SETTINGS>
  __device__ __forceinline__ Unscaled(float scale, float rate, int t, SETTINGS... settings)
      : rule(rate, t, settings...), factor(1.0f / scale) {}
  __device__ __forceinline__ float operator()(float w, float g, float* state) const {
    return rule(w, g * factor, state);
  }
};

// Whether any cluster did: those of this rank `said` so, 1 or 0, kRanks quads apart. For all threads of
// the block together.
template <typename SHAPE>
__device__ __forceinline__ bool any_group(const float4* said, unsigned int mark) {
  bool any = false;
  for (int group = thread_index(); group < SHAPE::kGroups; group += SHAPE::kThreads) {
    float4 v[1];
    hear(v, [=](int) { return said + group * SHAPE::kRanks; }, mark, kOverflows);
    any = any || v[0].x != 0.0f;
  }
  return __syncthreads_or(any ? 1 : 0) != 0;
}
