// Losses as types for kernels' template parameters. SquaredError and LogitCrossEntropy are means over
// all elements of z and t:
//
//   loss(z, t)      of one element        gradient(z, t)  its derivative with respect to z
//   right(z, t)     whether it counts as correct
//
// SoftmaxCrossEntropy is a mean over rows and needs whole rows (kRows; softmax.cuh).
#pragma once
#include "device/convert.cuh"

// exp(x) for x <= 0, as a softmax and a logistic function need it. Its relative error is 2.4e-7 plus
// |x| * 7.3e-8, which rounding x to float32 causes anyway. It has two instructions where expf has eight.
__device__ __forceinline__ float exp_below_zero(float x) {
  return ptx::approximate_exp2(x * 1.44269504f);
}

struct SoftmaxCrossEntropy {
  static constexpr bool kRows = true;
};

struct SquaredError {
  static constexpr bool kRows = false;
  static __device__ __forceinline__ float loss(float z, float t) { return (z - t) * (z - t); }
  static __device__ __forceinline__ float gradient(float z, float t) { return 2.0f * (z - t); }
  static __device__ __forceinline__ bool right(float, float) { return false; }
};

// log(1 + x) for x from 0 to 1, with a relative error of at most 2e-7; a NaN gives a NaN. log1pf, which
// allows any x, has twice the instructions and a branch.
__device__ __forceinline__ float log_above_one(float x) {
  constexpr float of[] = {0.99999994f, -0.49999493f, 0.33319098f, -0.24842985f, 0.19106014f,
                          -0.13663256f, 0.078226045f, -0.029505279f, 0.005232701f};
  float sum = of[8];
#pragma unroll
  for (int i = 7; i >= 0; --i) sum = sum * x + of[i];
  return sum * x;
}

struct LogitCrossEntropy {
  static constexpr bool kRows = false;
  static __device__ __forceinline__ float loss(float z, float t) {
    const float above = z <= 0.0f ? 0.0f : z;  // not fmaxf, which would hide a NaN
    return above - z * t + log_above_one(exp_below_zero(-fabsf(z)));
  }
  static __device__ __forceinline__ float gradient(float z, float t) {
    const float below = exp_below_zero(-fabsf(z));  // no overflow, and no cancellation for either sign
    // The divisor is in [1, 2]. The approximate inverse is off by a unit in the last place there, and has
    // no slow path, whose call makes the compiler spill.
    return (z < 0.0f ? below : 1.0f) * ptx::approximate_inverse(1.0f + below) - t;
  }
  static __device__ __forceinline__ bool right(float z, float t) {
    return (z > 0.0f) == (t > 0.5f);
  }
};
