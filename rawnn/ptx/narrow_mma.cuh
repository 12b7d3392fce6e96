// The warp-wide operations that narrow.cu is made of: matrix fragments from shared memory, products
// of fragments, asynchronous copies. A host build (tests/ptx/emulation) defines
// NARROW_HOST_COLLECTIVES and brings its own.
//
// Fragments are those of mma.m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16"), with g = lane
// / 4 and t = lane % 4. A [16, 16]: words 0..3 hold (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t +
// 8) and their right neighbours. B [16, 8]: words 0, 1 hold (2t, g), (2t + 8, g) and their lower
// neighbours. C [16, 8]: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
#pragma once
#include "types.cuh"

#ifndef NARROW_HOST_COLLECTIVES

__device__ __forceinline__ unsigned char* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char bytes[];
  return bytes;
}

// Four 8 x 8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8.
// TRANSPOSED hands out their transposes.
template <bool TRANSPOSED>
__device__ __forceinline__ void load_matrices(unsigned int (&words)[4], const void* row) {
  const unsigned int address = static_cast<unsigned int>(__cvta_generic_to_shared(row));
  if constexpr (TRANSPOSED) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
  }
}

// c += a * b.
template <typename T>
__device__ __forceinline__ void multiply(float (&c)[4], const unsigned int (&a)[4], unsigned int b0,
                                         unsigned int b1);

template <>
__device__ __forceinline__ void multiply<bfloat16>(float (&c)[4], const unsigned int (&a)[4],
                                                   unsigned int b0, unsigned int b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void multiply<float16>(float (&c)[4], const unsigned int (&a)[4],
                                                  unsigned int b0, unsigned int b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Copies `bytes` (0 .. 16) to 16 bytes of shared memory, the rest zeros; part of the open group.
__device__ __forceinline__ void copy_async(void* to, const void* from, int bytes) {
  const unsigned int address = static_cast<unsigned int>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void close_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most `pending` groups of this thread's copies are under way; `pending` must be
// known when the code around it is unrolled.
__device__ __forceinline__ void await_copies(int pending) {
  switch (pending) {
    case 0: asm volatile("cp.async.wait_group 0;" ::: "memory"); break;
    case 1: asm volatile("cp.async.wait_group 1;" ::: "memory"); break;
    case 2: asm volatile("cp.async.wait_group 2;" ::: "memory"); break;
    case 3: asm volatile("cp.async.wait_group 3;" ::: "memory"); break;
    default: asm volatile("cp.async.wait_group 4;" ::: "memory"); break;
  }
}

// Copies of whole rows by the copy engine, which costs no issue slots of the warps: from sm_90 on.
#if RAWNN_ARCH >= 900
constexpr bool kHasBulk = true;
#define NARROW_ASM(...) asm volatile(__VA_ARGS__)
#else
constexpr bool kHasBulk = false;
#define NARROW_ASM(...) static_cast<void>(0)
#endif

// A barrier in shared memory that counts the bytes of bulk copies: a phase is over when as many
// have come as one thread has announced. The first phase has the parity 0.
__device__ __forceinline__ void make_barrier(unsigned long long* barrier) {
  [[maybe_unused]] const unsigned int address =
      static_cast<unsigned int>(__cvta_generic_to_shared(barrier));
  NARROW_ASM("mbarrier.init.shared.b64 [%0], 1;" ::"r"(address) : "memory");
  NARROW_ASM("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void announce([[maybe_unused]] unsigned long long* barrier,
                                         [[maybe_unused]] int bytes) {
  NARROW_ASM("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(
                 static_cast<unsigned int>(__cvta_generic_to_shared(barrier))),
             "r"(bytes)
             : "memory");
}

// Copies a multiple of 16 bytes between addresses that are multiples of 16.
__device__ __forceinline__ void copy_bulk([[maybe_unused]] void* to,
                                          [[maybe_unused]] const void* from,
                                          [[maybe_unused]] int bytes,
                                          [[maybe_unused]] unsigned long long* barrier) {
  NARROW_ASM(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1], %2, [%3];" ::"r"(static_cast<unsigned int>(__cvta_generic_to_shared(to))),
      "l"(from), "r"(bytes), "r"(static_cast<unsigned int>(__cvta_generic_to_shared(barrier)))
      : "memory");
}

__device__ __forceinline__ void await_bulk([[maybe_unused]] unsigned long long* barrier,
                                           [[maybe_unused]] int parity) {
  NARROW_ASM(
      "{\n\t.reg .pred over;\n"
      "again: mbarrier.try_wait.parity.shared.b64 over, [%0], %1;\n\t"
      "@!over bra again;\n\t}" ::"r"(static_cast<unsigned int>(__cvta_generic_to_shared(barrier))),
      "r"(parity)
      : "memory");
}

// Between accesses to shared memory that this thread has made or seen and bulk copies over the
// same.
__device__ __forceinline__ void before_bulk() {
  NARROW_ASM("fence.proxy.async.shared::cta;" ::: "memory");
}

#endif
