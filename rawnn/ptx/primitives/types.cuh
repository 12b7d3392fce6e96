// The storage types of tensors, and their conversions from and to float: exact, rounding to nearest
// even, for every architecture from sm_75 and for the host (tests/ptx/emulator), with no header of
// CUDA's. Arithmetic is done in float.
//
//   float16        5 exponent bits, 10 mantissa bits; beyond 65504 infinity
//   bfloat16       8 and 7: the upper half of a float
//   float8_e4m3    4 and 3, no infinity; saturates at 448, infinities as well
//   float8_e5m2    5 and 2; saturates at 57344, infinities as well
//
// Subnormals are kept, and a NaN stays a NaN (its sign and payload do not). A GPU's conversion
// instruction is used where it exists (float16 everywhere, bfloat16 from sm_80, 8 bits from sm_89); the
// integer code gives the same bits.
#pragma once
#include "device/convert.cuh"

struct float16 {
  unsigned short bits;
};
struct bfloat16 {
  unsigned short bits;
};
struct float8_e4m3 {
  unsigned char bits;
};
struct float8_e5m2 {
  unsigned char bits;
};

template <typename A, typename B>
constexpr bool kSame = false;
template <typename A>
constexpr bool kSame<A, A> = true;

#if defined(__CUDA_ARCH__)
#define RAWNN_ARCH __CUDA_ARCH__
#else
#define RAWNN_ARCH 0
#endif

__device__ __forceinline__ bool is_finite(float value) {
  return (__float_as_uint(value) & 0x7f800000u) != 0x7f800000u;
}

// The bits of `value` in a format of EXPONENT and MANTISSA bits, rounded to nearest even. `largest` has
// the bits of the largest magnitude (infinity, or the number that saturates).
template <int EXPONENT, int MANTISSA>
__device__ __forceinline__ unsigned int round_bits(float value, unsigned int largest,
                                                   unsigned int nan) {
  constexpr int rebias = 127 - ((1 << (EXPONENT - 1)) - 1);
  constexpr int dropped = 23 - MANTISSA;
  const unsigned int bits = __float_as_uint(value);
  const unsigned int magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return nan;
  unsigned int rounded;
  if (rebias > 0 && magnitude < static_cast<unsigned int>(rebias + 1) << 23) {
    // A subnormal: the addition rounds, as one unit of `magic` is the smallest subnormal.
    constexpr unsigned int magic = static_cast<unsigned int>(rebias + 1 + dropped) << 23;
    rounded = __float_as_uint(__uint_as_float(magnitude) + __uint_as_float(magic)) - magic;
  } else {
    const unsigned int odd = magnitude >> dropped & 1u;
    rounded = (magnitude + odd + ((1u << (dropped - 1)) - 1u)) >> dropped;
    rounded -= static_cast<unsigned int>(rebias) << MANTISSA;
  }
  return (bits >> 31) << (EXPONENT + MANTISSA) | (rounded > largest ? largest : rounded);
}

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(unsigned char value) { return value; }

__device__ __forceinline__ float to_float(float16 value) {
#if RAWNN_ARCH
  return ptx::from_f16(value.bits);
#else
  const unsigned int sign = (value.bits & 0x8000u) << 16;
  const unsigned int magnitude = static_cast<unsigned int>(value.bits & 0x7fffu) << 13;
  if (magnitude >= 0x7c00u << 13) return __uint_as_float(sign | 0x7f800000u | magnitude);
  // The exponent is 112 too small, for subnormals too.
  return __uint_as_float(sign | __float_as_uint(__uint_as_float(magnitude) * 0x1p112f));
#endif
}

__device__ __forceinline__ float to_float(bfloat16 value) {
  return __uint_as_float(static_cast<unsigned int>(value.bits) << 16);
}

// The bits are the upper byte of a float16.
__device__ __forceinline__ float to_float(float8_e5m2 value) {
  return to_float(float16{static_cast<unsigned short>(value.bits << 8)});
}

