// Conversions of numbers, of two at once where the GPU has such an instruction. Each rounds to nearest
// even unless it says otherwise. `low` is the first in memory, `high` the second.
#pragma once

namespace ptx {

// cvt.rn.bf16x2.f32, sm_80.
__device__ __forceinline__ unsigned int pack_bf16(float low, float high) {
  unsigned int result;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}

// cvt.rn.f16x2.f32, sm_80.
__device__ __forceinline__ unsigned int pack_f16(float low, float high) {
  unsigned int result;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}

// cvt.rn.satfinite.e4m3x2.f32, sm_89.
__device__ __forceinline__ unsigned short pack_e4m3(float low, float high) {
  unsigned short result;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(result) : "f"(high), "f"(low));
  return result;
}

// cvt.rn.satfinite.e5m2x2.f32, sm_89.
__device__ __forceinline__ unsigned short pack_e5m2(float low, float high) {
  unsigned short result;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(result) : "f"(high), "f"(low));
  return result;
}

// Two 8-bit floats as two float16, exact (cvt.rn.f16x2.e4m3x2 and .e5m2x2, sm_89).
__device__ __forceinline__ unsigned int widen_e4m3(unsigned short pair) {
  unsigned int result;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(result) : "h"(pair));
  return result;
}

__device__ __forceinline__ unsigned int widen_e5m2(unsigned short pair) {
  unsigned int result;
  asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(result) : "h"(pair));
  return result;
}

// cvt.rn.f16.f32.
__device__ __forceinline__ unsigned short to_f16(float value) {
  unsigned short result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(value));
  return result;
}

// cvt.rn.bf16.f32, sm_80 (sm_90 has it as one instruction).
__device__ __forceinline__ unsigned short to_bf16(float value) {
  unsigned short result;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result) : "f"(value));
  return result;
}

// cvt.f32.f16, exact.
__device__ __forceinline__ float from_f16(unsigned short bits) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(bits));
  return result;
}

// a * b + c of float16, rounded once (fma.rn.f16).
__device__ __forceinline__ unsigned short fma_f16(unsigned short a, unsigned short b,
                                                  unsigned short c) {
  unsigned short result;
  asm("fma.rn.f16 %0, %1, %2, %3;" : "=h"(result) : "h"(a), "h"(b), "h"(c));
  return result;
}

// The same for two pairs at once (fma.rn.f16x2).
__device__ __forceinline__ unsigned int fma_f16_pair(unsigned int a, unsigned int b,
                                                     unsigned int c) {
  unsigned int result;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
}

// A float rounded to tf32 (10 bits of mantissa), ties away from zero; the low 13 bits are 0
// (cvt.rna.tf32.f32, sm_80).
__device__ __forceinline__ unsigned int to_tf32(float value) {
  unsigned int result;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(result) : "f"(value));
  return result;
}

// The same with one integer addition, for operands of tf32 products, which ignore the low 13 bits. Those
// are not 0 here, and a NaN or a number next to infinity may change into something else.
__device__ __forceinline__ unsigned int near_tf32(float value) {
  return __float_as_uint(value) + 0x1000u;
}

// The nearest tf32, of two the even one where the GPU rounds by one instruction (cvt.rn.tf32.f32, sm_90), else
// the one away from zero. The CPU emulator has the C++.
__device__ __forceinline__ float round_tf32(float value) {
#if defined(RAWNN_TWIN)
  const unsigned int bits = __float_as_uint(value);
  return __uint_as_float((bits + 0xfffu + (bits >> 13 & 1u)) & 0xffffe000u);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  unsigned int result;
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(result) : "f"(value));
  return __uint_as_float(result);
#else
  return __uint_as_float(near_tf32(value) & 0xffffe000u);
#endif
}

// Splits value = high + low into two tf32 numbers of 11 significant bits each. Products of both parts
// give all but 2 of a float's 24 bits, with two or three tf32 products for each product of floats. `low`
// is not rounded, because tf32 products ignore its low bits.
__device__ __forceinline__ void split_tf32(float value, unsigned int& high, unsigned int& low) {
  high = __float_as_uint(round_tf32(value));
  low = __float_as_uint(value - __uint_as_float(high));
}

