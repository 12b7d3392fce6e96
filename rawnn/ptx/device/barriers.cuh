// Barriers in shared memory (mbarrier, sm_90). A phase ends when all arrivals that init() was given
// have come, and all bytes that were announced. The first phase has parity 0, the next one 1.
//
// An arrival releases what its thread has written or observed, and a wait acquires it. Whoever has
// waited sees the bytes that copies have written. Addresses are those of shared_address(), aligned to
// 8 bytes, in this block unless a function says otherwise.
#pragma once
#include "primitives/types.cuh"

namespace ptx {

// Called by one thread before anyone uses the barrier. Other threads need a barrier of the block
// after it; copies and other blocks need publish_barriers() as well.
__device__ __forceinline__ void init_barrier(unsigned int barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes the barriers that this thread has initialized visible to copies and, with an arrival at the
// cluster's barrier, to other blocks (fence.mbarrier_init).
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void arrive(unsigned int barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// An arrival at a barrier of any block of the cluster, at an address of in_block(). The thread has
// only read, itself or by products that it has waited for, and has written nothing that others must
// see. So it omits .release.cluster: that fence of all memory takes a third of a GEMM's time if every
// stage has an arrival.
__device__ __forceinline__ void arrive_remote_having_read(unsigned int barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// An arrival that adds `bytes` to those the current phase expects.
__device__ __forceinline__ void arrive_expecting(unsigned int barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// Adds `bytes` to those the current phase expects, without an arrival.
__device__ __forceinline__ void expect(unsigned int barrier, int bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier),
               "r"(bytes)
               : "memory");
}

// Whether the phase of this parity has ended; may block for a while before it returns false.
__device__ __forceinline__ bool has_ended(unsigned int barrier, int parity) {
  int done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.s32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

// Returns once the phase of this parity has ended; traps if it never does.
__device__ __forceinline__ void wait_for(unsigned int barrier, int parity) {
#pragma unroll 1
  for (int tries = 0; tries < 1 << 24; ++tries) {
    if (has_ended(barrier, parity)) return;
  }
  __trap();  // the awaited arrivals or bytes never came
}

// The same for bytes that other blocks of the cluster send, and for data their arrivals release.
__device__ __forceinline__ void wait_for_remote(unsigned int barrier, int parity) {
#pragma unroll 1
  for (int tries = 0; tries < 1 << 24; ++tries) {
    int done;
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        "selp.s32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    if (done != 0) return;
  }
  __trap();
}

}  // namespace ptx
