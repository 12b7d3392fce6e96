// What the optimiser of C++ is not told.
#pragma once
#include "primitives/types.cuh"

namespace ptx {

// 0 (mov), as ptxas knows and NVVM does not: a jump on it costs no instruction, but is there for NVVM.
__device__ __forceinline__ unsigned int unknown_zero() {
  unsigned int zero;
  asm("mov.u32 %0, 0;" : "=r"(zero));
  return zero;
}

}  // namespace ptx
