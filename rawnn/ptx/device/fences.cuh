// Fences: between paths to memory, between threads, and between kernels.
#pragma once

namespace ptx {

// What this thread has written to shared memory, or has seen of others, may be read and overwritten
// by bulk copies, and read by wgmma, that begin behind this and behind what orders them
// (fence.proxy.async, sm_90).
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Programmatic launches (pdl.cuh): returns once the kernels directly before have ended and their
// writes can be seen; lets the kernels behind begin.
__device__ __forceinline__ void wait_for_kernels() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

__device__ __forceinline__ void launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace ptx
