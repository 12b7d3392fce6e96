// What everything in onchip_*.cuh shares: the numbers of a kernel that trains on the chip, and what
// its blocks are to each other.
//
// A SHAPE, the first template parameter of the rest, has
//   kThreads  of a block                      kRanks    blocks of a group, which share the widths
//   kGroups   groups, which share the batch   kColumns  examples of a group, in eights
//   kCluster  whether a group is a thread-block cluster; else its blocks exchange through L2
//   kSent     of these columns those that blocks send each other, in fours
//   kPitch    floats from one feature of activations [features, examples] to the next
//   kNumbers  how products are computed: kFloat32 as three of tf32, kTf32, kBfloat16 or kFloat16
//
// A loop that threads go through once at most, as their number and the sizes say, ends in
// `if constexpr (...) break;`. Else it costs instructions, and of compiling more: with every loop that NVVM
// unrolls within the one over steps, it forgets what it knows of all that depends on any loop there.
#pragma once
#include "primitives/common.cuh"
#include "device/cluster.cuh"
#include "device/convert.cuh"
#include "device/copies.cuh"
#include "device/grid.cuh"
#include "device/products.cuh"
#include "device/shared.cuh"
#include "device/unknown.cuh"

constexpr int kFloat32 = 0;
constexpr int kTf32 = 1;
constexpr int kBfloat16 = 2;
constexpr int kFloat16 = 3;

__device__ __forceinline__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
__device__ __forceinline__ constexpr int smaller(int a, int b) { return a < b ? a : b; }

__device__ __forceinline__ int thread_index() { return static_cast<int>(threadIdx.x); }
__device__ __forceinline__ int lane_index() { return static_cast<int>(threadIdx.x) & 31; }
__device__ __forceinline__ int warp_index() {
  return __shfl_sync(kFullWarp, static_cast<int>(threadIdx.x) / 32, 0);
}

// This block's place in its group, and the halves of the cluster's barrier; nothing where a group is
// no cluster of several.
template <typename SHAPE>
__device__ __forceinline__ int rank_of_block() {
  if constexpr (SHAPE::kCluster) return static_cast<int>(ptx::cluster_rank());
  return static_cast<int>(blockIdx.x) % SHAPE::kRanks;
}

template <typename SHAPE>
__device__ __forceinline__ void cluster_arrive() {
  if constexpr (SHAPE::kCluster) ptx::arrive_at_cluster();
}

template <typename SHAPE>
__device__ __forceinline__ void cluster_wait() {
  if constexpr (SHAPE::kCluster) ptx::wait_for_cluster();
}

// An arrival behind which nothing is read that was written ahead of it, and of which nobody needs more
// than that this block is as far.
template <typename SHAPE>
__device__ __forceinline__ void cluster_arrive_relaxed() {
  if constexpr (SHAPE::kCluster) ptx::arrive_at_cluster_relaxed();
}
