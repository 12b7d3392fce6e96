// What `rawnn bench floors` times: kernels that do one thing as fast as the GPU can, so that the time
// of a step can be compared with it. Each does its work `rounds` times over; the time of a round is
// the difference between many and few.
//
//   nothing            a launch, or a node of a graph, and nothing else
//   read_memory        sums[thread] = the sum of the words that a thread reads, over all rounds
//   write_memory       y = value
//   copy_memory        y = x
//   fma_chains         sums[thread] = the sum of 8 chains of a = a * scale + shift, 64 a round
//   multiply_tiles<T>  sums[thread] = its part of the sum of 8 chains of c = c + A B, where A [16, E]
//                      and B [E, 8] lie in `words` as fragments (device/products.cuh), 6 words a lane
//   grid_barriers      waits for all blocks of the grid; adds to the counter, which must be 0
//   cluster_barriers   waits for all blocks of a cluster; adds `rounds` to the counter, a block
//   exchanges          each block sends `quads` times 16 bytes to every block of its cluster and waits
//                      for as much of each; sums[thread] is the mean of what came, round by round
//
// x and y hold `count` times 16 bytes. In round r of read_memory block b reads what block b + r does in
// round 0, so that no block finds in the L1 cache what it has read before.
//
// sums has `threads` elements, the launch `blocks` blocks.
//
// Launch: blocks of 256 threads, at most 4 a multiprocessor; grid_barriers is cooperative,
// cluster_barriers in clusters of any size, exchanges in clusters of `size` blocks, with
// 32 * (1 + size * quads) bytes of shared memory.
// Limit: whatever each is named after.
#include "device/barriers.cuh"
#include "device/cluster.cuh"
#include "device/grid.cuh"
#include "device/products.cuh"
#include "device/shared.cuh"
#include "primitives/pdl.cuh"
#include "primitives/types.cuh"

constexpr int kThreads = 256;
constexpr int kAtOnce = 4;  // accesses that a thread has under way
constexpr int kChains = 8;  // enough to hide the latency of a product at 8 warps a scheduler
constexpr int kSteps = 8;   // of each chain in a round of fma_chains

__device__ __forceinline__ int own_thread() {
  return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
}
__device__ __forceinline__ void store(float* __restrict__ sums, int threads, float sum) {
  if (own_thread() < threads) sums[own_thread()] = sum;
}
// The first of the pieces of 16 bytes that this thread reads in a round, and the way to the next.
__device__ __forceinline__ int first_piece(int round) {
  const int block = (static_cast<int>(blockIdx.x) + round) % static_cast<int>(gridDim.x);
  return block * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
}
__device__ __forceinline__ int next_piece() {
  return static_cast<int>(gridDim.x * blockDim.x);
}

__global__ void nothing() {
  pdl_wait();
  pdl_trigger();
}

__global__ void __launch_bounds__(kThreads, 4)
    read_memory(const float* __restrict__ x, float* __restrict__ sums, int count, int threads,
                int rounds) {
  const float4* const pieces = reinterpret_cast<const float4*>(x);
  const int stride = next_piece();
  float sum = 0.0f;
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {
    for (int first = first_piece(round); first < count; first += kAtOnce * stride) {
      float4 found[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const bool there = first < count - i * stride;
        found[i] = there ? pieces[first + i * stride] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) sum += (found[i].x + found[i].y) + (found[i].z + found[i].w);
    }
  }
  store(sums, threads, sum);
}

__global__ void __launch_bounds__(kThreads, 4)
    write_memory(float* __restrict__ y, float value, int count, int rounds) {
  float4* const pieces = reinterpret_cast<float4*>(y);
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {
    for (int i = own_thread(); i < count; i += next_piece()) {
      pieces[i] = make_float4(value, value, value, value);
    }
  }
}

__global__ void __launch_bounds__(kThreads, 4)
    copy_memory(const float* __restrict__ x, float* __restrict__ y, int count, int rounds) {
  const float4* const from = reinterpret_cast<const float4*>(x);
  float4* const to = reinterpret_cast<float4*>(y);
  const int stride = next_piece();
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {
    for (int first = own_thread(); first < count; first += kAtOnce * stride) {
      float4 found[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const bool there = first < count - i * stride;
        found[i] = there ? from[first + i * stride] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first < count - i * stride) to[first + i * stride] = found[i];
      }
    }
  }
}

