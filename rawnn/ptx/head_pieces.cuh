// What a warp of head.cu does with its 16-byte pieces of rows: fetching them, the slope of an
// activation, rounding by chance, storing.
#pragma once
#include "activations.cuh"
#include "device/copies.cuh"
#include "updates.cuh"

namespace head {

// The first `count` elements of 16 bytes, from global to shared memory, asynchronously; zeros for the
// others. count may be negative or too large.
template <typename T>
__device__ __forceinline__ void copy_async(unsigned int to, const T* from, int count) {
  constexpr int bytes = static_cast<int>(sizeof(T));
  ptx::copy_async(to, from, min(max(count * bytes, 0), 16));
}

template <typename SLOPE>
struct IsRelu {
  static constexpr bool value = false;
};
template <>
struct IsRelu<Relu> {
  static constexpr bool value = true;
};

// Two gradients times the slope at two saved values, in T.
template <typename T, typename SLOPE>
__device__ __forceinline__ unsigned int sloped(float low, float high, unsigned int saved) {
  if constexpr (IsRelu<SLOPE>::value) {
    unsigned int positive;
    if constexpr (kSame<T, bfloat16>) {
      positive = ptx::greater_bf16(saved, 0u);
    } else {
      positive = ptx::greater_f16(saved, 0u);
    }
    return pack_pair<T>(low, high) & positive;
  } else {
    const float2 both = unpack_pair<T>(saved);
    return pack_pair<T>(SLOPE::backward(low, both.x), SLOPE::backward(high, both.y));
  }
}

// 16 random bits for each of 8 elements from `element` on.
template <bool RAGGED>
__device__ __forceinline__ Words draw(const Rounding& how, unsigned int element) {
  if constexpr (!RAGGED) {
    return rounding_group(how.seed, how.stream, how.step, element / 8u);
  } else {
    Words found = {{0u, 0u, 0u, 0u}};
#pragma unroll 1
    for (unsigned int i = 8u; i > 0u; --i) {  // the last comes first, and is moved up by the others
#pragma unroll
      for (int j = 3; j > 0; --j) found.word[j] = found.word[j] << 16 | found.word[j - 1] >> 16;
      found.word[0] = found.word[0] << 16 |
                      rounding_bits(how.seed, how.stream, how.step, element + i - 1u);
    }
    return found;
  }
}

// 8 floats rounded by chance to bfloat16, two a word.
__device__ __forceinline__ void round_by_chance(unsigned int (&rounded)[4],
                                                const float (&values)[8],
                                                const unsigned int (&random)[4]) {
  float magnitude = 0.0f;  // one test for all of them: infinite or NaN where any is
#pragma unroll
  for (int i = 0; i < 8; ++i) magnitude += fabsf(values[i]);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned int low = random[i] & 0xffffu;
    const unsigned int high = random[i] >> 16;
    if (is_finite(magnitude)) {
      rounded[i] = __byte_perm(__float_as_uint(values[2 * i]) + low,
                               __float_as_uint(values[2 * i + 1]) + high, 0x7632);
    } else {
      const unsigned int upper = stochastic_round_bf16(values[2 * i + 1], high).bits;
      rounded[i] = stochastic_round_bf16(values[2 * i], low).bits | upper << 16;
    }
  }
}

// The first `count` of 8 elements of 16 bits.
template <bool RAGGED, typename T>
__device__ __forceinline__ void store_piece(T* to, const unsigned int (&words)[4], int count) {
  if (!RAGGED || count >= 8) {
    if (count > 0) store_words(to, words);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i < count) to[i] = T{static_cast<unsigned short>(words[i / 2] >> (16 * (i % 2)))};
    }
  }
}

}  // namespace head
