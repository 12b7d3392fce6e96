// Sums of products in float, or in float16 (rounded after every term) where a product computes so.
#pragma once
#include "types.cuh"

template <typename TA, typename TB>
__device__ __forceinline__ void accumulate(float& sum, TA a, TB b) {
  sum += to_float(a) * to_float(b);
}

template <typename TA, typename TB>
__device__ __forceinline__ void accumulate(float16& sum, TA a, TB b) {
  sum = multiply_add(from_float<float16>(to_float(a)), from_float<float16>(to_float(b)), sum);
}
