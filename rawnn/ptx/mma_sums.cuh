// From the sums in the registers of a block's warps to its epilogue, through shared memory: parts
// of the inner dimension, of other warps and of the other blocks of a cluster, are added up in a
// fixed order, and the threads then take four neighbouring columns each. Shared by all main loops of
// product_kernels.cuh.
#pragma once
#include "device/cluster.cuh"
#include "mma_copy.cuh"

// Four floats at `address` of this block's shared memory, read from that of block `rank`.
__device__ __forceinline__ void load_of_rank(float (&values)[4], unsigned int address, int rank) {
  const float4 found =
      ptx::load_remote4(ptx::in_block(address, static_cast<unsigned int>(rank)));
  values[0] = found.x;
  values[1] = found.y;
  values[2] = found.z;
  values[3] = found.w;
}

// The stages of the inner dimension that are this block's.
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
// [BM, BN + 8], where column BN holds the sums of the bias. Eight words of padding: a fragment's
// eight rows then lie in different banks.
template <typename TILE>
struct Sums {
  static constexpr int kPitch = TILE::kN + 8;
  static constexpr int kPart = TILE::kM * kPitch;
  static constexpr int kBytes = TILE::kWarpsK * kPart * static_cast<int>(sizeof(float));
  static constexpr int kRows =  // that this block finishes
      (TILE::kM + TILE::kCluster - 1) / TILE::kCluster;
  static constexpr int kInRow = TILE::kN / 4;
  static constexpr int kQuads = kRows * kInRow;
  static constexpr int kPasses = (kQuads + TILE::kThreads - 1) / TILE::kThreads;

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
  static __device__ __forceinline__ int column(int pass, int thread) {
    return (thread + pass * TILE::kThreads) % kInRow * 4;
  }

  // Between the writing of the parts and their reading.
  static __device__ __forceinline__ void ready() {
    if constexpr (TILE::kCluster == 1) {
      __syncthreads();
    } else {
      ptx::cluster_barrier();
    }
  }
  // A block must not end while others read its parts.
  static __device__ __forceinline__ void done() {
    if constexpr (TILE::kCluster > 1) ptx::cluster_barrier();
  }

  // The sum of a row of op(a).
  static __device__ __forceinline__ float bias(const float* parts, int row) {
    const float* const here = parts + row * kPitch + TILE::kN;
    float sum = 0.0f;
#pragma unroll
    for (int rank = 0; rank < TILE::kCluster; ++rank) {
#pragma unroll
      for (int part = 0; part < TILE::kWarpsK; ++part) {
        if constexpr (TILE::kCluster == 1) {
          sum += here[part * kPart];
        } else {
          float four[4];  // the first is meant
          load_of_rank(four, ptx::shared_address(here + part * kPart), rank);
          sum += four[0];
        }
      }
    }
    return sum;
  }

  // The sums of four columns from `column` on.
  static __device__ __forceinline__ void add_up(float (&values)[4], const float* parts, int row,
                                                int column) {
    const float* const here = parts + row * kPitch + column;
#pragma unroll
    for (int rank = 0; rank < TILE::kCluster; ++rank) {
#pragma unroll
      for (int part = 0; part < TILE::kWarpsK; ++part) {
        float more[4];
        if constexpr (TILE::kCluster == 1) {
          load_values<4>(more, here + part * kPart);
        } else {
          load_of_rank(more, ptx::shared_address(here + part * kPart), rank);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) values[i] = rank + part == 0 ? more[i] : values[i] + more[i];
      }
    }
  }
};

// A block's epilogue. Where rows allow it, what it reads from memory is fetched while the product is
// computed, if no more than EARLY bytes have to wait in registers. Otherwise it works element by
// element, in a loop: less code.
template <typename TILE, typename EPILOGUE, int EARLY = 128>
struct Finish {
  using Fetched = typename EPILOGUE::Fetched;
  static constexpr int kPasses = Sums<TILE>::kPasses;
  static constexpr bool kEarly = kPasses * static_cast<int>(sizeof(Fetched)) <= EARLY;

  const EPILOGUE& epilogue;
  const Sums<TILE> sums;
  const int m0, n0, thread;
  const bool whole;
  Fetched fetched[kEarly ? kPasses : 1];

  // (m0, n0): the tile's place in the result.
  __device__ __forceinline__ Finish(const EPILOGUE& with, int row, int column, int index)
      : epilogue(with), m0(row), n0(column), thread(index),
        whole(with.whole()) {
    if (kEarly && whole) {
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        if (sums.inside(pass, thread)) {
          fetched[pass] = epilogue.template fetch<true>(m0 + sums.row(pass, thread),
                                                        n0 + sums.column(pass, thread));
        }
      }
    }
  }

  // `parts` is written by all threads; all of them call this. Where `biased`, with the bias, whose
  // sums stand behind the last column of every part.
  template <bool BIAS>
  __device__ __forceinline__ void run(const float* parts, bool biased) {
    sums.ready();
    if (whole) {
#pragma unroll(kEarly ? kPasses : 4)
      for (int pass = 0; pass < kPasses; ++pass) {
        if (sums.inside(pass, thread)) finish<true>(parts, pass);
      }
    } else {
#pragma unroll 1
      for (int pass = 0; pass < kPasses; ++pass) {
        if (sums.inside(pass, thread)) finish<false>(parts, pass);
      }
    }
    if constexpr (BIAS) {
      if (biased) {
        for (int row = sums.first + thread; row < min(sums.first + Sums<TILE>::kRows, TILE::kM);
             row += TILE::kThreads) {
          epilogue.store_bias(m0 + row, sums.bias(parts, row));
        }
      }
    }
    sums.done();
  }

 private:
  template <bool WHOLE>
  __device__ __forceinline__ void finish(const float* parts, int pass) {
    const int row = sums.row(pass, thread);
    const int column = sums.column(pass, thread);
    float values[4];
    sums.add_up(values, parts, row, column);
    if constexpr (WHOLE && kEarly) {
      epilogue.template store<true>(m0 + row, n0 + column, values, fetched[pass]);
    } else {
      epilogue.template store<WHOLE>(m0 + row, n0 + column, values,
                                     epilogue.template fetch<WHOLE>(m0 + row, n0 + column));
    }
  }
};