// With the exponent shifted into place, a float16 that is 256 times too small.
__device__ __forceinline__ float to_float(float8_e4m3 value) {
  if ((value.bits & 0x7fu) == 0x7fu) return __uint_as_float(0x7fffffffu);
  const unsigned int moved = (value.bits & 0x80u) << 8 | (value.bits & 0x7fu) << 7;
  return 256.0f * to_float(float16{static_cast<unsigned short>(moved)});
}

// Two values of a 16-bit type in a word, or of an 8-bit type in its lower half; `low` lies first.
template <typename T>
struct Pairs;

template <>
struct Pairs<float16> {
  static __device__ __forceinline__ unsigned int pack(float low, float high) {
#if RAWNN_ARCH >= 800
    return ptx::pack_f16(low, high);
#elif RAWNN_ARCH
    return ptx::to_f16(low) | static_cast<unsigned int>(ptx::to_f16(high)) << 16;
#else
    return round_bits<5, 10>(low, 0x7c00u, 0x7fffu) |
           round_bits<5, 10>(high, 0x7c00u, 0x7fffu) << 16;
#endif
  }
  static __device__ __forceinline__ float2 unpack(unsigned int word) {
    return make_float2(to_float(float16{static_cast<unsigned short>(word)}),
                       to_float(float16{static_cast<unsigned short>(word >> 16)}));
  }
};

template <>
struct Pairs<bfloat16> {
  static __device__ __forceinline__ unsigned int pack(float low, float high) {
#if RAWNN_ARCH >= 800
    return ptx::pack_bf16(low, high);
#else
    return round_bits<8, 7>(low, 0x7f80u, 0x7fffu) |
           round_bits<8, 7>(high, 0x7f80u, 0x7fffu) << 16;
#endif
  }
  static __device__ __forceinline__ float2 unpack(unsigned int word) {
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
  }
};

template <>
struct Pairs<float8_e4m3> {
  static __device__ __forceinline__ unsigned int pack(float low, float high) {
#if RAWNN_ARCH >= 890
    return ptx::pack_e4m3(low, high);
#else
    return round_bits<4, 3>(low, 0x7eu, 0x7fu) | round_bits<4, 3>(high, 0x7eu, 0x7fu) << 8;
#endif
  }
  static __device__ __forceinline__ float2 unpack(unsigned int word) {
#if RAWNN_ARCH >= 890
    return Pairs<float16>::unpack(ptx::widen_e4m3(static_cast<unsigned short>(word)));
#else
    return make_float2(to_float(float8_e4m3{static_cast<unsigned char>(word)}),
                       to_float(float8_e4m3{static_cast<unsigned char>(word >> 8)}));
#endif
  }
};

template <>
struct Pairs<float8_e5m2> {
  static __device__ __forceinline__ unsigned int pack(float low, float high) {
#if RAWNN_ARCH >= 890
    return ptx::pack_e5m2(low, high);
#else
    return round_bits<5, 2>(low, 0x7bu, 0x7fu) | round_bits<5, 2>(high, 0x7bu, 0x7fu) << 8;
#endif
  }
  static __device__ __forceinline__ float2 unpack(unsigned int word) {
#if RAWNN_ARCH >= 890
    return Pairs<float16>::unpack(ptx::widen_e5m2(static_cast<unsigned short>(word)));
#else
    return make_float2(to_float(float8_e5m2{static_cast<unsigned char>(word)}),
                       to_float(float8_e5m2{static_cast<unsigned char>(word >> 8)}));
#endif
  }
};

template <typename T>
__device__ __forceinline__ unsigned int pack_pair(float low, float high) {
  return Pairs<T>::pack(low, high);
}

template <typename T>
__device__ __forceinline__ float2 unpack_pair(unsigned int word) {
  return Pairs<T>::unpack(word);
}

template <typename T>
__device__ __forceinline__ T from_float(float value) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return value;
  } else {
    return T{static_cast<decltype(T::bits)>(pack_pair<T>(value, 0.0f))};
  }
}

#if RAWNN_ARCH
template <>
__device__ __forceinline__ float16 from_float<float16>(float value) {
  return float16{ptx::to_f16(value)};
}
#endif

