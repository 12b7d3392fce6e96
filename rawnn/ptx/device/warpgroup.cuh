// Products by a warpgroup of four warps with operands in shared memory: wgmma (sm_90a only).
//
// They run asynchronously: fence_products(), any number of multiply_async(), commit_products(), and
// wait_for_products() before the sums or the operands may be touched. Operands are read through the
// copy engine's path, so what threads wrote needs fence_proxy_async() and a barrier.
#pragma once
#include "primitives/types.cuh"

namespace ptx {

// Sets each thread's registers in this warpgroup (setmaxnreg). A decrease frees registers; an increase
// waits until others have freed theirs. COUNT is a multiple of 8 from 24 to 256. All four warps call it,
// in a kernel with bounded registers (__launch_bounds__(threads, 1)), each role in a branch of one if.
template <int COUNT>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Called before the first product, and after threads have written to the sums (wgmma.fence).
__device__ __forceinline__ void fence_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Ends this warpgroup's group of products.
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until all but the last PENDING of this warpgroup's groups are complete.
template <int PENDING>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// The descriptor of an operand at `address`, for multiply_async(): `leading` and `stride` are the bytes
// between panels and between groups of eight rows; the 128-byte swizzle, or none.
__device__ __forceinline__ unsigned long long descriptor(unsigned int address, int leading,
                                                         int stride, bool swizzled) {
  return static_cast<unsigned long long>((address & 0x3ffffu) >> 4) |
         static_cast<unsigned long long>(leading / 16) << 16 |
         static_cast<unsigned long long>(stride / 16) << 32 |
         static_cast<unsigned long long>(swizzled ? 1 : 0) << 62;
}

#define RAWNN_FOUR(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define RAWNN_SIXTEEN(d, i) \
  RAWNN_FOUR(d, i), RAWNN_FOUR(d, i + 4), RAWNN_FOUR(d, i + 8), RAWNN_FOUR(d, i + 12)
#define RAWNN_SIXTY_FOUR(d, i)                                                  \
  RAWNN_SIXTEEN(d, i), RAWNN_SIXTEEN(d, i + 16), RAWNN_SIXTEEN(d, i + 32), \
      RAWNN_SIXTEEN(d, i + 48)

// Operands 0 to COUNT - 1 of an instruction: the sums.
#define RAWNN_SUMS_32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, " \
  "%8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define RAWNN_SUMS_64 \
  RAWNN_SUMS_32 ", " \
  "%32, %33, %34, %35, %36, %37, %38, %39, " \
  "%40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, " \
  "%56, %57, %58, %59, %60, %61, %62, %63"
#define RAWNN_SUMS_128 \
  RAWNN_SUMS_64 ", " \
  "%64, %65, %66, %67, %68, %69, %70, %71, " \
  "%72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, " \
  "%88, %89, %90, %91, %92, %93, %94, %95, " \
  "%96, %97, %98, %99, %100, %101, %102, %103, " \
  "%104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, " \
  "%120, %121, %122, %123, %124, %125, %126, %127"

#define RAWNN_WGMMA_8(shape, types, tail) \
  asm volatile( \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\nwgmma.mma_async.sync.aligned.m64n8" shape \
      "." types " " \
      "{%0, %1, %2, %3}, " \
      "%4, %5, p, 1, 1" tail ";\n}" \
      : RAWNN_FOUR(d, 0) \
      : "l"(a), "l"(b), "r"(add))
#define RAWNN_WGMMA_64(shape, types, tail) \
  asm volatile( \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64" shape \
      "." types " " \
      "{" RAWNN_SUMS_32 "}, " \
      "%32, %33, p, 1, 1" tail ";\n}" \
      : RAWNN_SIXTEEN(d, 0), RAWNN_SIXTEEN(d, 16) \
      : "l"(a), "l"(b), "r"(add))
#define RAWNN_WGMMA_128(shape, types, tail) \
  asm volatile( \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128" shape \
      "." types " " \
      "{" RAWNN_SUMS_64 "}, " \
      "%64, %65, p, 1, 1" tail ";\n}" \
      : RAWNN_SIXTY_FOUR(d, 0) \
      : "l"(a), "l"(b), "r"(add))
#define RAWNN_WGMMA_256(shape, types, tail) \
  asm volatile( \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\nwgmma.mma_async.sync.aligned.m64n256" shape \
      "." types " " \
      "{" RAWNN_SUMS_128 "}, " \
      "%128, %129, p, 1, 1" tail ";\n}" \
      : RAWNN_SIXTY_FOUR(d, 0), RAWNN_SIXTY_FOUR(d, 64) \
      : "l"(a), "l"(b), "r"(add))

// d = a b, or d += a b where `add` is not 0, over 64 rows, N columns and a step of 32 bytes, by the four
// warps of a warpgroup together; a and b are descriptors. Lane (g, t) of warp w has rows 16w + g and
// 16w + g + 8 in blocks of 8 columns, as in fragment C of mma.sync. WIDE_A and WIDE_B say that the
// operand is not contiguous along the inner dimension, for 16-bit types only. d must not be touched
// until the products have been waited for.
template <int N, typename TA, typename TB, bool WIDE_A, bool WIDE_B>
__device__ __forceinline__ void multiply_async(float (&d)[N / 2], unsigned long long a,
                                               unsigned long long b, int add) {
  constexpr bool e4m3_a = kSame<TA, float8_e4m3>;
  constexpr bool e4m3_b = kSame<TB, float8_e4m3>;
  static_assert(sizeof(TA) == 2 || (!WIDE_A && !WIDE_B), "8-bit operands are deep");
#define RAWNN_WGMMA_N(shape, types, tail)              \
  if constexpr (N == 8) {                              \
    RAWNN_WGMMA_8(shape, types, tail);                 \
  } else if constexpr (N == 64) {                      \
    RAWNN_WGMMA_64(shape, types, tail);                \
  } else if constexpr (N == 128) {                     \
    RAWNN_WGMMA_128(shape, types, tail);               \
  } else {                                             \
    static_assert(N == 256, "8, 64, 128 or 256 columns"); \
    RAWNN_WGMMA_256(shape, types, tail);               \
  }
#define RAWNN_WGMMA_16(types)                          \
  if constexpr (WIDE_A && WIDE_B) {                    \
    RAWNN_WGMMA_N("k16", types, ", 1, 1")              \
  } else if constexpr (WIDE_A) {                       \
    RAWNN_WGMMA_N("k16", types, ", 1, 0")              \
  } else if constexpr (WIDE_B) {                       \
    RAWNN_WGMMA_N("k16", types, ", 0, 1")              \
  } else {                                             \
    RAWNN_WGMMA_N("k16", types, ", 0, 0")              \
  }
  if constexpr (kSame<TA, bfloat16>) {
    RAWNN_WGMMA_16("f32.bf16.bf16")
  } else if constexpr (kSame<TA, float16>) {
    RAWNN_WGMMA_16("f32.f16.f16")
  } else if constexpr (e4m3_a && e4m3_b) {
    RAWNN_WGMMA_N("k32", "f32.e4m3.e4m3", "")
  } else if constexpr (e4m3_a) {
    RAWNN_WGMMA_N("k32", "f32.e4m3.e5m2", "")
  } else if constexpr (e4m3_b) {
    RAWNN_WGMMA_N("k32", "f32.e5m2.e4m3", "")
  } else {
    RAWNN_WGMMA_N("k32", "f32.e5m2.e5m2", "")
  }
}
#undef RAWNN_WGMMA_16
#undef RAWNN_WGMMA_N
#undef RAWNN_WGMMA_8
#undef RAWNN_WGMMA_64
#undef RAWNN_WGMMA_128
#undef RAWNN_WGMMA_256

#define RAWNN_WGMMA_REGISTERS_64(shape, tail) \
  asm volatile( \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n" \
      "wgmma.mma_async.sync.aligned.m64n64" shape " " \
      "{" RAWNN_SUMS_32 "}, " \
      "{%32, %33, %34, %35}, %36, p, 1, 1" tail ";\n}" \
      : RAWNN_SIXTEEN(d, 0), RAWNN_SIXTEEN(d, 16) \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))
#define RAWNN_WGMMA_REGISTERS_128(shape, tail) \
  asm volatile( \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n" \
      "wgmma.mma_async.sync.aligned.m64n128" shape " " \
      "{" RAWNN_SUMS_64 "}, " \
      "{%64, %65, %66, %67}, %68, p, 1, 1" tail ";\n}" \
      : RAWNN_SIXTY_FOUR(d, 0) \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))
#define RAWNN_WGMMA_REGISTERS_256(shape, tail) \
  asm volatile( \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %133, 0;\n" \
      "wgmma.mma_async.sync.aligned.m64n256" shape " " \
      "{" RAWNN_SUMS_128 "}, " \
      "{%128, %129, %130, %131}, %132, p, 1, 1" tail ";\n}" \
      : RAWNN_SIXTY_FOUR(d, 0), RAWNN_SIXTY_FOUR(d, 64) \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))

// The same for tf32 with a in registers: each warp holds the fragment of its 16 of the 64 rows. Neither
// those registers nor d may be touched until the products are complete. N is 64, 128 or 256.
template <int N>
__device__ __forceinline__ void multiply_async(float (&d)[N / 2], const unsigned int (&a)[4],
                                               unsigned long long b, int add) {
  if constexpr (N == 64) {
    RAWNN_WGMMA_REGISTERS_64("k8.f32.tf32.tf32", "");
  } else if constexpr (N == 128) {
    RAWNN_WGMMA_REGISTERS_128("k8.f32.tf32.tf32", "");
  } else {
    static_assert(N == 256, "64, 128 or 256 columns");
    RAWNN_WGMMA_REGISTERS_256("k8.f32.tf32.tf32", "");
  }
}

// The same for float16, in a step of 16: a word of a holds two neighbors along the inner dimension.
// WIDE_B says that b is not contiguous along it.
template <int N, bool WIDE_B>
__device__ __forceinline__ void multiply_async_f16(float (&d)[N / 2], const unsigned int (&a)[4],
                                                   unsigned long long b, int add) {
  static_assert(N == 64 || N == 128, "64 or 128 columns");
  if constexpr (N == 64 && WIDE_B) {
    RAWNN_WGMMA_REGISTERS_64("k16.f32.f16.f16", ", 1");
  } else if constexpr (N == 64) {
    RAWNN_WGMMA_REGISTERS_64("k16.f32.f16.f16", ", 0");
  } else if constexpr (WIDE_B) {
    RAWNN_WGMMA_REGISTERS_128("k16.f32.f16.f16", ", 1");
  } else {
    RAWNN_WGMMA_REGISTERS_128("k16.f32.f16.f16", ", 0");
  }
}
#undef RAWNN_WGMMA_REGISTERS_64
#undef RAWNN_WGMMA_REGISTERS_128
#undef RAWNN_WGMMA_REGISTERS_256
#undef RAWNN_SUMS_32
#undef RAWNN_SUMS_64
#undef RAWNN_SUMS_128

// Orders reads of sums that the tensor cores may still be writing: such reads come after this call.
template <int COUNT>
__device__ __forceinline__ void settle(float (&sums)[COUNT]) {
#pragma unroll
  for (float& sum : sums) asm volatile("" : "+f"(sum)::"memory");
}
#undef RAWNN_SIXTY_FOUR
#undef RAWNN_SIXTEEN
#undef RAWNN_FOUR

}  // namespace ptx
