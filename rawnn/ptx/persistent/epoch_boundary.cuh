// The epoch boundary, done by the kernel that has done all steps of an epoch. epoch_boundary.cu does the same in a
// launch of its own, which begins after all blocks have left the GPU. The host passes the number of the next
// epoch.
#pragma once
#include "elementwise/clock.cuh"
#include "persistent/block.cuh"
#include "primitives/random.cuh"

// The batch order of the next epoch: its key is made ahead of time, while other blocks may still read the
// order of the epoch that ends.
template <typename SHAPE>
struct NextOrder {
  static constexpr int kThreads = SHAPE::kThreads * SHAPE::kTpSize * SHAPE::kDpSize;
  Permutation place;
  int count;

  __device__ __forceinline__ NextOrder(unsigned long long seed, int epoch, int count)
      : place(permutation(seed, epoch, count)), count(count) {}

  __device__ __forceinline__ void store(int* order) const {
#pragma unroll 1
    for (int i = static_cast<int>(blockIdx.x) * SHAPE::kThreads + thread_index(); i < count; i += kThreads) {
      order[i] = static_cast<int>(place(static_cast<unsigned int>(i)));
    }
  }
};