#if RAWNN_ARCH >= 800
template <>
__device__ __forceinline__ bfloat16 from_float<bfloat16>(float value) {
  return bfloat16{ptx::to_bf16(value)};
}
#endif

// The value after it is stored in a T and read back.
template <typename T>
__device__ __forceinline__ float rounded_to(float value) {
  return to_float(from_float<T>(value));
}

// Loads or stores N neighboring elements in accesses of up to 16 bytes; `from` and `to` must be aligned
// to the smaller of 16 bytes and N elements.
template <int WORDS>
__device__ __forceinline__ void load_words(unsigned int (&words)[WORDS], const void* from) {
  if constexpr (WORDS % 4 == 0) {
#pragma unroll
    for (int i = 0; i < WORDS / 4; ++i) {
      const uint4 quad = static_cast<const uint4*>(from)[i];
      words[4 * i] = quad.x;
      words[4 * i + 1] = quad.y;
      words[4 * i + 2] = quad.z;
      words[4 * i + 3] = quad.w;
    }
  } else if constexpr (WORDS == 2) {
    const uint2 pair = *static_cast<const uint2*>(from);
    words[0] = pair.x;
    words[1] = pair.y;
  } else {
    static_assert(WORDS == 1, "1, 2 or a multiple of 4 words");
    words[0] = *static_cast<const unsigned int*>(from);
  }
}

template <int WORDS>
__device__ __forceinline__ void store_words(void* to, const unsigned int (&words)[WORDS]) {
  if constexpr (WORDS % 4 == 0) {
#pragma unroll
    for (int i = 0; i < WORDS / 4; ++i) {
      static_cast<uint4*>(to)[i] =
          make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
    }
  } else if constexpr (WORDS == 2) {
    *static_cast<uint2*>(to) = make_uint2(words[0], words[1]);
  } else {
    static_assert(WORDS == 1, "1, 2 or a multiple of 4 words");
    *static_cast<unsigned int*>(to) = words[0];
  }
}

// The elements in words, as they are in memory.
template <typename T, int N, int WORDS>
__device__ __forceinline__ void words_to_values(float (&values)[N],
                                                const unsigned int (&words)[WORDS]) {
  static_assert(N * sizeof(T) == WORDS * 4, "as many elements as there are");
#pragma unroll
  for (int i = 0; i < WORDS; ++i) {
    if constexpr (sizeof(T) == 4) {
      values[i] = __uint_as_float(words[i]);
    } else if constexpr (sizeof(T) == 2) {
      const float2 pair = unpack_pair<T>(words[i]);
      values[2 * i] = pair.x;
      values[2 * i + 1] = pair.y;
    } else {
      const float2 low = unpack_pair<T>(words[i] & 0xffffu);
      const float2 high = unpack_pair<T>(words[i] >> 16);
      values[4 * i] = low.x;
      values[4 * i + 1] = low.y;
      values[4 * i + 2] = high.x;
      values[4 * i + 3] = high.y;
    }
  }
}

template <int N, typename T>
__device__ __forceinline__ void load_values(float (&values)[N], const T* from) {
  unsigned int words[N * static_cast<int>(sizeof(T)) / 4];
  load_words(words, from);
  words_to_values<T>(values, words);
}

template <int N, typename T>
__device__ __forceinline__ void store_values(T* to, const float (&values)[N]) {
  constexpr int words = N * static_cast<int>(sizeof(T)) / 4;
  unsigned int raw[words];
#pragma unroll
  for (int i = 0; i < words; ++i) {
    if constexpr (sizeof(T) == 4) {
      raw[i] = __float_as_uint(values[i]);
    } else if constexpr (sizeof(T) == 2) {
      raw[i] = pack_pair<T>(values[2 * i], values[2 * i + 1]);
    } else {
      raw[i] = pack_pair<T>(values[4 * i], values[4 * i + 1]) |
               pack_pair<T>(values[4 * i + 2], values[4 * i + 3]) << 16;
    }
  }
  store_words(to, raw);
}
