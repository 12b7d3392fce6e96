// epoch_boundary: ends an epoch and prepares the next one. Advances the clock, and writes the order of examples.
//
//   clock += {1, steps}, as in tick (clock.cuh)
//   order[i] = keyed permutation of `seed` and the epoch `offset`, at i; i = 0 .. count-1
//   clock: int32[2], epochs and steps done; order: int32 [count]
//
// One launch after the steps of an epoch, in place of shuffle and tick. The epoch is an argument that the host
// changes for each launch: if it were read from the clock, all blocks would have to read it before one of them
// advances it.
//
// Each thread computes its first element before pdl_wait(), while the steps still run, so that only a store is
// left after them. It is kept in shared memory; otherwise the compiler moves the computation behind the wait.
//
// Launch: one dimension, any size (grid-stride), once an epoch; kBoundaryThreads threads a block.
// Limit: launch latency.
#include "elementwise/clock.cuh"
#include "primitives/pdl.cuh"
#include "primitives/random.cuh"

constexpr int kBoundaryThreads = 256;

extern "C" __global__ void epoch_boundary(int* __restrict__ clock, int* __restrict__ order,
                                unsigned long long seed, int count, int steps, int offset) {
  __shared__ int ahead[kBoundaryThreads];
  const int thread = static_cast<int>(threadIdx.x);
  const int stride = static_cast<int>(gridDim.x * blockDim.x);
  const int first = static_cast<int>(blockIdx.x * blockDim.x) + thread;
  const Permutation place = permutation(seed, offset, count);
  if (first < count) ahead[thread] = static_cast<int>(place(static_cast<unsigned int>(first)));
  pdl_wait();
  pdl_trigger();
  if (first == 0) tick_clock(clock, steps);
  if (first < count) order[first] = ahead[thread];
  for (int i = first + stride; i < count; i += stride) {
    order[i] = static_cast<int>(place(static_cast<unsigned int>(i)));
  }
}
