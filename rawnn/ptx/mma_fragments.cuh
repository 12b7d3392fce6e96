// Fragments of mma.sync: how a warp reads its part of the operands' tiles into registers, and the
// instruction itself. A step of the inner dimension is 32 bytes whatever the type: 8 floats (as
// tf32), 16 elements of 16 bits, or 32 of 8 bits.
#pragma once
#include "mma_copy.cuh"

__device__ __forceinline__ void load_matrices(unsigned int (&words)[4], unsigned int address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void load_transposed(unsigned int (&words)[4], unsigned int address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ unsigned int load_shared(unsigned int address) {
  unsigned int word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}

// A float's bits rounded to tf32; the tensor cores would cut the lower bits off.
__device__ __forceinline__ unsigned int to_tf32(unsigned int bits) {
  unsigned int rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(bits)));
  return rounded;
}

// What one warp reads of an operand's tile: blocks of 16 along the operand's own dimension, LEFT
// (a: a 16 x 32-byte fragment) or right (b: two fragments of 8 columns side by side), at a step.
template <typename PANEL, bool LEFT>
struct Fragments {
  using T = typename PANEL::Element;
  static constexpr int kSize = static_cast<int>(sizeof(T));
  // Wide bytes come in pairs that lie across the instruction's rows: an even and an odd row or
  // column of 16 take the places of the first and the second half.
  static constexpr bool kPaired = !PANEL::kDeep && kSize == 1;

  int base;  // bytes from the tile's start of what this lane reads of block 0 at step 0

  // `first`: where the warp's part begins along the operand's own dimension; `step`: its first
  // step.
  __device__ __forceinline__ Fragments(int first, int step, int lane) {
    const int eight = lane & 7;
    const int low = (lane >> 3) & 1;
    const int high = lane >> 4;
    if constexpr (PANEL::kDeep) {
      // Matrices in the order of the registers: a's second is 8 rows down, b's 16 bytes on.
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

  // The words of block `block` at `step` steps behind the first, both known when compiling; a
  // warp's steps are 1, 2, 4 or all of a stage.
  __device__ __forceinline__ void load(unsigned int (&words)[4], unsigned int tile, int block,
                                       int step) const {
    if constexpr (PANEL::kDeep) {
      load_matrices(words, tile + block * 16 * PANEL::kRowBytes +
                               step / 4 * PANEL::kPanelBytes + (base ^ (step % 4 * 32)));
      round(words);
    } else {
      const int bytes = block * 16 * kSize;
      const unsigned int address = tile + step * (32 / kSize) * PANEL::kRowBytes +
                                   bytes / PANEL::kRowBytes * PANEL::kPanelBytes +
                                   (base ^ (bytes % PANEL::kRowBytes));
      if constexpr (kSize == 4) {
        // Eight places on are two chunks on, and four rows down keep the key.
        const unsigned int beside = address ^ 32u;
        const unsigned int below = 4 * PANEL::kRowBytes;
        words[0] = load_shared(address);
        words[LEFT ? 1 : 2] = load_shared(beside);
        words[LEFT ? 2 : 1] = load_shared(address + below);
        words[3] = load_shared(beside + below);
        round(words);
      } else if constexpr (kSize == 2) {
        load_transposed(words, address);
      } else {
        unsigned int pairs[4];
        load_transposed(pairs, address);
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
  static __device__ __forceinline__ void round(unsigned int (&words)[4]) {
    if constexpr (kSize == 4) {
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = to_tf32(words[i]);
    }
  }
};

// The sums of a 16 x 8 block in one thread: rows g and g + 8, columns 2q and 2q + 1 of each, for
// lane 4g + q. Kept as floats, or as two words of float16 pairs.
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

#define RAWNN_MMA(text)                                                                \
  asm volatile("mma.sync.aligned." text                                                \
               " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"      \
               : "+f"(d.value[0]), "+f"(d.value[1]), "+f"(d.value[2]), "+f"(d.value[3]) \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))

// d += a b over one step.
template <typename TA, typename TB>
__device__ __forceinline__ void multiply(Block<float>& d, const unsigned int (&a)[4],
                                         unsigned int b0, unsigned int b1) {
  constexpr bool e4m3_a = Same<TA, float8_e4m3>::kValue;
  constexpr bool e4m3_b = Same<TB, float8_e4m3>::kValue;
  if constexpr (sizeof(TA) == 4) {
    RAWNN_MMA("m16n8k8.row.col.f32.tf32.tf32.f32");
  } else if constexpr (Same<TA, bfloat16>::kValue) {
    RAWNN_MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
  } else if constexpr (Same<TA, float16>::kValue) {
    RAWNN_MMA("m16n8k16.row.col.f32.f16.f16.f32");
  } else if constexpr (e4m3_a && e4m3_b) {
    RAWNN_MMA("m16n8k32.row.col.f32.e4m3.e4m3.f32");
  } else if constexpr (e4m3_a) {
    RAWNN_MMA("m16n8k32.row.col.f32.e4m3.e5m2.f32");
  } else if constexpr (e4m3_b) {
    RAWNN_MMA("m16n8k32.row.col.f32.e5m2.e4m3.f32");
  } else {
    RAWNN_MMA("m16n8k32.row.col.f32.e5m2.e5m2.f32");
  }
}
#undef RAWNN_MMA

template <typename TA, typename TB>
__device__ __forceinline__ void multiply(Block<float16>& d, const unsigned int (&a)[4],
                                         unsigned int b0, unsigned int b1) {
  static_assert(Same<TA, float16>::kValue && Same<TB, float16>::kValue,
                "sums of float16 are for operands of float16");
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, "
      "{%0, %1};"
      : "+r"(d.word[0]), "+r"(d.word[1])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A word of ones: b fragments of it add up the rows of a.
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
