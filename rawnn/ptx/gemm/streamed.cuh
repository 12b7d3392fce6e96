// Accesses to what is not read again soon: L2 gives up its lines first.
#pragma once
#include "primitives/types.cuh"

// Loads words as load_words does.
template <int WORDS>
__device__ __forceinline__ void load_streamed(unsigned int (&words)[WORDS], const void* from) {
  if constexpr (WORDS == 4) {
    const uint4 quad = __ldcs(static_cast<const uint4*>(from));
    words[0] = quad.x;
    words[1] = quad.y;
    words[2] = quad.z;
    words[3] = quad.w;
  } else {
    load_words(words, from);
  }
}

// Stores four values as store_values does.
template <bool STREAMED, typename T>
__device__ __forceinline__ void store_four(T* to, const float (&values)[4]) {
  if constexpr (STREAMED && sizeof(T) == 4) {
    __stcs(reinterpret_cast<float4*>(to), make_float4(values[0], values[1], values[2], values[3]));
  } else {
    store_values<4>(to, values);
  }
}
