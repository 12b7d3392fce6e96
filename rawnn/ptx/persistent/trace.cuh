// Records when each warp ends each phase of a step. Only traced kernels have it (rawnn/persistent/tracing.py
// documents the words).
//
// One lane of a warp reads the clock of the multiprocessor and stores its lower half, without waiting for the
// store: STAMPS stamps in each of the first STEPS steps [step][block][stamp][warp], then those of the launch
// [block][of a launch][warp]. The first thread of each block stores the GPU's nanoseconds at begin and end
// [block][2], two words each. Limit: some 35 cycles a stamp, by its instructions.
#pragma once
#include "device/clock.cuh"
#include "persistent/block.cuh"

template <typename SHAPE, int STAMPS, int STEPS>
struct Trace {
  static constexpr int kWarps = SHAPE::kThreads / 32;
  static constexpr int kBlocks = SHAPE::kTpSize * SHAPE::kDpSize;
  static constexpr int kOfLaunch = 4;  // begun, loaded, trained, stored
  unsigned int* words;

  // The predicate that selects the lane depends on the clock's highest bit, which is 0, so that it is
  // computed after __syncwarp(). ptxas (CUDA 12.9, 13.0) removes a branch there after it has scheduled the
  // instructions: a predicate computed ahead of __syncwarp() was used before it was ready, and a store went
  // to an uninitialised address.
  __device__ __forceinline__ void put(int place) const {
    __syncwarp();
    const unsigned long long now = ptx::cycles();
    if ((lane_index() | static_cast<int>(now >> 63)) == 0) {
      words[place * kWarps + thread_index() / 32] = static_cast<unsigned int>(now);
    }
  }
  // Records the end of phase `number` of a step.
  __device__ __forceinline__ void stamp(int step, int number) const {
    if (step < STEPS) put((step * kBlocks + static_cast<int>(blockIdx.x)) * STAMPS + number);
  }
  __device__ __forceinline__ void launch(int number) const {
    put(STEPS * kBlocks * STAMPS + static_cast<int>(blockIdx.x) * kOfLaunch + number);
    if (threadIdx.x == 0 && (number == 0 || number == kOfLaunch - 1)) {
      unsigned int* const at = words + (STEPS * STAMPS + kOfLaunch) * kBlocks * kWarps +
                               static_cast<int>(blockIdx.x) * 4 + (number == 0 ? 0 : 2);
      const unsigned long long now = ptx::nanoseconds();
      at[0] = static_cast<unsigned int>(now), at[1] = static_cast<unsigned int>(now >> 32);
    }
  }
};
