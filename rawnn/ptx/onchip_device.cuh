// What the kernels that train on the chip ask of the device beyond plain C: the blocks of a cluster,
// their view of each other's shared memory, and counters in global memory that blocks wait at.
//
// A SHAPE, the first template parameter of everything in onchip_*.cuh, has
//   kThreads  of a block                      kRanks    blocks of a cluster, which share the widths
//   kGroups   clusters, which share the batch kColumns  examples of a group, in eights
//   kPitch    floats from one feature of activations [features, examples] to the next
//   kNumbers  how products are computed: kFloat32 as three of tf32, kTf32, or kBfloat16
#pragma once
#include "common.cuh"
#include "mma_fragments.cuh"

constexpr int kFloat32 = 0;
constexpr int kTf32 = 1;
constexpr int kBfloat16 = 2;

// Spins of a wait after which the kernel ends with an error: some seconds.
constexpr int kMostSpins = 1 << 24;

__device__ __forceinline__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

// This block's place in its cluster.
template <typename SHAPE>
__device__ __forceinline__ int cluster_rank() {
  int rank = 0;
#if RAWNN_ARCH >= 900
  if constexpr (SHAPE::kRanks > 1) asm volatile("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));
#endif
  return rank;
}

// All blocks of the cluster: what was written to shared memory ahead of arriving is seen behind the
// wait. All threads must call both.
template <typename SHAPE>
__device__ __forceinline__ void cluster_arrive() {
#if RAWNN_ARCH >= 900
  if constexpr (SHAPE::kRanks > 1) {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  }
#endif
}

template <typename SHAPE>
__device__ __forceinline__ void cluster_wait() {
#if RAWNN_ARCH >= 900
  if constexpr (SHAPE::kRanks > 1) {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  }
#endif
}

// Four floats at the same place of the shared memory of block `rank` of the cluster.
__device__ __forceinline__ float4 load_from_rank(const float* mine, int rank) {
  float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#if RAWNN_ARCH >= 900
  unsigned int address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(address)
               : "r"(shared_address(mine)), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
#endif
  return v;
}

// The blocks of one rank over all clusters meet at a counter that is 0 when the kernel begins:
// arriving publishes what the whole block has written to global memory.
__device__ __forceinline__ void groups_arrive(unsigned int* counter) {
  __syncthreads();
#if RAWNN_ARCH >= 700
  if (threadIdx.x == 0) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
  }
#endif
}

__device__ __forceinline__ void groups_wait(unsigned int* counter, unsigned int target) {
#if RAWNN_ARCH >= 700
  if (threadIdx.x == 0) {
    unsigned int seen;
    int spins = 0;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
      if (++spins > kMostSpins) {
        printf("train_steps: a block waits for the gradients of other clusters: %u of %u came\n",
               seen, target);
        __trap();
      }
    } while (static_cast<int>(seen - target) < 0);
  }
#endif
  __syncthreads();
}
