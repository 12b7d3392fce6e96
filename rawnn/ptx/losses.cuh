// Losses as types for kernels' template parameters. Those that are a mean over all elements of z and
// t: SquaredError, LogitCrossEntropy.
//
//   loss(z, t)      of one element        gradient(z, t)  its derivative with respect to z
//   right(z, t)     whether it counts as correct
//
// One that is a mean over rows, of which it takes the whole (kRows): SoftmaxCrossEntropy (softmax.cuh).
#pragma once

struct SoftmaxCrossEntropy {
  static constexpr bool kRows = true;
};

struct SquaredError {
  static constexpr bool kRows = false;
  static __device__ __forceinline__ float loss(float z, float t) { return (z - t) * (z - t); }
  static __device__ __forceinline__ float gradient(float z, float t) { return 2.0f * (z - t); }
  static __device__ __forceinline__ bool right(float, float) { return false; }
};

struct LogitCrossEntropy {
  static constexpr bool kRows = false;
  static __device__ __forceinline__ float loss(float z, float t) {
    const float above = z <= 0.0f ? 0.0f : z;  // not fmaxf, which would hide a NaN
    return above - z * t + log1pf(expf(-fabsf(z)));
  }
  static __device__ __forceinline__ float gradient(float z, float t) {
    const float below = expf(-fabsf(z));  // no overflow, and no cancellation on either side
    // The divisor lies in [1, 2]: the quick division is off by two units in the last place, and has
    // no slow path (whose call made compilers spill).
    return __fdividef(z < 0.0f ? below : 1.0f, 1.0f + below) - t;
  }
  static __device__ __forceinline__ bool right(float z, float t) {
    return (z > 0.0f) == (t > 0.5f);
  }
};
