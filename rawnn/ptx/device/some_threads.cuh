// Barriers at which some of a block's warps meet, all of each; they have numbers from 1 to 15, as 0 is
// that of all threads (__syncthreads).
#pragma once
#include "types.cuh"

#ifdef RAWNN_TWIN
#include RAWNN_TWIN
#else

namespace ptx {

// Waits until COUNT threads have come to barrier NUMBER, wherever in the code; what they wrote is seen.
template <int NUMBER, int COUNT>
__device__ __forceinline__ void sync_some() {
  asm volatile("bar.sync %0, %1;" ::"n"(NUMBER), "n"(COUNT) : "memory");
}

}  // namespace ptx

#endif
