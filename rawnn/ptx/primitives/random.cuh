// Random numbers that are a function of their coordinates: there is no state, any thread can draw any
// of them, and rawnn/common/random.py draws the same bits with NumPy.
//
// The generator is Philox4x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"). Its
// key is the seed; its four counter words are the counter (two words), the stream and the purpose,
// so that two uses never share a draw. It also compiles for the host (tests/ptx/emulator).
#pragma once
#include "device/convert.cuh"

struct Words {
  unsigned int word[4];
};

// The purpose of a draw: the last counter word.
constexpr unsigned int kDrawUniform = 0u;
constexpr unsigned int kDrawRounding = 1u;
constexpr unsigned int kDrawPermutation = 2u;

// Four words of 32 random bits. Ten rounds are the published generator; seven already pass the
// statistical batteries of the paper and are used where a draw is on the critical path. A loop of UNROLLED
// rounds compiles faster, for draws of which a launch has few.
template <int ROUNDS = 10, int UNROLLED = ROUNDS>
__device__ __forceinline__ Words philox(unsigned long long seed, unsigned int stream,
                                        unsigned long long counter,
                                        unsigned int purpose = kDrawUniform) {
  unsigned int key0 = static_cast<unsigned int>(seed);
  unsigned int key1 = static_cast<unsigned int>(seed >> 32);
  Words c = {{static_cast<unsigned int>(counter), static_cast<unsigned int>(counter >> 32), stream,
              purpose}};
#pragma unroll UNROLLED
  for (int round = 0; round < ROUNDS; ++round) {
    const unsigned long long even = ptx::wide_product(0xD2511F53u, c.word[0]);
    const unsigned long long odd = ptx::wide_product(0xCD9E8D57u, c.word[2]);
    c.word[0] = static_cast<unsigned int>(odd >> 32) ^ c.word[1] ^ key0;
    c.word[2] = static_cast<unsigned int>(even >> 32) ^ c.word[3] ^ key1;
    c.word[1] = static_cast<unsigned int>(odd);
    c.word[3] = static_cast<unsigned int>(even);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c;
}

// A float in [-bound, bound) from 32 random bits, on a grid of 2^24 points. The integer and its product
// with 2^-23 are exact, so the product with bound is the only rounding, here and in NumPy.
__device__ __forceinline__ float uniform_of(unsigned int bits, float bound) {
  const int centred = static_cast<int>(bits >> 8) - 0x800000;
  return (static_cast<float>(centred) * 1.1920928955078125e-7f) * bound;
}

// Random bits for stochastic rounding, 16 an element: one draw serves elements 8*group .. 8*group+7
// at one step. About 45 instructions.
__device__ __forceinline__ Words rounding_group(unsigned long long seed, unsigned int stream,
                                                int step, unsigned int group) {
  const unsigned long long counter =
      static_cast<unsigned long long>(static_cast<unsigned int>(step)) << 32 | group;
  return philox<7>(seed, stream, counter, kDrawRounding);
}

// The 16 bits of element 8*group + i; i must be known at compile time to stay in registers.
__device__ __forceinline__ unsigned int rounding_of(const Words& group, int i) {
  return (group.word[i / 2] >> (16 * (i & 1))) & 0xffffu;
}

// The same 16 bits for one element alone. `element` counts row by row without padding.
__device__ __forceinline__ unsigned int rounding_bits(unsigned long long seed, unsigned int stream,
                                                      int step, unsigned int element) {
  const Words group = rounding_group(seed, stream, step, element / 8u);
  const unsigned int low = (element & 2u) != 0u ? group.word[1] : group.word[0];
  const unsigned int high = (element & 2u) != 0u ? group.word[3] : group.word[2];
  return ((element & 4u) != 0u ? high : low) >> (16u * (element & 1u)) & 0xffffu;
}

// A permutation of 0 .. count-1 by a balanced Feistel network over the smallest domain of an even
// number of bits that holds `count`. A value outside goes through it again ("cycle walking"), fewer
// than four times on average. Every count gives a bijection, whatever the keys.
constexpr int kPermutationRounds = 8;

struct Permutation {
  unsigned int key[kPermutationRounds];
  unsigned int count;
  int half;  // bits of each half of the domain

  __device__ __forceinline__ unsigned int operator()(unsigned int index) const {
    do {
      index = next(index);
    } while (index >= count);
    return index;
  }

  // The place of an index in the domain, which is a place of the permutation if it is below count.
  __device__ __forceinline__ unsigned int next(unsigned int index) const {
    const unsigned int mask = (1u << half) - 1u;
    unsigned int left = index >> half;
    unsigned int right = index & mask;
#pragma unroll
    for (int round = 0; round < kPermutationRounds; ++round) {
      unsigned int mixed = (right ^ key[round]) * 0x7feb352du;
      mixed = (mixed ^ (mixed >> 15)) * 0x846ca68bu;
      const unsigned int following = left ^ ((mixed ^ (mixed >> 16)) & mask);
      left = right;
      right = following;
    }
    return left << half | right;
  }
};

// The permutation of an epoch; the same thread-independent value for every caller. count <= 2^30.
__device__ __forceinline__ Permutation permutation(unsigned long long seed, int epoch, int count) {
  const unsigned long long counter =
      static_cast<unsigned long long>(static_cast<unsigned int>(epoch)) << 32;
  const Words first = philox<10, 1>(seed, 0u, counter, kDrawPermutation);
  const Words second = philox<10, 1>(seed, 0u, counter | 1ull, kDrawPermutation);
  Permutation made;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    made.key[i] = first.word[i];
    made.key[4 + i] = second.word[i];
  }
  made.count = static_cast<unsigned int>(count);
  made.half = 1;
  while (made.half < 15 && (1u << (2 * made.half)) < made.count) ++made.half;
  return made;
}