__global__ void __launch_bounds__(kThreads, 4)
    fma_chains(float* __restrict__ sums, float scale, float shift, int threads, int rounds) {
  float value[kChains];
#pragma unroll
  for (int i = 0; i < kChains; ++i) value[i] = static_cast<float>(i);
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < kChains; ++i) value[i] = fmaf(value[i], scale, shift);
    }
  }
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kChains; ++i) sum += value[i];
  store(sums, threads, sum);
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 4)
    multiply_tiles(float* __restrict__ sums, const unsigned int* __restrict__ words, int threads,
                   int rounds) {
  const unsigned int* const own = words + 6 * (threadIdx.x % 32);
  const unsigned int a[4] = {own[0], own[1], own[2], own[3]};
  const unsigned int b0 = own[4];
  const unsigned int b1 = own[5];
  float c[kChains][4];
#pragma unroll
  for (int i = 0; i < kChains; ++i) {  // each chain its own, or they would be computed once
#pragma unroll
    for (float& sum : c[i]) sum = static_cast<float>(i);
  }
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {
#pragma unroll
    for (int i = 0; i < kChains; ++i) ptx::multiply<T>(c[i], a, b0, b1);
  }
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < kChains; ++i) total += (c[i][0] + c[i][1]) + (c[i][2] + c[i][3]);
  store(sums, threads, total);
}

__global__ void __launch_bounds__(kThreads)
    grid_barriers(unsigned int* counter, int blocks, int rounds) {
#pragma unroll 1
  for (int round = 1; round <= rounds; ++round) {
    ptx::grid_barrier(counter, static_cast<unsigned int>(round * blocks));
  }
}

#if !defined(RAWNN_CHOSEN) || defined(RAWNN_CHOSEN_cluster_barriers)
__global__ void __launch_bounds__(kThreads)
    cluster_barriers(unsigned int* counter, int blocks, int rounds) {
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) ptx::cluster_barrier();
  const bool counts = threadIdx.x == 0 && static_cast<int>(blockIdx.x) < blocks;
  if (counts) ptx::add_release(counter, static_cast<unsigned int>(rounds));
}
#endif

#if !defined(RAWNN_CHOSEN) || defined(RAWNN_CHOSEN_exchanges)
// Two receive buffers alternate, as in persistent/exchange_dsmem.cuh: a block sends exchange i + 2 after it has
// received exchange i + 1 from every block, of which each thread sends its part after it has read exchange i.
// Threads that send nothing take no part: no thread would wait for them, and a thread that comes two phases
// of a barrier late waits forever.
__global__ void __launch_bounds__(kThreads)
    exchanges(float* __restrict__ sums, int size, int quads, int threads, int rounds) {
  const int rank = static_cast<int>(ptx::cluster_rank());
  const int thread = static_cast<int>(threadIdx.x);
  unsigned char* const shared = ptx::dynamic_shared();
  float4* const boxes = reinterpret_cast<float4*>(shared + 32);
  const unsigned int barriers = ptx::shared_address(shared);
  if (thread == 0) {
    ptx::init_barrier(barriers, 1);
    ptx::init_barrier(barriers + 8, 1);
    ptx::publish_barriers();
  }
  ptx::cluster_barrier();
  float value = static_cast<float>(rank);
#pragma unroll 1
  for (int round = 0; round < rounds && thread < quads; ++round) {
    float4* const box = boxes + (round & 1) * size * quads;
    const unsigned int barrier = barriers + (round & 1) * 8;
    if (thread == 0) ptx::arrive_expecting(barrier, size * quads * 16);
    for (int quad = thread; quad < quads; quad += kThreads) {
      const unsigned int place = ptx::shared_address(box + rank * quads + quad);
      for (int i = 0; i < size; ++i) {
        const int to = (rank + i) % size;
        ptx::send4(ptx::in_block(place, to), make_float4(value, value, value, value),
                   ptx::in_block(barrier, to));
      }
    }
    ptx::wait_for_remote(barrier, round >> 1 & 1);
    for (int quad = thread; quad < quads; quad += kThreads) {
      float sum = 0.0f;
      for (int i = 0; i < size; ++i) {
        const float4 came = box[i * quads + quad];
        sum += (came.x + came.y) + (came.z + came.w);
      }
      value = sum / static_cast<float>(4 * size);
    }
  }
  store(sums, threads, value);  // a block has got all that others send it: it may end before they do
}
#endif
