// Fragments of mma.sync: how a warp reads its part of the operands' tiles into registers, and the
// instruction itself. A step of the inner dimension is 32 bytes for all types: 8 floats (as tf32), 16
// 16-bit elements, or 32 8-bit elements.
//
// SUM says how floats are multiplied: `float` rounds both to tf32; `tf32x3` splits each into two tf32,
// high + low = x up to a unit in the last place, and computes three products of them.
#pragma once
#include "device/products.cuh"
#include "gemm/mma_copy.cuh"

// A float's bits rounded to tf32, half away from zero; the tensor cores ignore the lower 13 bits of the
// sum. cvt.rna.tf32 has the same result in four instructions instead of two. A NaN is unchanged.
__device__ __forceinline__ unsigned int to_tf32(unsigned int bits) {
  const float value = __uint_as_float(bits);
  return value == value ? bits + 0x1000u : bits;
}

struct tf32x3 {};  // a SUM, stored as floats

// Converts four words of a fragment from memory to operands of the tensor cores.
template <typename T, typename SUM>
struct Factor {
  unsigned int word[4];
  __device__ __forceinline__ void take(const unsigned int (&from)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) word[i] = sizeof(T) == 4 ? to_tf32(from[i]) : from[i];
  }
};

// `word` becomes the high part. Rounding it to nearest leaves at most 12 bits, of which the tensor cores
// use 11, of either sign: so the omitted low * low causes no bias. If x is not finite, low is NaN.
template <>
struct Factor<float, tf32x3> {
  unsigned int word[4];
  unsigned int low[4];
  __device__ __forceinline__ void take(const unsigned int (&from)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float whole = __uint_as_float(from[i]);
      word[i] = (from[i] + 0x1000u) & 0xffffe000u;
      low[i] = __float_as_uint(whole - __uint_as_float(word[i]));
    }
  }
};

// What one warp reads of an operand's tile at a step: blocks of 16 along the operand's own dimension,
// LEFT (a: one 16 x 32-byte fragment) or right (b: two fragments of 8 columns, side by side).
template <typename PANEL, bool LEFT>
struct Fragments {
  using T = typename PANEL::Element;
  static constexpr int kSize = static_cast<int>(sizeof(T));
  // Wide bytes are read in pairs across the instruction's rows: an even and an odd row or column of 16
  // are used as one of the first and one of the second half.
  static constexpr bool kPaired = !PANEL::kDeep && kSize == 1;

  int base;  // byte offset in the tile of what this lane reads of block 0 at step 0

  // `first`: where the warp's part begins along the operand's own dimension; `step`: its first step.
  __device__ __forceinline__ Fragments(int first, int step, int lane) {
    const int eight = lane & 7;
    const int low = (lane >> 3) & 1;
    const int high = lane >> 4;
    if constexpr (PANEL::kDeep) {
      // Matrices in the order of the registers: a's second one is 8 rows down, b's 16 bytes further.
      const int row = first + (LEFT ? low : high) * 8 + eight;
      base = step / 4 * PANEL::kPanelBytes +
             PANEL::offset(row, (LEFT ? high : low) ^ (2 * (step % 4)));
    } else if constexpr (kSize == 4) {
      const int place = first + lane / 4;
      base = at(step * 8 + lane % 4, place * 4 / 16) + place % 4 * 4;
    } else if constexpr (kSize == 2) {
      const int row = step * 16 + (LEFT ? high : low) * 8 + eight;
      base = at(row, first * 2 / 16 + (LEFT ? low : high));
    } else {
      const int row = step * 32 + high * 16 + low * 2 + (eight >> 1) * 4 + (eight & 1);
      base = at(row, first / 16);
    }
  }

  // The words of block `block` at `step` steps after the first, both known at compile time; a warp has
  // 1, 2, 4 or all of a stage's steps.
  __device__ __forceinline__ void load(unsigned int (&words)[4], unsigned int tile, int block,
                                       int step) const {
    if constexpr (PANEL::kDeep) {
      ptx::load_matrices<false>(words, tile + block * 16 * PANEL::kRowBytes +
                               step / 4 * PANEL::kPanelBytes + (base ^ (step % 4 * 32)));
    } else {
      const int bytes = block * 16 * kSize;
      const unsigned int address = tile + step * (32 / kSize) * PANEL::kRowBytes +
                                   bytes / PANEL::kRowBytes * PANEL::kPanelBytes +
                                   (base ^ (bytes % PANEL::kRowBytes));
      if constexpr (kSize == 4) {
        // Eight elements further are two chunks further, and four rows down have the same key.
        const unsigned int beside = address ^ 32u;
        const unsigned int below = 4 * PANEL::kRowBytes;
        words[0] = ptx::load_shared(address);
        words[LEFT ? 1 : 2] = ptx::load_shared(beside);
        words[LEFT ? 2 : 1] = ptx::load_shared(address + below);
        words[3] = ptx::load_shared(beside + below);
      } else if constexpr (kSize == 2) {
        ptx::load_matrices<true>(words, address);
      } else {
        unsigned int pairs[4];
        ptx::load_matrices<true>(pairs, address);
        words[0] = __byte_perm(pairs[0], pairs[1], 0x6420);
        words[LEFT ? 1 : 2] = __byte_perm(pairs[0], pairs[1], 0x7531);
        words[LEFT ? 2 : 1] = __byte_perm(pairs[2], pairs[3], 0x6420);
        words[3] = __byte_perm(pairs[2], pairs[3], 0x7531);
      }
    }
  }

