// What the twin must refuse, one hazard a kernel, and what it must let pass: RIGHT says which.
#include "device/barriers.cuh"
#include "device/bulk_copies.cuh"
#include "device/cluster.cuh"
#include "device/copies.cuh"
#include "device/fences.cuh"
#include "device/grid.cuh"
#include "device/products.cuh"
#include "device/shared.cuh"
#include "primitives/types.cuh"

// A neighbour's word is read, with a barrier between or without.
template <bool RIGHT>
__global__ void barrier(float* x) {
  __shared__ float words[64];
  words[threadIdx.x] = x[threadIdx.x];
  if (RIGHT) __syncthreads();
  x[threadIdx.x] = words[63 - threadIdx.x];
}

// The last reader must be waited for, too, before the word is written again.
template <bool RIGHT>
__global__ void reuse(float* x) {
  __shared__ float word;
  for (int i = 0; i < 2; ++i) {
    if (threadIdx.x == 0) word = x[i];
    __syncthreads();
    x[64 + 64 * i + threadIdx.x] = word;
    if (RIGHT) __syncthreads();
  }
}

// Shuffles order nobody's stores; __syncwarp() does.
template <bool RIGHT>
__global__ void warp(float* x) {
  __shared__ float words[32];
  words[threadIdx.x] = x[threadIdx.x];
  if (RIGHT) __syncwarp();
  const float sum = __shfl_xor_sync(0xffffffffu, x[threadIdx.x], 1);
  x[threadIdx.x] = words[threadIdx.x ^ 1] + sum;
}

// A matrix's rows 144 bytes apart lie in different banks; 128 bytes apart they share them.
template <bool RIGHT>
__global__ void banks(float* x) {
  unsigned char* const rows = ptx::dynamic_shared<unsigned char>();
  const int i = static_cast<int>(threadIdx.x);
  for (int byte = i; byte < 32 * 144; byte += 32) rows[byte] = 0;
  __syncwarp();
  unsigned int words[4];
  ptx::load_matrices<false>(words, ptx::shared_address(rows + i * (RIGHT ? 144 : 128)));
  x[i] = static_cast<float>(words[0]);
}

// All groups of copies are waited for, or all but one.
template <bool RIGHT>
__global__ void copies(float* x) {
  float* const words = ptx::dynamic_shared<float>();
  const int i = static_cast<int>(threadIdx.x);
  ptx::copy_async<4>(ptx::shared_address(words + i), x + i);
  ptx::commit_copies();
  ptx::copy_async<4>(ptx::shared_address(words + 32 + i), x + 32 + i);
  ptx::commit_copies();
  ptx::wait_for_copies<RIGHT ? 0 : 1>();
  x[64 + i] = words[i] + words[32 + i];
}

// A copy is there for the thread that waited, for others behind a barrier.
template <bool RIGHT>
__global__ void copies_of_others(float* x) {
  float* const words = ptx::dynamic_shared<float>();
  const int i = static_cast<int>(threadIdx.x);
  ptx::copy_async<4>(ptx::shared_address(words + i), x + i);
  ptx::wait_for_all_copies();
  if (RIGHT) __syncthreads();
  x[64 + i] = words[i ^ 1];
}

// 32 words where a tile of the copy engine may lie.
__device__ float* tile() {
  float* const words = ptx::dynamic_shared<float>();
  return words + (128 - ptx::shared_address(words) % 128) / 4;
}

// What threads wrote is stored by the copy engine, behind its fence.
template <bool RIGHT>
__global__ void proxy(float* x, const __grid_constant__ TensorMap x_map) {
  float* const words = tile();
  words[threadIdx.x] = 3.0f;
  if (RIGHT) ptx::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::store_tile(x_map, 0, 0, ptx::shared_address(words));
    ptx::commit_stores();
    ptx::wait_for_stores<0>();
  }
}

// A thread ends with stores under way.
template <bool RIGHT>
__global__ void stores(float* x, const __grid_constant__ TensorMap x_map) {
  float* const words = tile();
  words[threadIdx.x] = 3.0f;
  ptx::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::store_tile(x_map, 0, 0, ptx::shared_address(words));
    ptx::commit_stores();
    if (RIGHT) ptx::wait_for_stores<0>();
  }
}

// As many bytes are announced as come, or fewer: the phase then ends too early.
template <bool RIGHT>
__global__ void bytes(float* x) {
  float* const words = ptx::dynamic_shared<float>();
  __shared__ unsigned long long place;
  const unsigned int barrier = ptx::shared_address(&place);
  if (threadIdx.x == 0) {
    ptx::init_barrier(barrier, 1);
    ptx::publish_barriers();
    ptx::arrive_expecting(barrier, RIGHT ? 128 : 256);
    ptx::load_bulk(ptx::shared_address(words), x, 128, barrier);
  }
  __syncthreads();
  ptx::wait_for(barrier, 0);
  x[64 + threadIdx.x] = words[threadIdx.x];
}

// A barrier is initialised by one thread and used by others behind a barrier of the block.
template <bool RIGHT>
__global__ void initialised(float* x) {
  __shared__ unsigned long long place;
  const unsigned int barrier = ptx::shared_address(&place);
  if (threadIdx.x == 0) ptx::init_barrier(barrier, 32);
  if (RIGHT) __syncthreads();
  x[threadIdx.x] = 1.0f;
  ptx::arrive(barrier);
  ptx::wait_for(barrier, 0);
  x[64 + threadIdx.x] = x[threadIdx.x ^ 1];
}

