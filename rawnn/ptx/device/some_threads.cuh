// Barriers at which some of a block's warps meet, all of each; they have numbers from 1 to 15, as 0 is
// that of all threads (__syncthreads).
#pragma once
#include "types.cuh"

#ifdef RAWNN_TWIN
#include RAWNN_TWIN
#else

namespace ptx {

// Waits until COUNT threads have come to barrier NUMBER, by this or by come_to; what they wrote is seen.
template <int NUMBER, int COUNT>
__device__ __forceinline__ void sync_some() {
  asm volatile("bar.sync %0, %1;" ::"n"(NUMBER), "n"(COUNT) : "memory");
}

// The same, and whether any of them said so; all come by this.
template <int NUMBER, int COUNT>
__device__ __forceinline__ bool sync_some_or(bool said) {
  int any;
  asm volatile(
      "{\n.reg .pred p, q;\n"
      "setp.ne.s32 p, %1, 0;\n"
      "bar.red.or.pred q, %2, %3, p;\n"
      "selp.s32 %0, 1, 0, q;\n}"
      : "=r"(any)
      : "r"(said ? 1 : 0), "n"(NUMBER), "n"(COUNT)
      : "memory");
  return any != 0;
}

// Comes there, and waits for nobody.
template <int NUMBER, int COUNT>
__device__ __forceinline__ void come_to() {
  asm volatile("bar.arrive %0, %1;" ::"n"(NUMBER), "n"(COUNT) : "memory");
}

}  // namespace ptx

#endif
