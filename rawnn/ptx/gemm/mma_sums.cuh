// From the sums in the registers of a block's warps to its epilogue, through shared memory. Partial sums
// over the inner dimension, of other warps and of the cluster's other blocks, are added in a fixed order.
// The threads then process four neighboring columns each. Shared by all main loops of gemm_kernels.cuh.
//
// Each block of a cluster finishes some rows of the tile. A block adds up its own warps' partial sums and
// sends the rows that another block finishes to that one's receive buffer ("inbox"), which has no other
// use. What arrives counts its bytes at a barrier there. That avoids a cluster barrier, whose release
// would fence all memory, and reads of remote shared memory.
#pragma once
#include "device/barriers.cuh"
#include "device/cluster.cuh"
#include "gemm/mma_copy.cuh"

// The stages of the inner dimension that this block computes.
template <typename TILE>
struct Share {
  int begin = 0;
  int stages;
  __device__ __forceinline__ explicit Share(int all) : stages(all) {
    if constexpr (TILE::kCluster > 1) {
      const int rank = static_cast<int>(ptx::cluster_rank());
      begin = all * rank / TILE::kCluster;
      stages = all * (rank + 1) / TILE::kCluster - begin;
    }
  }
};

// A block's sums in shared memory: one part for every warp along the inner dimension, each
// [BM, BN + 8], where column BN holds the sums of the bias. The eight words of padding put a fragment's
// eight rows into different banks. In a cluster the receive buffer is behind the parts and the OPERANDS
// bytes of tiles. It is [CLUSTER, kRows, BN + 8], the rows that this block finishes from every block,
// and the barrier that counts their bytes follows it. If OPERANDS is 0 both overwrite tiles, and are
// opened once their block has finished with them.
template <typename TILE, int OPERANDS>
struct Sums {
  static constexpr int kPitch = TILE::kN + 8;
  static constexpr int kPart = TILE::kM * kPitch;
  static constexpr int kBytes = TILE::kWarpsK * kPart * static_cast<int>(sizeof(float));
  static constexpr int kInbox = kBytes > OPERANDS ? kBytes : OPERANDS;  // offset of the receive buffer
  static constexpr int kRows =  // rows that this block finishes
      (TILE::kM + TILE::kCluster - 1) / TILE::kCluster;
  static constexpr int kInRow = TILE::kN / 4;
  static constexpr int kQuads = kRows * kInRow;
  static constexpr int kPasses = (kQuads + TILE::kThreads - 1) / TILE::kThreads;
  static constexpr int kStep = TILE::kThreads / kInRow;  // rows between a thread's quads
  static_assert(TILE::kThreads % kInRow == 0, "a thread has the same columns in every pass");

  int first;  // row of the tile
  __device__ __forceinline__ Sums() {
    first = TILE::kCluster == 1 ? 0 : static_cast<int>(ptx::cluster_rank()) * kRows;
  }

  __device__ __forceinline__ bool inside(int pass, int thread) const {
    if (kQuads % TILE::kThreads != 0 && thread + pass * TILE::kThreads >= kQuads) return false;
    return TILE::kM % TILE::kCluster == 0 || row(pass, thread) < TILE::kM;
  }
  __device__ __forceinline__ int row(int pass, int thread) const {
    return first + (thread + pass * TILE::kThreads) / kInRow;
  }
  __device__ __forceinline__ int end() const { return min(first + kRows, TILE::kM); }
  static __device__ __forceinline__ int column(int pass, int thread) {
    return (thread + pass * TILE::kThreads) % kInRow * 4;
  }

  // Opens the receive buffer, before everything else if nothing else uses its memory.
  template <bool BIAS>
  __device__ __forceinline__ void open(bool biased, int thread) const {
    if constexpr (TILE::kCluster > 1) {
      if (thread == 0) {
        ptx::init_barrier(counter(), 1);
        ptx::publish_barriers();
        const int rows = min(kRows, TILE::kM - first);
        const int row_bytes = (TILE::kN + (BIAS && biased ? 1 : 0)) * 4;
        if (rows > 0) ptx::arrive_expecting(counter(), TILE::kCluster * rows * row_bytes);
      }
      __syncwarp();
      if constexpr (OPERANDS == 0) {
        ptx::arrive_at_cluster();  // this block has finished with the memory it overwrites
      } else {
        ptx::arrive_at_cluster_relaxed();
      }
    }
  }

