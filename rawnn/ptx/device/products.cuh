// Products of matrix fragments by a warp: mma.sync, and the loads of fragments from shared memory.
//
// Fragments are spread over the lanes as in the PTX ISA, with g = lane / 4 and t = lane % 4. A step has
// 32 bytes along the inner dimension: E = 8 tf32, 16 16-bit or 32 8-bit elements. A word holds 4 / size
// neighbors along it:
//   A [16, E]  words 0..3: (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4) in units of words
//   B [E, 8]   words 0, 1: (t, g), (t + 4, g) in units of words
//   C [16, 8]  floats 0..3: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
// All lanes of the warp must call these functions together.
#pragma once
#include "device/convert.cuh"
#include "primitives/types.cuh"

namespace ptx {

// Loads four 8 x 8 matrices of 16-bit elements, each of 8 rows of 16 bytes. Lane l gives the address,
// 16-byte aligned, of row l % 8 of matrix l / 8. Lane (g, t) gets elements 2t and 2t + 1 of row g or,
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

// The same for two matrices, or one; the first lanes give the addresses.
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

// Transposes an 8 x 8 matrix of 16-bit elements, of which lane (g, t) holds elements 2t and 2t + 1 of
// row g (movmatrix).
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

// c += a b over a step of 32 bytes. TA is float (as tf32, whose low 13 bits are ignored), bfloat16 or
// float16 (all sm_80), or any two 8-bit floats (sm_89).
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

// The same for bfloat16 or float16 over half a step: words 0 and 1 of A, and 0 of B.
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

// c = a b for floats as tf32.
__device__ __forceinline__ void multiply_from_zero(float (&c)[4], const unsigned int (&a)[4],
                                                   unsigned int b0, unsigned int b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%10, %10, %10, %10};"
      : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

// c += a b of floats as tf32, rounded: the product alone is the tensor core's, which truncates its sums.
// One statement compiles faster than the C++; the CPU emulator has the C++.
__device__ __forceinline__ void add_product(float (&c)[4], const unsigned int (&a)[4], unsigned int b0,
                                            unsigned int b1) {
#ifdef RAWNN_TWIN
  float product[4];
  multiply_from_zero(product, a, b0, b1);
  for (int i = 0; i < 4; ++i) c[i] += product[i];
#else
  asm("{\n.reg .f32 p<4>;\n"
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {p0, p1, p2, p3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%10, %10, %10, %10};\n"
      "add.f32 %0, %0, p0;\nadd.f32 %1, %1, p1;\nadd.f32 %2, %2, p2;\nadd.f32 %3, %3, p3;\n}"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
#endif
}

// sum[0] + sum[1] + sum[2] += a b of floats (split_tf32): high high, rounded, low high and high low. If it
// BEGINS, the sums are set. One statement compiles faster than the C++; the CPU emulator has the C++.
template <bool BEGINS>
__device__ __forceinline__ void add_float_product(float (&x)[4], float (&y)[4], float (&z)[4],
                                                  const float (&a)[4], const float (&b)[2]) {
#ifdef RAWNN_TWIN
  unsigned int high_a[4], low_a[4], high_b[2], low_b[2];
  split_tf32(a, high_a, low_a), split_tf32(b, high_b, low_b);
  if constexpr (BEGINS) {
    multiply_from_zero(y, low_a, high_b[0], high_b[1]), multiply_from_zero(z, high_a, low_b[0], low_b[1]);
    multiply_from_zero(x, high_a, high_b[0], high_b[1]);
  } else {
    multiply<float>(y, low_a, high_b[0], high_b[1]), multiply<float>(z, high_a, low_b[0], low_b[1]);
    add_product(x, high_a, high_b[0], high_b[1]);
  }
#else
#define RAWNN_PRODUCT(sum, a, b, before)                                                             \
  "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {" sum "}, {" a "0, " a "1, " a "2, " a "3}, {" b \
  "4, " b "5}, {" before "};\n"
#define RAWNN_SPLITS                                                                               \
  "{\n.reg .b32 h<6>, l<6>;\n.reg .f32 rest, p<4>;\n" RAWNN_SPLIT("h0", "l0", "%12")              \
  RAWNN_SPLIT("h1", "l1", "%13") RAWNN_SPLIT("h2", "l2", "%14") RAWNN_SPLIT("h3", "l3", "%15")     \
  RAWNN_SPLIT("h4", "l4", "%16") RAWNN_SPLIT("h5", "l5", "%17")
#define RAWNN_OPERANDS(way)                                                                        \
  : way(x[0]), way(x[1]), way(x[2]), way(x[3]), way(y[0]), way(y[1]), way(y[2]), way(y[3]),        \
    way(z[0]), way(z[1]), way(z[2]), way(z[3])                                                     \
  : "f"(a[0]), "f"(a[1]), "f"(a[2]), "f"(a[3]), "f"(b[0]), "f"(b[1]), "f"(0.0f)
#define RAWNN_X "%0, %1, %2, %3"
#define RAWNN_Y "%4, %5, %6, %7"
#define RAWNN_Z "%8, %9, %10, %11"
#define RAWNN_ZERO "%18, %18, %18, %18"
  if constexpr (BEGINS) {
    asm(RAWNN_SPLITS RAWNN_PRODUCT(RAWNN_Y, "l", "h", RAWNN_ZERO)
        RAWNN_PRODUCT(RAWNN_Z, "h", "l", RAWNN_ZERO) RAWNN_PRODUCT(RAWNN_X, "h", "h", RAWNN_ZERO) "}"
        RAWNN_OPERANDS("=&f"));
  } else {
    asm(RAWNN_SPLITS RAWNN_PRODUCT(RAWNN_Y, "l", "h", RAWNN_Y) RAWNN_PRODUCT(RAWNN_Z, "h", "l", RAWNN_Z)
        RAWNN_PRODUCT("p0, p1, p2, p3", "h", "h", RAWNN_ZERO)
        "add.f32 %0, %0, p0;\nadd.f32 %1, %1, p1;\nadd.f32 %2, %2, p2;\nadd.f32 %3, %3, p3;\n}"
        RAWNN_OPERANDS("+&f"));  // &: or a sum that begins as 0 may share the register of the zero
  }
#undef RAWNN_PRODUCT
#undef RAWNN_SPLITS
#undef RAWNN_OPERANDS
#undef RAWNN_X
#undef RAWNN_Y
#undef RAWNN_Z
#undef RAWNN_ZERO
#endif
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
