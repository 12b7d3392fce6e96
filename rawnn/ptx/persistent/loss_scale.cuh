// The loss scale of float16: the gradient of the loss is multiplied by it, updates divide by it, and a step
// with a gradient that overflows float16 changes nothing but the scale.
//
// A weight's gradient is a float32 sum of float16 products, so it is finite if all factors are. Hence a step
// is known to count once the gradient of the first layer's outputs is known. Every block records what it has
// seen (LossScale::found). The blocks of a tensor-parallel group publish flags to each other
// (exchange.cuh), data-parallel groups publish a quad besides their gradients. All blocks decide the
// same and change their own copy of the scale the same way.
#pragma once
#include "persistent/gradient_all_reduce.cuh"

// In shared memory. `found` is not 0 if this block saw an overflow, in even and in odd steps.
struct LossScale {
  float scale;
  float good;  // steps in a row without an overflow
  int found[2];

  // After a step, by one thread: as adjust_scale (loss_scale.cu). `next` is 0 or 1, the parity of the next
  // step.
  __device__ __forceinline__ void adjust(bool skipped, int growth, int next) {
    good += 1.0f;
    if (skipped) {
      scale = scale > 2.0f ? 0.5f * scale : 1.0f;
      good = 0.0f;
    } else if (good >= static_cast<float>(growth)) {
      scale = scale < 8388608.0f ? 2.0f * scale : 16777216.0f;
      good = 0.0f;
    }
    found[next] = 0;
  }
};

// Scales a gradient of the loss, and records an overflow.
struct ScaledGradient {
  float scale;
  int* found;

  __device__ __forceinline__ float operator()(float gradient) const {
    const float scaled = gradient * scale;
    report_overflow(found, poison<float16>(scaled));
    return scaled;
  }
};

// An optimizer step on gradients that are `scale` times too large.
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

template <typename RULE>
struct Flags<Unscaled<RULE>> {
  template <typename... FLAGS>
  static __device__ __forceinline__ void set(Unscaled<RULE>& scaled, FLAGS... flags) {
    Flags<RULE>::set(scaled.rule, flags...);
  }
};

// Whether any data-parallel group saw an overflow. The blocks of this tp_rank have published 1 or 0 in
// `overflows`, kTpSize quads apart. All threads of the block call it, and all get the answer.
template <typename SHAPE>
__device__ __forceinline__ bool any_group(const float4* overflows, unsigned int flag_bit) {
  bool any = false;
  for (int group = thread_index(); group < SHAPE::kDpSize; group += SHAPE::kThreads) {
    float4 v[1];
    receive_flagged(v, [=](int) { return overflows + group * SHAPE::kTpSize; }, flag_bit, kOverflows);
    any = any || v[0].x != 0.0f;
  }
  return __syncthreads_or(any ? 1 : 0) != 0;
}
