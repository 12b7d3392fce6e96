// Clocks: of the multiprocessor that a thread runs on, and of the GPU.
#pragma once
#include "primitives/types.cuh"

namespace ptx {

// Cycles of this multiprocessor's clock (%clock64): those of different ones have nothing in common.
// Accesses to memory stay on their side of it.
__device__ __forceinline__ unsigned long long cycles() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(now)::"memory");
  return now;
}

// Nanoseconds of a clock that all multiprocessors share (%globaltimer). On an H200 it goes on by
// steps of 32 of them or more.
__device__ __forceinline__ unsigned long long nanoseconds() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
  return now;
}

}  // namespace ptx
