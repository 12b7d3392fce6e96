// shuffle: the order of the examples in the epoch that begins, or in a later one.
//
//   order[i] = the keyed permutation of `seed` and the epoch clock[0] + ahead, at i; i = 0 .. count-1
//   clock: int32[2], epochs and steps done; order: int32 [count]
//
// In a graph of an epoch it runs behind the last gather, concurrently with the last step, for the next
// epoch. Elsewhere it writes the order of a run's first epoch, and epoch_boundary.cu those of the others.
// It sorts nothing and needs no memory but `order`: an element depends on its index alone (random.cuh).
// Launch: one dimension, any size (grid-stride), once an epoch; 256 threads a block.
// Limit: latency of the keys and of the rounds.
#include "primitives/pdl.cuh"
#include "primitives/random.cuh"

extern "C" __global__ void shuffle(const int* __restrict__ clock, int* __restrict__ order,
                                   unsigned long long seed, int count, int ahead) {
  pdl_wait();
  pdl_trigger();
  const Permutation place = permutation(seed, clock[0] + ahead, count);
  const int stride = static_cast<int>(gridDim.x * blockDim.x);
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < count; i += stride) {
    order[i] = static_cast<int>(place(static_cast<unsigned int>(i)));
  }
}
