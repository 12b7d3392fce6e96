// Operands in 16 bits of products that are exact (by_examples.cuh): bytes, and planes of floats.
//
// bfloat16 holds a byte exactly. The other factor of a product is a sum of three bfloat16, its planes, which hold
// every bit of a float32. So three products of 16 bits are those of float32.
#pragma once
#include "persistent/values.cuh"

namespace by_examples {

constexpr int kPlanes = 3;
constexpr int kMost = 16;  // outputs

// Where the planes of an output lie in a row. Those of up to ten outputs take 32 places, so that two tiles of 16
// have them all: plane p of the first eight outputs is the p-th eight, and the last eight have those of two more.
// A lane then has all planes of the first eight, and the others are two and four rows, or columns, further.
template <int OUTPUTS>
struct Rows {
  static constexpr bool kPacked = OUTPUTS <= 10;
  static constexpr int kTiles = kPacked ? 2 : 3;            // of 16
  static constexpr int kPitch = kTiles * 16 + 8;            // an odd number of eights: no bank conflicts
  static constexpr int kOf4 = ceil_div(OUTPUTS, 4);         // fours of outputs
  static constexpr int kPlaces = !kPacked ? 16 : OUTPUTS > 8 ? 10 : 8;  // of outputs and padding, which is 0
  static __device__ __forceinline__ int place(int plane, int output) {
    if constexpr (!kPacked) return plane * 16 + output;
    return output < 8 ? plane * 8 + output : 24 + plane * 2 + output - 8;
  }
};

// Two values as sums of three bfloat16 each.
__device__ __forceinline__ void split(float low, float high, unsigned int (&planes)[kPlanes]) {
#pragma unroll
  for (int i = 0; i < kPlanes; ++i) {
    planes[i] = ptx::pack_bf16(low, high);
    low -= __uint_as_float(planes[i] << 16);
    high -= __uint_as_float(planes[i] & 0xffff0000u);
  }
}

// A byte as a float: below 2^23 the last bits of a mantissa are units.
__device__ __forceinline__ float from_byte(unsigned int word, int i) {
  return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440u + i)) - 8388608.0f;
}

__device__ __forceinline__ unsigned int pair_of_bytes(unsigned int word, int i) {
  const unsigned int low = __float_as_uint(from_byte(word, i)), high = __float_as_uint(from_byte(word, i + 1));
  return __byte_perm(low, high, 0x7632u);
}

// x = raw for `rows` rows of `width` bytes, at most WIDTH, by the threads from FREE on; zeros fill the last eight.
template <typename SHAPE, int FREE, int WIDTH, int LDX, int RAW_PITCH>
__device__ __forceinline__ void convert(Half* x, const unsigned char* raw, int width, int rows) {
  constexpr int eights = ceil_div(WIDTH, 8);
#pragma unroll 2
  for (int i = thread_index() - FREE; i < rows * eights; i += SHAPE::kThreads - FREE) {
    const int row = i / eights;
    const int column = i % eights * 8;
    uint2 words = *reinterpret_cast<const uint2*>(raw + row * RAW_PITCH + column);
    const int there = width - column;
    if (there < 8) {
      if (there < 4) words.x = there > 0 ? words.x & ((1u << (8 * there)) - 1u) : 0u;
      words.y = there > 4 ? words.y & ((1u << (8 * (there - 4))) - 1u) : 0u;
    }
    *reinterpret_cast<uint4*>(x + row * LDX + column) =
        make_uint4(pair_of_bytes(words.x, 0), pair_of_bytes(words.x, 2), pair_of_bytes(words.y, 0),
                   pair_of_bytes(words.y, 2));
  }
}

// Stores two neighbouring outputs of a row in all planes.
template <int OUTPUTS>
__device__ __forceinline__ void store_planes(Half* row, int output, float low, float high) {
  if (output >= Rows<OUTPUTS>::kPlaces) return;
  unsigned int words[kPlanes];
  split(low, high, words);
#pragma unroll
  for (int i = 0; i < kPlanes; ++i) {
    *reinterpret_cast<unsigned int*>(row + Rows<OUTPUTS>::place(i, output)) = words[i];
  }
}

// The planes of the first `count` inputs' weights.
template <typename SHAPE, int OUTPUTS, int LDW>
__device__ __forceinline__ void make_planes(Half* planes, const float* weights, int count) {
#pragma unroll 1
  for (int i = thread_index(); i < count * (kMost / 2); i += SHAPE::kThreads) {
    const int input = i / (kMost / 2);
    const int output = i % (kMost / 2) * 2;
    if (output < Rows<OUTPUTS>::kPlaces) {
      const float2 both = *reinterpret_cast<const float2*>(weights + input * LDW + output);
      store_planes<OUTPUTS>(planes + input * Rows<OUTPUTS>::kPitch, output, both.x, both.y);
    }
  }
}

}  // namespace by_examples
