// Clusters of blocks (sm_90): their barrier, and each other's shared memory.
#pragma once
#include "primitives/types.cuh"

namespace ptx {

// This block's rank in its cluster, from 0.
__device__ __forceinline__ unsigned int cluster_rank() {
  unsigned int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// The two halves of a barrier of all threads of the cluster: what was written before the arrival can be
// read after the wait. All threads of a warp must call both together.
__device__ __forceinline__ void arrive_at_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ __forceinline__ void wait_for_cluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// An arrival that publishes only barriers (publish_barriers). It omits the release, a fence of all
// memory.
__device__ __forceinline__ void arrive_at_cluster_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_barrier() {
  arrive_at_cluster();
  wait_for_cluster();
}

// The address in block `rank` that corresponds to `address` in this block's shared memory (mapa).
__device__ __forceinline__ unsigned int in_block(unsigned int address, unsigned int rank) {
  unsigned int there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

// The value at an address of in_block(). rawnn's kernels send instead, which has no latency for the
// reader. Users' kernels read so, and the CPU emulator checks that no block ends while others read it.
__device__ __forceinline__ float load_remote(unsigned int from) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(from) : "memory");
  return value;
}

// Stores that count their bytes at a barrier of the same block, both at addresses of in_block(); whoever
// waits at that barrier sees them (st.async).
__device__ __forceinline__ void send(unsigned int to, float value, unsigned int barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to),
               "f"(value), "r"(barrier)
               : "memory");
}

__device__ __forceinline__ void send4(unsigned int to, float4 value, unsigned int barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::
          "r"(to),
      "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(barrier)
      : "memory");
}

// The same to block `rank`, of addresses in this block's shared memory: in_block() of both, and send4().
__device__ __forceinline__ void send4_to_block(unsigned int rank, unsigned int to, float4 value,
                                               unsigned int barrier) {
  asm volatile(
      "{\n.reg .b32 there, counter;\nmapa.shared::cluster.u32 there, %0, %6;\n"
      "mapa.shared::cluster.u32 counter, %5, %6;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {%1, %2, %3, %4}, "
      "[counter];\n}" ::"r"(to),
      "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(barrier), "r"(rank)
      : "memory");
}

}  // namespace ptx