  // Called between writing the parts, at the start of dynamic shared memory, and reading them.
  template <bool BIAS>
  __device__ __forceinline__ void ready(bool biased, int thread) const {
    __syncthreads();
    if constexpr (TILE::kCluster > 1) {
      if constexpr (OPERANDS == 0) open<BIAS>(biased, thread);
      ptx::wait_for_cluster();  // all blocks have opened their receive buffers
      hand_out<BIAS>(biased, thread);
      if (first < TILE::kM) ptx::wait_for_remote(counter(), 0);
    }
  }

  // The sum of a row of op(a).
  __device__ __forceinline__ float bias(int row) const {
    float sum = 0.0f;
#pragma unroll
    for (int from = 0; from < kAdded; ++from) sum += here(from, row, TILE::kN)[0];
    return sum;
  }

  // The sums of four columns from `column` on.
  __device__ __forceinline__ void add_up(float (&values)[4], int row, int column) const {
    add<kAdded>(values, here(0, row, column), kApart);
  }

 private:
  static constexpr int kAdded = TILE::kCluster == 1 ? TILE::kWarpsK : TILE::kCluster;
  static constexpr int kApart = TILE::kCluster == 1 ? kPart : kRows * kPitch;

  __device__ __forceinline__ const float* here(int from, int row, int column) const {
    constexpr int kOffset = TILE::kCluster == 1 ? 0 : kInbox;
    return reinterpret_cast<const float*>(dynamic_shared() + kOffset) + from * kApart +
           (row - first) * kPitch + column;
  }

  template <int COUNT>
  static __device__ __forceinline__ void add(float (&values)[4], const float* from, int apart) {
    load_values<4>(values, from);
#pragma unroll
    for (int part = 1; part < COUNT; ++part) {
      float more[4];
      load_values<4>(more, from + part * apart);
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] += more[i];
    }
  }

  static __device__ __forceinline__ unsigned int counter() {
    return ptx::shared_address(dynamic_shared() + kInbox) + TILE::kCluster * kApart * 4;
  }

  // Sends each row's sums over this block's parts to the block that finishes the row.
  template <bool BIAS>
  static __device__ __forceinline__ void hand_out(bool biased, int thread) {
    const float* const parts = reinterpret_cast<const float*>(dynamic_shared());
    const unsigned int inbox =
        ptx::shared_address(dynamic_shared() + kInbox) + ptx::cluster_rank() * (kApart * 4);
    constexpr int kAll = TILE::kM * kInRow;
    constexpr int kEach = (kAll + TILE::kThreads - 1) / TILE::kThreads;
    constexpr int kAtOnce = kEach < 4 ? kEach : 4;  // loads from shared memory in flight
    constexpr bool kExact = kAll % (kAtOnce * TILE::kThreads) == 0;
#pragma unroll 1
    for (int first = thread; first < kAll; first += kAtOnce * TILE::kThreads) {
      float values[kAtOnce][4] = {};
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int quad = first + i * TILE::kThreads;
        if (!kExact && quad >= kAll) break;
        add<TILE::kWarpsK>(values[i], parts + quad / kInRow * kPitch + quad % kInRow * 4, kPart);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int quad = first + i * TILE::kThreads;
        if (!kExact && quad >= kAll) break;
        const int row = quad / kInRow;
        ptx::send4(place(inbox, row, quad % kInRow * 4),
                   make_float4(values[i][0], values[i][1], values[i][2], values[i][3]),
                   counter_of(row));
      }
    }
    if constexpr (BIAS) {
      if (!biased) return;
      for (int row = thread; row < TILE::kM; row += TILE::kThreads) {
        float sum = 0.0f;
#pragma unroll
        for (int part = 0; part < TILE::kWarpsK; ++part) {
          sum += parts[part * kPart + row * kPitch + TILE::kN];
        }
        ptx::send(place(inbox, row, TILE::kN), sum, counter_of(row));
      }
    }
  }
  static __device__ __forceinline__ unsigned int counter_of(int row) {
    return ptx::in_block(counter(), static_cast<unsigned int>(row / kRows));
  }
  static __device__ __forceinline__ unsigned int place(unsigned int inbox, int row, int column) {
    return ptx::in_block(inbox + (row % kRows * kPitch + column) * 4,
                         static_cast<unsigned int>(row / kRows));
  }
};
