// Scales of float operands that wgmma multiplies as float16 times powers of two.
//
// x times a power of two is high + low, both float16 with 11 significant bits, as with tf32
// (mma_fragments.cuh). float16 has a small range, so every row of op(a) and every column of op(b) has a
// scale of its own. It puts the largest value so far between 2^13 and 2^16. A larger value reduces the
// scale, and sums that have the old scale are adjusted by the change. The error of a number is 2^-23 of
// itself or 2^-38 of the largest of its row or column, whichever is more. A number that is not finite
// stays so or becomes NaN.
#pragma once
#include "gemm/mma_copy.cuh"
#include "gemm/mma_warpgroup.cuh"

struct f16x3 {};  // the SUM, stored as floats

constexpr int kStageDepth = 32;  // floats
constexpr int kSteps = 2;        // of 16 in a stage
constexpr float kFirstScale = 8.507059173023462e37f;  // 2^126: too large for all but tiny numbers
constexpr float kTooLarge = 65520.0f;                 // a float16 is infinite from here on

// The scale of numbers up to `largest`, the bits of a float that is not negative.
__device__ __forceinline__ float scale_of(float scale, unsigned int largest) {
  const bool fits = !(__uint_as_float(largest) * scale >= kTooLarge);
  return fits ? scale : __uint_as_float((267u - (largest >> 23)) << 23);
}

// The factor by which sums change with a scale: a power of two, or 0 beyond the range of float.
__device__ __forceinline__ float change_of(float scale, float before) {
  return scale * __uint_as_float((254u << 23) - __float_as_uint(before));
}

// A sum without the scales of its row and column. The product of both scales may be outside the range of
// float, so it is applied in two halves.
__device__ __forceinline__ float unscaled(float sum, float row, float column) {
  const int both = 254 - static_cast<int>(__float_as_uint(row) >> 23) -
                   static_cast<int>(__float_as_uint(column) >> 23);
  const int some = both >> 1;
  return sum * __uint_as_float(static_cast<unsigned int>(127 + some) << 23) *
         __uint_as_float(static_cast<unsigned int>(127 + both - some) << 23);
}

__device__ __forceinline__ unsigned int magnitude(float value) {
  return __float_as_uint(value) & 0x7fffffffu;
}

// Two scaled numbers as a pair of float16. `beyond` becomes nonzero if one is too large.
__device__ __forceinline__ unsigned int high_parts(unsigned int& beyond, float first,
                                                   float second) {
  const unsigned int high = pack_pair<float16>(first, second);
  beyond = ptx::fma_f16_pair(high, 0u, beyond);  // infinity times zero
  return high;
}
// The remainders of two numbers as low parts.
__device__ __forceinline__ unsigned int low_parts(unsigned int high, float first, float second) {
  const float2 rounded = unpack_pair<float16>(high);
  return pack_pair<float16>(first - rounded.x, second - rounded.y);
}
