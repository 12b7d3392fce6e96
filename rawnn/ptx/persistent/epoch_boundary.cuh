// The epoch boundary, done by the kernel that has done all steps of an epoch. epoch_boundary.cu does the same in a
// launch of its own, which begins after all blocks have left the GPU. The host passes the number of the next
// epoch.
#pragma once
#include "elementwise/clock.cuh"
#include "persistent/block.cuh"
#include "primitives/random.cuh"

// The batch order of the next epoch. Each thread of the grid computes one element ahead of time, while other
// blocks may still read the order of the epoch that ends. store() stores it and computes the remaining
// elements.
template <typename SHAPE>
struct NextOrder {
  static constexpr int kThreads = SHAPE::kThreads * SHAPE::kRanks * SHAPE::kGroups;
  Permutation place;
  int count, first, ahead;

  __device__ __forceinline__ NextOrder(unsigned long long seed, int epoch, int count)
      : place(permutation(seed, epoch, count)), count(count),
        first(static_cast<int>(blockIdx.x) * SHAPE::kThreads + thread_index()),
        ahead(first < count ? static_cast<int>(place(static_cast<unsigned int>(first))) : 0) {}

  __device__ __forceinline__ void store(int* order) const {
    if (first < count) order[first] = ahead;
#pragma unroll 1
    for (int i = first + kThreads; i < count; i += kThreads) {
      order[i] = static_cast<int>(place(static_cast<unsigned int>(i)));
    }
  }
};