 private:
  static __device__ __forceinline__ int at(int row, int chunk) {
    return chunk / PANEL::kChunks * PANEL::kPanelBytes +
           PANEL::offset(row, chunk % PANEL::kChunks);
  }
};

// The sums of a 16 x 8 block in one thread: rows g and g + 8, columns 2q and 2q + 1 of each, for
// lane 4g + q. Stored as floats, or as two words of float16 pairs.
template <typename SUM>
struct Block {
  float value[4];
  __device__ __forceinline__ float2 row(int half) const {
    return make_float2(value[2 * half], value[2 * half + 1]);
  }
};

template <>
struct Block<float16> {
  unsigned int word[2];
  __device__ __forceinline__ float2 row(int half) const {
    return unpack_pair<float16>(word[half]);
  }
};

template <typename A, typename B>
struct Same {
  static constexpr bool kValue = false;
};
template <typename A>
struct Same<A, A> {
  static constexpr bool kValue = true;
};

// d += a b over one step.
template <typename TA, typename TB>
__device__ __forceinline__ void multiply(Block<float>& d, const unsigned int (&a)[4],
                                         unsigned int b0, unsigned int b1) {
  ptx::multiply<TA, TB>(d.value, a, b0, b1);
}

template <typename TA, typename TB>
__device__ __forceinline__ void multiply(Block<float16>& d, const unsigned int (&a)[4],
                                         unsigned int b0, unsigned int b1) {
  static_assert(Same<TA, float16>::kValue && Same<TB, float16>::kValue,
                "sums of float16 are for operands of float16");
  ptx::multiply_f16(d.word, a, b0, b1);
}

// A word of ones: as fragments of b they sum the rows of a.
template <typename T>
__device__ __forceinline__ unsigned int ones() {
  if constexpr (sizeof(T) == 4) {
    return 0x3f800000u;
  } else if constexpr (sizeof(T) == 2) {
    return from_float<T>(1.0f).bits * 0x10001u;
  } else {
    return from_float<T>(1.0f).bits * 0x1010101u;
  }
}

// part = a b (FIRST) or part += a b over one step of tf32.
template <bool FIRST>
__device__ __forceinline__ void multiply_part(Block<tf32x3>& part, const unsigned int (&a)[4],
                                              unsigned int b0, unsigned int b1) {
  if constexpr (FIRST) {
    ptx::multiply_from_zero(part.value, a, b0, b1);
  } else {
    ptx::multiply<float>(part.value, a, b0, b1);
  }
}

// all += part, and part = 0.
__device__ __forceinline__ void move_sums(Block<tf32x3>& all, Block<tf32x3>& part) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    all.value[i] += part.value[i];
    part.value[i] = 0.0f;
  }
}

// d[j] += a b over one step, for N pairs of blocks of 8 columns: one product, or three with tf32x3,
// small ones first. With tf32x3 each step's sum begins at zero and the float units add it to d, which
// rounds to nearest. The tensor cores truncate sums, which over a long inner dimension would be a larger
// error than float32's own rounding (Ootomo and Yokota, 2022).
template <typename TA, typename TB, typename SUM, int N>
__device__ __forceinline__ void multiply_row(Block<SUM> (&d)[2 * N], const Factor<TA, SUM>& a,
                                             const Factor<TB, SUM> (&b)[N]) {
  if constexpr (Same<SUM, tf32x3>::kValue) {
    Block<SUM> part[2 * N];
#pragma unroll
    for (int j = 0; j < 2 * N; ++j) {
      const int at = j % 2 * 2;
      multiply_part<true>(part[j], a.low, b[j / 2].word[at], b[j / 2].word[at + 1]);
    }
#pragma unroll
    for (int j = 0; j < 2 * N; ++j) {
      const int at = j % 2 * 2;
      multiply_part<false>(part[j], a.word, b[j / 2].low[at], b[j / 2].low[at + 1]);
    }
#pragma unroll
    for (int j = 0; j < 2 * N; ++j) {
      const int at = j % 2 * 2;
      multiply_part<false>(part[j], a.word, b[j / 2].word[at], b[j / 2].word[at + 1]);
    }
#pragma unroll
    for (int j = 0; j < 2 * N; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) d[j].value[i] += part[j].value[i];
    }
  } else {
#pragma unroll
    for (int j = 0; j < 2 * N; ++j) {
      const int at = j % 2 * 2;
      multiply<TA, TB>(d[j], a.word, b[j / 2].word[at], b[j / 2].word[at + 1]);
    }
  }
}

// d += a times ones: the sums of its rows.
template <typename TA, typename TB, typename SUM>
__device__ __forceinline__ void add_rows(Block<float>& d, const Factor<TA, SUM>& a) {
  if constexpr (Same<SUM, tf32x3>::kValue) {
    Block<SUM> part;
    multiply_part<true>(part, a.low, ones<TB>(), ones<TB>());
    multiply_part<false>(part, a.word, ones<TB>(), ones<TB>());
#pragma unroll
    for (int i = 0; i < 4; ++i) d.value[i] += part.value[i];
  } else {
    multiply<TA, TB>(d, a.word, ones<TB>(), ones<TB>());
  }
}
