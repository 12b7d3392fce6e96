// Values that the C++ optimizer cannot know at compile time.
#pragma once
#include "primitives/types.cuh"

namespace ptx {

// 0 (mov), which ptxas knows and NVVM does not: NVVM keeps a jump on it, ptxas removes the instruction.
__device__ __forceinline__ unsigned int unknown_zero() {
  unsigned int zero;
  asm("mov.u32 %0, 0;" : "=r"(zero));
  return zero;
}

}  // namespace ptx