// The same as PTX of one of several values, which has a register `rest`.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define RAWNN_NEAREST(high, value) "cvt.rn.tf32.f32 " high ", " value ";\n"
#else
#define RAWNN_NEAREST(high, value)                                                                 \
  "mov.b32 " high ", " value ";\nadd.s32 " high ", " high ", 4096;\nand.b32 " high ", " high ", -8192;\n"
#endif
#define RAWNN_SPLIT(high, low, value)                                                              \
  RAWNN_NEAREST(high, value)                                                                       \
  "mov.b32 rest, " high ";\nsub.f32 rest, " value ", rest;\nmov.b32 " low ", rest;\n"

// The same for two or four values. One statement compiles faster than their C++, and to the same
// instructions; the CPU emulator has the C++.
template <int COUNT>
__device__ __forceinline__ void split_tf32(const float (&value)[COUNT], unsigned int (&high)[COUNT],
                                           unsigned int (&low)[COUNT]) {
  static_assert(COUNT == 2 || COUNT == 4, "operands of a product");
#ifdef RAWNN_TWIN
  for (int i = 0; i < COUNT; ++i) split_tf32(value[i], high[i], low[i]);
#else
  if constexpr (COUNT == 2) {
    asm("{\n.reg .f32 rest;\n" RAWNN_SPLIT("%0", "%2", "%4") RAWNN_SPLIT("%1", "%3", "%5") "}"
        : "=&r"(high[0]), "=&r"(high[1]), "=&r"(low[0]), "=&r"(low[1])
        : "f"(value[0]), "f"(value[1]));
  } else {
    asm("{\n.reg .f32 rest;\n" RAWNN_SPLIT("%0", "%4", "%8") RAWNN_SPLIT("%1", "%5", "%9")
        RAWNN_SPLIT("%2", "%6", "%10") RAWNN_SPLIT("%3", "%7", "%11") "}"
        : "=&r"(high[0]), "=&r"(high[1]), "=&r"(high[2]), "=&r"(high[3]), "=&r"(low[0]), "=&r"(low[1]),
          "=&r"(low[2]), "=&r"(low[3])
        : "f"(value[0]), "f"(value[1]), "f"(value[2]), "f"(value[3]));
  }
#endif
}

// sqrt.approx.ftz.f32: relative error 2^-23, subnormals are 0.
__device__ __forceinline__ float approximate_sqrt(float value) {
  float result;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

// ex2.approx.ftz.f32: relative error 2^-22, subnormals are 0.
__device__ __forceinline__ float approximate_exp2(float value) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

// rcp.approx.ftz.f32: relative error 2^-23, subnormals are 0.
__device__ __forceinline__ float approximate_inverse(float value) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

// div.approx.ftz.f32: within two units in the last place where |b| is in 2^-126 .. 2^126, beyond that
// 0; subnormals are 0.
__device__ __forceinline__ float approximate_quotient(float a, float b) {
  float result;
  asm("div.approx.ftz.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

// All ones in each half where the half of `a`, a bfloat16 or float16, is greater than that of `b`,
// else zeros; a NaN is not greater (set.gt.u32).
__device__ __forceinline__ unsigned int greater_bf16(unsigned int a, unsigned int b) {
  unsigned int result;
  asm("set.gt.u32.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}

__device__ __forceinline__ unsigned int greater_f16(unsigned int a, unsigned int b) {
  unsigned int result;
  asm("set.gt.u32.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}

// The 64-bit product (mul.wide.u32). From C++ the compiler adds the zero upper halves, 14 more
// instructions in 7 rounds of Philox.
__device__ __forceinline__ unsigned long long wide_product(unsigned int a, unsigned int b) {
  unsigned long long product;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
  return product;
}

}  // namespace ptx