// Copies count at barriers that were published.
template <bool RIGHT>
__global__ void published(float* x) {
  float* const words = ptx::dynamic_shared<float>();
  __shared__ unsigned long long place;
  const unsigned int barrier = ptx::shared_address(&place);
  if (threadIdx.x == 0) {
    ptx::init_barrier(barrier, 1);
    if (RIGHT) ptx::publish_barriers();
    ptx::arrive_expecting(barrier, 128);
    ptx::load_bulk(ptx::shared_address(words), x, 128, barrier);
  }
  __syncthreads();
  ptx::wait_for(barrier, 0);
  x[64 + threadIdx.x] = words[threadIdx.x];
}

// A block's memory is read by another, behind a barrier of the cluster, and does not end before.
template <bool FIRST, bool LAST>
__global__ void remote(float* x) {
  float* const words = ptx::dynamic_shared<float>();
  words[threadIdx.x] = static_cast<float>(blockIdx.x);
  if (FIRST) ptx::cluster_barrier();
  const unsigned int there =
      ptx::in_block(ptx::shared_address(words + threadIdx.x), ptx::cluster_rank() ^ 1u);
  x[32 * blockIdx.x + threadIdx.x] = ptx::load_remote(there);
  if (LAST) ptx::cluster_barrier();
}

// Bytes sent to another block's barrier, which has to be published; whoever waits for them acquires
// at the scope of the cluster.
template <bool PUBLISHED, bool CLUSTER>
__global__ void sent(float* x) {
  float* const words = ptx::dynamic_shared<float>();
  __shared__ unsigned long long place;
  const unsigned int barrier = ptx::shared_address(&place);
  if (threadIdx.x == 0) {
    ptx::init_barrier(barrier, 1);
    if (PUBLISHED) ptx::publish_barriers();
    ptx::arrive_expecting(barrier, 128);
  }
  __syncwarp();
  ptx::arrive_at_cluster_relaxed();
  ptx::wait_for_cluster();
  const unsigned int rank = ptx::cluster_rank() ^ 1u;
  ptx::send(ptx::in_block(ptx::shared_address(words + threadIdx.x), rank), 7.0f,
            ptx::in_block(barrier, rank));
  if (CLUSTER) {
    ptx::wait_for_remote(barrier, 0);
  } else {
    ptx::wait_for(barrier, 0);
  }
  x[32 * blockIdx.x + threadIdx.x] = words[threadIdx.x];
}

// An arrival at another block's barrier that releases to its own block alone: what was read ahead of it may
// be written by the other, what was written may not.
template <bool RIGHT>
__global__ void arrived(float* x) {
  __shared__ unsigned long long place;
  const unsigned int barrier = ptx::shared_address(&place);
  if (threadIdx.x == 0) {
    ptx::init_barrier(barrier, 32);
    ptx::publish_barriers();
  }
  __syncwarp();
  ptx::arrive_at_cluster_relaxed();
  ptx::wait_for_cluster();
  if (ptx::cluster_rank() == 0) {
    if (RIGHT) {
      x[64 + threadIdx.x] = x[threadIdx.x];
    } else {
      x[threadIdx.x] = 1.0f;
    }
    ptx::arrive_remote_having_read(ptx::in_block(barrier, 1));
  } else {
    ptx::wait_for_remote(barrier, 0);
    x[threadIdx.x] = 2.0f;
  }
  ptx::cluster_barrier();
}

// Blocks wait for each other, and read what the others wrote.
template <bool RIGHT>
__global__ void grid(float* x, unsigned int* counter) {
  const unsigned int place = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned int count = gridDim.x * blockDim.x;
  for (unsigned int round = 0; round < 2; ++round) {
    x[round * count + place] = 1.0f + (round == 0 ? 0.0f : x[(place + blockDim.x) % count]);
    if (RIGHT || round > 0) ptx::grid_barrier(counter, (round + 1) * gridDim.x, 1);
  }
}

// What a block left behind a fence is read by the one that comes last, by a ticket.
template <bool RELEASE, bool ACQUIRE>
__global__ void ticket(float* x, int* counter) {
  x[blockIdx.x] = 1.0f;
  if (RELEASE) __threadfence();
  const bool last = atomicAdd(counter, 1) == static_cast<int>(gridDim.x) - 1;
  if (!last) return;
  if (ACQUIRE) __threadfence();
  for (unsigned int i = 0; i < gridDim.x; ++i) x[8 + i] = x[i];
}

// Atomic operations on shared memory do not conflict with each other, but with a plain read.
template <bool RIGHT>
__global__ void noted(float* x) {
  int* const note = ptx::dynamic_shared<int>();
  if (threadIdx.x == 0) *note = 0;
  __syncthreads();
  atomicExch(note, 1);
  if (RIGHT) __syncthreads();
  x[threadIdx.x] = static_cast<float>(*note);
}

// Beyond an operand, misaligned, beyond an array, shifted too far, a barrier that not all reach.
template <int WHAT>
__global__ void undefined(float* x, int n) {
  const int i = static_cast<int>(threadIdx.x);
  float local[4] = {1.0f, 2.0f, 3.0f, 4.0f};
  if (WHAT == 0) x[i + n] = 1.0f;
  if (WHAT == 1) x[64 + i] = reinterpret_cast<const float4*>(x + n)->x;
  if (WHAT == 2) x[i] = local[i + n];
  if (WHAT == 3) x[i] = static_cast<float>(1 << (i + n));
  if (WHAT == 4 && i < n) __shfl_xor_sync(0xffffffffu, i, 1);
  if (WHAT == 5) ptx::dynamic_shared<float>()[i + n] = 1.0f;
}
