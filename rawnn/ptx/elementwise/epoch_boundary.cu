// turn: from one epoch to the next. The clock goes on, and the order of the epoch that comes is made.
//
//   clock += {1, steps} as tick has it (clock.cuh)
//   order[i] = the keyed permutation of `seed` and the epoch `offset`, at i; i = 0 .. count-1
//   clock: int32[2], epochs and steps done; order: int32 [count]
//
// It stands behind the steps of an epoch, where shuffle and tick would be two launches. The epoch is
// an argument, which the host changes from launch to launch: were it read from the clock, the blocks
// would have to wait for each other before one of them moves it.
// Each thread finds its first element ahead of pdl_wait(), while the steps still run: only a store is
// left behind them. Shared memory holds it, or the compiler would find it behind the wait.
// Launch: one dimension, any size (grid-stride), once an epoch; kBoundaryThreads threads a block.
// Limit: the launch.
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
