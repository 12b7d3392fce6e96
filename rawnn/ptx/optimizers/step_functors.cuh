// Optimizer steps as functors, for template parameters of kernels: Sgd, Momentum, Adam, ApproximateAdam.
//
//   OPTIMIZER(rate, t, decay, ...)  one step: its learning rate, its number since training began (from 1),
//                                   and the settings of its op in their order
//   optimizer(w, g, state)          the new weight, from the weight, its gradient without decay, and kStates
//                                   values of state, which are updated
//   decays                          false where decay is known to be 0, which then takes no instruction
//
// sgd.cu, momentum.cu and adam.cu state the formulas.
#pragma once
#include "device/convert.cuh"

struct Sgd {
  static constexpr int kStates = 0;
  float rate, decay;
  bool decays = true;
  __device__ __forceinline__ Sgd(float rate, int, float decay) : rate(rate), decay(decay) {}
  __device__ __forceinline__ float operator()(float w, float g, float*) const {
    return w - rate * (decays ? g + decay * w : g);
  }
};

struct Momentum {
  static constexpr int kStates = 1;
  float rate, decay, momentum;
  bool nesterov, decays = true;
  __device__ __forceinline__ Momentum(float rate, int, float decay, float momentum, bool nesterov)
      : rate(rate), decay(decay), momentum(momentum), nesterov(nesterov) {}
  __device__ __forceinline__ float operator()(float w, float g, float* velocity) const {
    if (decays) g += decay * w;
    *velocity = momentum * *velocity + g;
    return w - rate * (nesterov ? g + momentum * *velocity : *velocity);
  }
};

// Square root and quotient as precise as the compiler options say.
struct AsCompiled {
  static constexpr bool kByInverse = false;
  static __device__ __forceinline__ float root(float x) { return sqrtf(x); }
  static __device__ __forceinline__ float quotient(float a, float b) { return a / b; }
};

template <typename MATH>
struct AdamBy {
  static constexpr int kStates = 2;
  float rate, decay, complement1, complement2, pace, spread, eps;
  bool decoupled, decays = true;

  // 1 - beta^t without the cancellation: beta^t is near 1 for small t.
  static __device__ __forceinline__ float bias_correction(float complement, int t) {
    return -expm1f(static_cast<float>(t) * log1pf(-complement));
  }
  __device__ __forceinline__ AdamBy(float rate, int t, float decay, double beta1, double beta2,
                                  float eps, bool decoupled)
      : rate(rate),
        decay(decay),
        complement1(static_cast<float>(1.0 - beta1)),
        complement2(static_cast<float>(1.0 - beta2)),
        eps(eps),
        decoupled(decoupled) {
    pace = rate / bias_correction(complement1, t);
    // By MATH: what NVRTC makes of 1 / sqrtf(x) depends on what it compiled before.
    spread = MATH::quotient(1.0f, MATH::root(bias_correction(complement2, t)));
    if constexpr (MATH::kByInverse) {
      // A rate of 0 gives the largest float, of which the inverse is 0.
      constexpr float largest = 3.40282347e38f;
      spread = fminf(MATH::quotient(spread, pace), largest);
      this->eps = fminf(MATH::quotient(eps, pace), largest);
    }
  }
  __device__ __forceinline__ float operator()(float w, float g, float* state) const {
    if (decays && decoupled) w -= rate * decay * w;
    if (decays && !decoupled) g += decay * w;
    state[0] += complement1 * (g - state[0]);
    state[1] += complement2 * (g * g - state[1]);
    const float below = MATH::root(state[1]) * spread + this->eps;
    if constexpr (MATH::kByInverse) return w - state[0] * MATH::inverse(below);
    return w - MATH::quotient(pace * state[0], below);
  }
};
using Adam = AdamBy<AsCompiled>;

// Square root, quotient and inverse within two units in the last place, except for subnormal numbers. For
// kernels that are bound by instructions: of Adam's 38 instructions a weight, 14 are a square root and a
// quotient, and 5 of these handle the ends of the range, which units without a gradient reach. The divisor is
// divided by the rate once a step, so that a weight takes an inverse and one fused multiply and add.
struct Approximate {
  static constexpr bool kByInverse = true;
  static __device__ __forceinline__ float inverse(float x) { return ptx::approximate_inverse(x); }
  static __device__ __forceinline__ float root(float x) { return ptx::approximate_sqrt(x); }
  static __device__ __forceinline__ float quotient(float a, float b) {
    return ptx::approximate_quotient(a, b);
  }
};
using ApproximateAdam = AdamBy<Approximate>;
