// Fences: between paths to memory, and between kernels.
#pragma once

namespace ptx {

// Orders what this thread has written to shared memory, or observed of others, before later bulk
// copies that read or overwrite it and wgmma that reads it (fence.proxy.async, sm_90). The copies and
// products must themselves be ordered after this call.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Programmatic launches (pdl.cuh). The first returns once the kernels directly before have ended and
// their writes are visible; the second lets the next kernels begin.
__device__ __forceinline__ void wait_for_kernels() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

__device__ __forceinline__ void launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace ptx
