// Programmatic dependent launch: a kernel begins while those before it still run, as soon as each of
// them has triggered, and waits for their end before it accesses what they write.
//
// The rules, which rawnn.cuda.compiling.launch_proof proves from the PTX of every kernel launched so:
//   - pdl_wait() stands on every thread's path, ahead of any access to global memory. Reads that no
//     kernel directly before this one writes (a whole data set, say) may stand ahead of it.
//   - pdl_trigger() stands behind pdl_wait(), if anywhere: a kernel that ends without has triggered.
//     Blocks of the next kernel then take the places and issue slots that are free while they wait.
//     Early is good for kernels that leave some (wide128: 166 ms an epoch, 170 without triggers),
//     bad for short ones that need all (linear.cu).
// A wait is over once the kernels directly before have ended and their writes can be seen. As each of
// them has waited likewise, so has everything before them.
//
// Without -DRAWNN_PDL and before sm_90 both do nothing.
#pragma once

#include "device/fences.cuh"

#if defined(RAWNN_PDL) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define RAWNN_PDL_CALL(function) ptx::function()
constexpr bool kProgrammatic = true;  // work before pdl_wait() overlaps with the previous kernel
#else
#define RAWNN_PDL_CALL(function) static_cast<void>(0)
constexpr bool kProgrammatic = false;
#endif

// Returns once every kernel directly before this one has ended and its writes can be seen.
__device__ __forceinline__ void pdl_wait() { RAWNN_PDL_CALL(wait_for_kernels); }

// Lets the kernels behind this one begin, once every block has called it or ended.
__device__ __forceinline__ void pdl_trigger() { RAWNN_PDL_CALL(launch_dependents); }
