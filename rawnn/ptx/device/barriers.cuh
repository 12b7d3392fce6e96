// Barriers in shared memory (mbarrier, sm_90): a phase ends when as many arrivals have come as init()
// was told of, and all bytes that were announced. The first phase has the parity 0, the next 1.
//
// An arrival releases what its thread has written or seen, a wait acquires it; bytes that copies
// bring are there for whoever has waited. Addresses are those of shared_address(), 8 bytes aligned
// to 8, of this block unless a function says otherwise.
#pragma once
#include "primitives/types.cuh"

namespace ptx {

// By one thread, ahead of everybody's use: others need a barrier of the block behind it, and copies
// and other blocks publish_barriers() as well.
__device__ __forceinline__ void init_barrier(unsigned int barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes the barriers that this thread has initialised known to copies and, with an arrival at the
// cluster's barrier, to other blocks (fence.mbarrier_init).
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void arrive(unsigned int barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// An arrival at a barrier of any block of the cluster, at an address of in_block(), of a thread that
// has read, by itself or by products that it has waited for, and has written nothing that others are
// to see: without .release.cluster, the fence of all memory, which took a third of a product's time
// with an arrival for each stage.
__device__ __forceinline__ void arrive_remote_having_read(unsigned int barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// An arrival that announces `bytes` more of the phase at hand.
__device__ __forceinline__ void arrive_expecting(unsigned int barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// Announces `bytes` without an arrival.
__device__ __forceinline__ void expect(unsigned int barrier, int bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier),
               "r"(bytes)
               : "memory");
}

// Whether the phase of this parity has ended; may take a while to say no.
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

// Returns once the phase of this parity has ended; traps where it never does.
__device__ __forceinline__ void wait_for(unsigned int barrier, int parity) {
#pragma unroll 1
  for (int tries = 0; tries < 1 << 24; ++tries) {
    if (has_ended(barrier, parity)) return;
  }
  __trap();  // what was asked for never came
}

// The same for bytes that other blocks of the cluster send, or data behind their arrivals.
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
