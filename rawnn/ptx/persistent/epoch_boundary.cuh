// From one epoch to the next by the kernel that has done all steps of one: what epoch_boundary.cu does in a launch of its
// own, for which all blocks have to leave the GPU first. The epoch that comes is the host's to say.
#pragma once
#include "elementwise/clock.cuh"
#include "persistent/block.cuh"
#include "primitives/random.cuh"

// The order of the epoch that comes: each thread of the grid finds an element while it may not yet be
// stored, for other blocks read the one that is over; store() finds the others.
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
