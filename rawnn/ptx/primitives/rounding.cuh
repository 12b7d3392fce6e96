// Stochastic rounding to bfloat16: up or down, so that the mean of many roundings is the value. It
// rounds up if adding 16 random bits to the discarded bits carries. The random bits follow from the
// element's index (random.cuh), so every kernel, and NumPy, rounds an element alike.
#pragma once
#include "primitives/random.cuh"
#include "primitives/types.cuh"

// How new weights are rounded when they are stored.
struct Rounding {
  bool stochastic;
  unsigned long long seed;
  unsigned int stream;
  int step;
};

// Rounds one value by random16 (0 .. 65535). Infinities and NaNs are kept.
__device__ __forceinline__ bfloat16 stochastic_round_bf16(float value, unsigned int random16) {
  const unsigned int bits = __float_as_uint(value);
  const unsigned int quiet = (bits & 0x007fffffu) != 0u ? bits | 0x00400000u : bits;
  return bfloat16{
      static_cast<unsigned short>((is_finite(value) ? bits + random16 : quiet) >> 16)};
}

// Rounds N values at once, two in a word, with each word of `random` holding the bits of two: three
// instructions a value and no branch. Infinities are kept, because the addition never carries out of
// their lower half. The NaN that arithmetic produces, 0x7fffffff, is first changed to one of which that
// holds.
template <int N>
__device__ __forceinline__ void round_stochastic(unsigned int* rounded, const float (&values)[N],
                                                const unsigned int* random) {
#pragma unroll
  for (int i = 0; i < N; i += 2) {
    const int low = min(__float_as_int(values[i]), 0x7fff0000);
    const int high = min(__float_as_int(values[i + 1]), 0x7fff0000);
    rounded[i / 2] = __byte_perm(static_cast<unsigned int>(low) + (random[i / 2] & 0xffffu),
                                 static_cast<unsigned int>(high) + (random[i / 2] >> 16), 0x7632);
  }
}

// The random bits of N <= 8 elements from any `element` on, 16 bits each, in N / 2 words. One draw covers
// 8 elements, from a multiple of 8 on.
template <int N>
__device__ __forceinline__ Words rounding_window(const Rounding& how, unsigned int element) {
  Words found = rounding_group(how.seed, how.stream, how.step, element / 8u);
  const unsigned int skip = element % 8u;
  if constexpr (N <= 4) {
    if (skip % 4u == 0u) {  // always so if rows consist of whole quads
      found.word[0] = skip == 0u ? found.word[0] : found.word[2];
      found.word[1] = skip == 0u ? found.word[1] : found.word[3];
      return found;
    }
  } else if (skip == 0u) {
    return found;
  }
  Words next = found;
  if (skip + N > 8u) next = rounding_group(how.seed, how.stream, how.step, element / 8u + 1u);
  unsigned int all[8];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    all[i] = found.word[i];
    all[4 + i] = next.word[i];
  }
#pragma unroll
  for (int i = 0; i < 7; ++i) {
    if ((skip & 1u) != 0u) all[i] = all[i] >> 16 | all[i + 1] << 16;
  }
#pragma unroll
  for (int i = 0; i < 6; ++i) {
    if ((skip & 2u) != 0u) all[i] = all[i + 1];
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) found.word[i] = (skip & 4u) != 0u ? all[i + 2] : all[i];
  return found;
}
