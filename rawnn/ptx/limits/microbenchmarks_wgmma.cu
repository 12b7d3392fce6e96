// What `rawnn bench floors` times of Hopper's tensor cores (sm_90a): products by warpgroups of
// operands that stay where they are in shared memory.
//
//   multiply_panels<T>  sums[thread] = its part of `rounds` times A B', where `words` has A [128, D]
//                       and behind it B [256, D], in rows of 128 bytes: each of two warpgroups
//                       multiplies 64 rows of A with all of B
//   multiply_panels_tf32  the same of floats as tf32, with A in registers and 128 rows of B
//
// A thread sums up the sums that it holds (device/warpgroup.cuh). sums has `threads` elements,
// and `rounds` is at least 1.
//
// Launch: blocks of 256 threads with 50,176 bytes of shared memory, one a multiprocessor.
// Limit: the tensor cores.
#include "device/fences.cuh"
#include "device/shared.cuh"
#include "device/warpgroup.cuh"
#include "primitives/types.cuh"

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "microbenchmarks_wgmma.cu needs the instructions of one architecture: compile it for sm_90a"
#endif

constexpr int kThreads = 256;
constexpr int kRows = 128;        // of A
constexpr int kColumns = 256;     // rows of B
constexpr int kRowWords = 32;     // 128 bytes
constexpr int kSteps = 4;         // of 32 bytes
constexpr int kAlignment = 1024;  // of what is swizzled

// Both panels to shared memory, with the chunks of 16 bytes permuted as the descriptors say.
__device__ __forceinline__ unsigned int load_panels(const unsigned int* __restrict__ words) {
  unsigned char* const shared = ptx::dynamic_shared<unsigned char, kAlignment>();
  unsigned int* const panels = reinterpret_cast<unsigned int*>(shared);
  for (int i = static_cast<int>(threadIdx.x); i < (kRows + kColumns) * kRowWords; i += kThreads) {
    const int row = i / kRowWords;
    const int word = i % kRowWords;
    panels[row * kRowWords + ((word / 4) ^ (row % 8)) * 4 + word % 4] = words[i];
  }
  ptx::fence_proxy_async();
  __syncthreads();
  return ptx::shared_address(shared);
}

// The descriptor of rows of 128 bytes at a step of 32 bytes.
__device__ __forceinline__ unsigned long long rows_at(unsigned int panel, int step) {
  return ptx::descriptor(panel + step * 32, 16, 1024, true);
}

template <int COUNT>
__device__ __forceinline__ void store_sum(float* __restrict__ sums, int threads,
                                          const float (&value)[COUNT]) {
  float total = 0.0f;
#pragma unroll
  for (float part : value) total += part;
  const int thread = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (thread < threads) sums[thread] = total;
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 1)
    multiply_panels(float* __restrict__ sums, const unsigned int* __restrict__ words, int threads,
                    int rounds) {
  const unsigned int panel = load_panels(words);
  const unsigned int a = panel + static_cast<int>(threadIdx.x) / 128 * 64 * 128;
  const unsigned int b = panel + kRows * 128;
  float value[kColumns / 2];  // set by the first product: zeros here would serialise them all
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {
    ptx::fence_products();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      ptx::multiply_async<kColumns, T, T, false, false>(value, rows_at(a, step), rows_at(b, step),
                                                        round + step);
    }
    ptx::commit_products();
    ptx::wait_for_products<1>();
  }
  ptx::wait_for_products<0>();
  ptx::settle(value);
  store_sum(sums, threads, value);
}

__global__ void __launch_bounds__(kThreads, 1)
    multiply_panels_tf32(float* __restrict__ sums, const unsigned int* __restrict__ words,
                         int threads, int rounds) {
  const unsigned int b = load_panels(words) + kRows * 128;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
  unsigned int a[kSteps][4];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = step * 8 + lane % 4 + i / 2 * 4;
      a[step][i] = words[(row + i % 2 * 8) * kRowWords + column];
    }
  }
  float value[64];
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {
    ptx::fence_products();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      ptx::multiply_async<128>(value, a[step], rows_at(b, step), round + step);
    }
    ptx::commit_products();
    ptx::wait_for_products<1>();
  }
  ptx::wait_for_products<0>();
  ptx::settle(value);
  store_sum(sums, threads, value);
}
