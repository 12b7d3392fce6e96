// What the kernels of skinny.cu share: products of 16 x 16 and 16 x 8 fragments, and the sum of
// partial products over the warps of a block and the blocks of a cluster. sm_90 and later.
#pragma once
#include "primitives/bulk.cuh"
#include "device/barriers.cuh"
#include "device/cluster.cuh"
#include "device/products.cuh"
#include "device/shared.cuh"
#include "primitives/types.cuh"

namespace skinny {

constexpr int kDeepestRing = 16;  // slots

using ptx::load_shared;
using ptx::multiply;
using ptx::shared_address;
using ptx::store_shared;

// Receive buffer for partial sums from the other blocks of a cluster. `receive` returns when as many bytes as
// `open` announced have arrived. Asynchronous stores signal the barrier themselves (st.async), so no cluster
// barrier is needed, whose release would fence all memory.
struct Mailbox {
  unsigned int barrier;

  // All threads of the block call it; `opened` comes before the first `send`.
  __device__ __forceinline__ void open(unsigned long long* place, int bytes) {
    barrier = shared_address(place);
    if (threadIdx.x == 0) {
      ptx::init_barrier(barrier, 1);
      ptx::publish_barriers();
    }
    __syncwarp();  // racecheck attributes the initialization to all lanes
    if (threadIdx.x == 0) ptx::arrive_expecting(barrier, bytes);
    __syncwarp();
    ptx::arrive_at_cluster_relaxed();
  }

  // Waits until every block of the cluster has started and opened its receive buffer.
  __device__ __forceinline__ void opened() const { ptx::wait_for_cluster(); }

  // Writes to the address of `place` in the shared memory of block `rank` of the cluster.
  __device__ __forceinline__ void send(const float* place, int rank, float4 value) const {
    ptx::send4(ptx::in_block(shared_address(place), rank), value, ptx::in_block(barrier, rank));
  }

  // Acquires at cluster scope, because the stores come from other blocks.
  __device__ __forceinline__ void receive() const { ptx::wait_for_remote(barrier, 0); }
};

__device__ __forceinline__ void add(float4& sum, const float* part) {
  const float4 value = *reinterpret_cast<const float4*>(part);
  sum.x += value.x;
  sum.y += value.y;
  sum.z += value.z;
  sum.w += value.w;
}

// Sums part [SLOTS][BATCH][M + 4] of all blocks of the cluster in a fixed order. One thread calls
// store(row, column, sum, fetched) for each quad of sums, where `fetched` is what fetch(row, column)
// returned, a read of memory that overlaps with the exchange. Block `rank` finishes the columns from
// rank * M / splits on. Other blocks write `inbox`, [splits][BATCH][M / splits], as soon as they are
// done: it must not overlap anything else. M and splits are powers of two, M >= 4 * splits.
template <int M, int BATCH, int SLOTS, int THREADS, typename Fetch, typename Store>
__device__ __forceinline__ void add_up(const float* part, float* inbox, int splits, int rank,
                                       const Mailbox& mailbox, Fetch fetch, Store store) {
  constexpr int pitch = M + 4;
  constexpr int quads = BATCH * M / 4;
  const int thread = static_cast<int>(threadIdx.x);
  const int cut = __ffs(splits) - 1;
  const int width = __ffs(M) - 1 - cut;  // a block's own columns, as the exponent of a power of two
  const auto own = [&](int row, int column) {
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int slot = 0; slot < SLOTS; ++slot) add(sum, part + (slot * BATCH + row) * pitch + column);
    return sum;
  };
  __syncthreads();
  if (splits > 1) {
    mailbox.opened();
#pragma unroll 1
    for (int i = thread; i < quads; i += THREADS) {
      const int row = i / (M / 4);
      const int column = i % (M / 4) * 4;
      const int owner = column >> width;
      mailbox.send(inbox + ((rank * BATCH + row) << width) + column - (owner << width), owner,
                   own(row, column));
    }
  }
#pragma unroll 1
  for (int i = thread; i < quads >> cut; i += THREADS) {
    const int row = (4 * i) >> width;
    const int column = (4 * i) & ((1 << width) - 1);
    const auto fetched = fetch(row, (rank << width) + column);
    float4 sum;
    if (splits > 1) {
      mailbox.receive();
      sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      for (int from = 0; from < splits; ++from) {
        add(sum, inbox + ((from * BATCH + row) << width) + column);
      }
    } else {
      sum = own(row, column);
    }
    store(row, (rank << width) + column, sum, fetched);
  }
}

}  // namespace skinny
