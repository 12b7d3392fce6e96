// Asynchronous copies from global to shared memory by every thread (cp.async, sm_80). A thread's
// copies form groups. A group is visible to its thread once that thread has waited for it, and to
// others after the next barrier.
#pragma once

namespace ptx {

// Copies BYTES (4, 8 or 16) to the shared address `to`, both aligned to BYTES. 16 bytes bypass the L1
// cache.
template <int BYTES = 16>
__device__ __forceinline__ void copy_async(unsigned int to, const void* from) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "4, 8 or 16 bytes");
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(BYTES)
                 : "memory");
  }
}

// The same, but only the first `exist` bytes (0 .. BYTES) are read; zeros fill the rest.
template <int BYTES = 16>
__device__ __forceinline__ void copy_async(unsigned int to, const void* from, int exist) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "4, 8 or 16 bytes");
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exist)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES),
                 "r"(exist)
                 : "memory");
  }
}

// Ends this thread's group of copies.
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until all but the last PENDING of this thread's groups are complete.
template <int PENDING>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Waits for all of this thread's copies, in groups or not.
__device__ __forceinline__ void wait_for_all_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace ptx
