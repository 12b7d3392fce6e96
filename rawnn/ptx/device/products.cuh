// Products of matrix fragments by a warp: mma.sync, and the loads of fragments from shared memory.
//
// Fragments are spread over the lanes as the PTX ISA says, with g = lane / 4 and t = lane % 4. Of a
// step of 32 bytes along the inner dimension (E = 8 tf32, 16 of 16 bits or 32 of 8 bits), a word
// holds 4 / size neighbours along it:
//   A [16, E]  words 0..3: (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4) in units of words
//   B [E, 8]   words 0, 1: (t, g), (t + 4, g) in units of words
//   C [16, 8]  floats 0..3: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
// All lanes of the warp must call these together.
#pragma once
#include "primitives/types.cuh"

namespace ptx {

// Four 8 x 8 matrices of 16-bit elements (of 8 rows of 16 bytes): lane l gives the address of row
// l % 8 of matrix l / 8, a multiple of 16. Lane (g, t) gets the elements 2t and 2t + 1 of row g or,
// TRANSPOSED, of column g (ldmatrix.x4).
template <bool TRANSPOSED>
__device__ __forceinline__ void load_matrices(unsigned int (&words)[4], unsigned int row) {
  if constexpr (TRANSPOSED) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(row)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(row)
                 : "memory");
  }
}

// Two of them, or one: the rows are the first lanes'.
template <bool TRANSPOSED>
__device__ __forceinline__ void load_matrices(unsigned int (&words)[2], unsigned int row) {
  if constexpr (TRANSPOSED) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(words[0]), "=r"(words[1])
                 : "r"(row)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(words[0]), "=r"(words[1])
                 : "r"(row)
                 : "memory");
  }
}
template <bool TRANSPOSED>
__device__ __forceinline__ void load_matrices(unsigned int (&words)[1], unsigned int row) {
  if constexpr (TRANSPOSED) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
                 : "=r"(words[0])
                 : "r"(row)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                 : "=r"(words[0])
                 : "r"(row)
                 : "memory");
  }
}

// The 8 x 8 matrix of 16-bit elements of which lane (g, t) holds 2t and 2t + 1 of row g, transposed
// (movmatrix).
__device__ __forceinline__ unsigned int transpose_matrix(unsigned int word) {
  unsigned int result;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(word));
  return result;
}

#define RAWNN_MMA(shape_and_types)                                               \
  asm("mma.sync.aligned." shape_and_types                                        \
      " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"         \
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                           \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))

// c += a b over a step of 32 bytes: TA float (as tf32, whose low 13 bits are ignored), bfloat16,
// float16, or any two 8-bit floats (sm_89). The others are for sm_80.
template <typename TA, typename TB = TA>
__device__ __forceinline__ void multiply(float (&c)[4], const unsigned int (&a)[4], unsigned int b0,
                                         unsigned int b1) {
  static_assert(kSame<TA, TB> || (sizeof(TA) == 1 && sizeof(TB) == 1), "no such product");
  if constexpr (kSame<TA, float>) {
    RAWNN_MMA("m16n8k8.row.col.f32.tf32.tf32.f32");
  } else if constexpr (kSame<TA, bfloat16>) {
    RAWNN_MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
  } else if constexpr (kSame<TA, float16>) {
    RAWNN_MMA("m16n8k16.row.col.f32.f16.f16.f32");
  } else if constexpr (kSame<TA, float8_e4m3> && kSame<TB, float8_e4m3>) {
    RAWNN_MMA("m16n8k32.row.col.f32.e4m3.e4m3.f32");
  } else if constexpr (kSame<TA, float8_e4m3>) {
    RAWNN_MMA("m16n8k32.row.col.f32.e4m3.e5m2.f32");
  } else if constexpr (kSame<TB, float8_e4m3>) {
    RAWNN_MMA("m16n8k32.row.col.f32.e5m2.e4m3.f32");
  } else {
    RAWNN_MMA("m16n8k32.row.col.f32.e5m2.e5m2.f32");
  }
}
#undef RAWNN_MMA

// The same of bfloat16 or float16 over half a step: words 0 and 1 of A, and 0 of B.
template <typename T>
__device__ __forceinline__ void multiply_half(float (&c)[4], const unsigned int (&a)[2],
                                              unsigned int b) {
  if constexpr (kSame<T, bfloat16>) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
  } else {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
  }
}

// c = a b of floats as tf32.
__device__ __forceinline__ void multiply_from_zero(float (&c)[4], const unsigned int (&a)[4],
                                                   unsigned int b0, unsigned int b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%10, %10, %10, %10};"
      : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

// c += a b of float16 with sums of float16, two a word: rows g and g + 8.
__device__ __forceinline__ void multiply_f16(unsigned int (&c)[2], const unsigned int (&a)[4],
                                             unsigned int b0, unsigned int b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, "
      "{%0, %1};"
      : "+r"(c[0]), "+r"(c[1])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace ptx
