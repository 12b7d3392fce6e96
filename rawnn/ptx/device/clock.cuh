// Clocks: of the multiprocessor that a thread runs on, and of the GPU.
#pragma once
#include "primitives/types.cuh"

namespace ptx {

// Cycles of this multiprocessor's clock (%clock64); different multiprocessors' values are unrelated.
// Memory accesses are not moved across it.
__device__ __forceinline__ unsigned long long cycles() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(now)::"memory");
  return now;
}

// Nanoseconds of a clock that all multiprocessors share (%globaltimer). On an H200 it advances in
// steps of at least 32 ns.
__device__ __forceinline__ unsigned long long nanoseconds() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
  return now;
}

}  // namespace ptx
