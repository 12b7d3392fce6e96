// When each warp came to the end of each phase of a step, for whoever asks where the time goes. Only
// kernels that are written to be traced have it (rawnn/persistent/tracing.py says what the words are).
//
// One lane of a warp reads the multiprocessor's clock and stores its lower half, nobody waits for it:
// STAMPS of them in each of the first STEPS steps [step][block][stamp][warp], then those of the
// launch [block][of a launch][warp]; and of each block, by its first thread, the GPU's nanoseconds at
// begin and end [block][2] of two words each.
// Limit: some 20 cycles a stamp when it was timed, and some 15 more by its instructions since it waits
// for the clock.
#pragma once
#include "device/clock.cuh"
#include "persistent/block.cuh"

template <typename SHAPE, int STAMPS, int STEPS>
struct Trace {
  static constexpr int kWarps = SHAPE::kThreads / 32;
  static constexpr int kBlocks = SHAPE::kRanks * SHAPE::kGroups;
  static constexpr int kOfLaunch = 4;  // begun, loaded, trained, stored
  unsigned int* words;

  // Whether a lane is the one hangs on the clock's highest bit, which is 0, so that it is found behind
  // __syncwarp(). ptxas (CUDA 12.9, 13.0) takes a jump out of that once it has counted the cycles from
  // one instruction to the next: found ahead of it, the predicate was used before it was there, and a
  // store went to an address that nobody had made.
  __device__ __forceinline__ void put(int place) const {
    __syncwarp();
    const unsigned long long now = ptx::cycles();
    if ((lane_index() | static_cast<int>(now >> 63)) == 0) {
      words[place * kWarps + thread_index() / 32] = static_cast<unsigned int>(now);
    }
  }
  // The end of the phase `number` of a step.
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
