// Activations and their slopes, as types for kernels' template parameters: None, Relu, Tanh, Gelu.
//
//   apply(z)                   the activation
//   backward(incoming, saved)  incoming * slope: the gradient with respect to z
//
// `saved` is what the forward pass stores: the output a for Relu and Tanh, the input z for Gelu (exact,
// with erf). None saves nothing. A NaN stays a NaN, except where Relu masks the gradient.
#pragma once

struct None {
  static constexpr bool kIdentity = true;
  static __device__ __forceinline__ float apply(float z) { return z; }
  static __device__ __forceinline__ float backward(float incoming, float) { return incoming; }
};

struct Relu {
  static constexpr bool kIdentity = false;
  // A comparison, not fmaxf: fmaxf would hide a NaN.
  static __device__ __forceinline__ float apply(float z) { return z <= 0.0f ? 0.0f : z; }
  static __device__ __forceinline__ float backward(float incoming, float saved) {
    return saved > 0.0f ? incoming : 0.0f;
  }
};

struct Tanh {
  static constexpr bool kIdentity = false;
  static __device__ __forceinline__ float apply(float z) { return tanhf(z); }
  static __device__ __forceinline__ float backward(float incoming, float saved) {
    return incoming * (1.0f - saved * saved);
  }
};

struct Gelu {
  static constexpr bool kIdentity = false;
  static __device__ __forceinline__ float below(float z) {  // the normal distribution's CDF
    return 0.5f + 0.5f * erff(z * 0.70710678f);             // 1 / sqrt(2)
  }
  static __device__ __forceinline__ float apply(float z) { return z * below(z); }
  static __device__ __forceinline__ float backward(float incoming, float saved) {
    const float density = 0.39894228f * expf(-0.5f * saved * saved);  // 1 / sqrt(2 pi)
    return incoming * (below(saved) + saved * density);
  }
};
