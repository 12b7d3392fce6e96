// What a warp of head.cu does with its 16-byte pieces of rows: copying, an activation's slope,
// stochastic rounding, storing.
#pragma once
#include "elementwise/activations.cuh"
#include "device/copies.cuh"
#include "optimizers/updates.cuh"

namespace head {

// Copies the first `count` elements of 16 bytes from global to shared memory asynchronously, zeros for
// the others. count may be negative or too large.
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

// Stores the first `count` of 8 elements of 16 bits.
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

// 8 new weights: floats with a copy in T that GEMMs read, or in T, stochastically rounded.
template <typename T, bool RAGGED, typename TW>
__device__ __forceinline__ void store_new(TW* to, T* copy, const float (&values)[8],
                                          const unsigned int (&random)[4], int count) {
  unsigned int narrow[4];
  if constexpr (sizeof(TW) == 4) {
#pragma unroll
    for (int i = 0; i < 4; ++i) narrow[i] = pack_pair<T>(values[2 * i], values[2 * i + 1]);
    store_piece<RAGGED>(copy, narrow, count);
    if (!RAGGED || count >= 8) {
      if (count > 0) store_values<8>(to, values);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (i < count) to[i] = values[i];
      }
    }
  } else {
    round_stochastic(narrow, values, random);
    store_piece<RAGGED>(to, narrow, count);
  }
}

}  // namespace head
