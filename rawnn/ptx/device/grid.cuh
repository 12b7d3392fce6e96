// Waiting for other blocks of the grid, all of which must be resident (a cooperative launch). A counter
// in global memory only grows: after n barriers of b blocks it is n * b.
#pragma once
#include "primitives/types.cuh"

extern "C" __device__ int printf(const char*, ...);

namespace ptx {

// Adds to a counter, after everything that this thread has written or observed (red.release.gpu).
__device__ __forceinline__ void add_release(unsigned int* counter, unsigned int value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}

// Reads a counter, and observes what was written before the additions to it (ld.acquire.gpu).
__device__ __forceinline__ unsigned int load_acquire(const unsigned int* counter) {
  unsigned int value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}

// Returns once the counter, which may wrap around, has reached `target`. Traps after about a second,
// and prints which of the program's waits (`what`) it was.
__device__ __forceinline__ void wait_for_count(const unsigned int* counter, unsigned int target,
                                               int what = 0) {
  unsigned int found = load_acquire(counter);
#pragma unroll 1
  for (int tries = 0; static_cast<int>(found - target) < 0; ++tries) {
    if (tries == 4000000) {
      printf("rawnn: block %d waited in vain for counter %d: %u of %u\n",
             static_cast<int>(blockIdx.x), what, found, target);
      __trap();
    }
    found = load_acquire(counter);
  }
}

// A barrier of all blocks; every thread of a block calls it. `target` is the number of arrivals since
// the counter was 0, including this barrier's.
__device__ __forceinline__ void grid_barrier(unsigned int* counter, unsigned int target,
                                             int what = 0) {
  __syncthreads();
  if (threadIdx.x == 0) {
    add_release(counter, 1u);
    wait_for_count(counter, target, what);
  }
  __syncthreads();
}

}  // namespace ptx
