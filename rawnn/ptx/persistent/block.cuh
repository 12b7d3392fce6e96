// Constants of a generated kernel that all of persistent/*.cuh share, and the place of a block in its group.
//
// A SHAPE, the first template parameter of most templates, has
//   kThreads    threads of a block              kTpSize   tp_size: blocks of a group, which share the layers
//   kDpSize     dp_size: groups                 kColumns  examples of a micro-batch of a group, in eights
//   kCluster    whether a group is a thread block cluster; else its blocks exchange via L2
//   kSent       columns that blocks send to each other, in fours
//   kPitch      floats from one feature of activations [features, examples] to the next
//   kPrecision  of GEMMs: kFloat32 (three of tf32), kTf32, kBfloat16 or kFloat16
//
// A loop that each thread enters at most once, which follows from constants, ends in `if constexpr (...)
// break;`. Otherwise it costs instructions, and compile time: with every loop that NVVM unrolls inside the
// loop over steps, it drops its analysis of all values that depend on a loop there.
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

// tp_rank of this block, and the two halves of the cluster barrier, which do nothing if a group is not a
// cluster.
template <typename SHAPE>
__device__ __forceinline__ int rank_of_block() {
  if constexpr (SHAPE::kCluster) return static_cast<int>(ptx::cluster_rank());
  return static_cast<int>(blockIdx.x) % SHAPE::kTpSize;
}

template <typename SHAPE>
__device__ __forceinline__ void cluster_arrive() {
  if constexpr (SHAPE::kCluster) ptx::arrive_at_cluster();
}

template <typename SHAPE>
__device__ __forceinline__ void cluster_wait() {
  if constexpr (SHAPE::kCluster) ptx::wait_for_cluster();
}

// An arrival that orders no memory accesses: it says only that this block has come so far.
template <typename SHAPE>
__device__ __forceinline__ void cluster_arrive_relaxed() {
  if constexpr (SHAPE::kCluster) ptx::arrive_at_cluster_relaxed();
}
