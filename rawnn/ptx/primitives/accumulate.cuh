// Sums of products in float, or in float16 (rounded after every term) for half-precision GEMMs.
#pragma once
#include "primitives/types.cuh"

// a * b + c, rounded once to float16 (on the host it is rounded to float first).
__device__ __forceinline__ float16 multiply_add(float16 a, float16 b, float16 c) {
#if RAWNN_ARCH
  return float16{ptx::fma_f16(a.bits, b.bits, c.bits)};
#else
  return from_float<float16>(to_float(a) * to_float(b) + to_float(c));
#endif
}

template <typename TA, typename TB>
__device__ __forceinline__ void accumulate(float& sum, TA a, TB b) {
  sum += to_float(a) * to_float(b);
}

template <typename TA, typename TB>
__device__ __forceinline__ void accumulate(float16& sum, TA a, TB b) {
  sum = multiply_add(from_float<float16>(to_float(a)), from_float<float16>(to_float(b)), sum);
}
