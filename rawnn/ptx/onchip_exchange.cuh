// What the blocks of a cluster hand to each other: each leaves [rows, kPitch] floats in its shared
// memory, all meet at a barrier (cluster_arrive, cluster_wait), and then each reads what it needs of
// the others. Sums are made in the order of the ranks, so that all blocks get the same bits.
// body(row, column, value, value of the next column) is called for every pair.
// Limit: 1,000 to 1,600 cycles an exchange on an H200, most of it the barrier and one round trip.
#pragma once
#include "onchip_device.cuh"

// Rows `first` .. `first` + `count` - 1 summed over all ranks; ROWS is the largest count.
template <typename SHAPE, int ROWS, typename F>
__device__ __forceinline__ void sum_of_ranks(const float* mine, int first, int count, F body) {
  constexpr int quads = SHAPE::kColumns / 4;
  constexpr int items = ROWS * quads;
  // Few items: several threads share the ranks of one.
  constexpr int shares = SHAPE::kRanks <= 8 ? 1 : items * 4 <= SHAPE::kThreads ? 4
                         : items * 2 <= SHAPE::kThreads ? 2 : 1;
  constexpr int ranks = ceil_div(SHAPE::kRanks, shares);
  constexpr int at_once = ranks < 8 ? ranks : 8;
  constexpr int passes = ceil_div(items * shares, SHAPE::kThreads);
  for (int pass = 0; pass < passes; ++pass) {
    const int j = pass * SHAPE::kThreads + thread_index();
    const int item = j / shares;
    const int share = j % shares;
    const int row = item / quads;
    const int column = item % quads * 4;
    const bool present = item < items && row < count;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (present) {
      const float* p = mine + (first + row) * SHAPE::kPitch + column;
#pragma unroll
      for (int from = 0; from < ranks; from += at_once) {
        float4 v[at_once];
#pragma unroll
        for (int i = 0; i < at_once; ++i) {
          const int rank = share * ranks + from + i;
          v[i] = from + i < ranks && rank < SHAPE::kRanks
                     ? ptx::load_remote4(ptx::in_block(ptx::shared_address(p), rank)) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
#pragma unroll
        for (int i = 0; i < at_once; ++i) {
          sum.x += v[i].x, sum.y += v[i].y, sum.z += v[i].z, sum.w += v[i].w;
        }
      }
    }
#pragma unroll
    for (int step = 1; step < shares; step *= 2) {
      sum.x += __shfl_xor_sync(kFullWarp, sum.x, step);
      sum.y += __shfl_xor_sync(kFullWarp, sum.y, step);
      sum.z += __shfl_xor_sync(kFullWarp, sum.z, step);
      sum.w += __shfl_xor_sync(kFullWarp, sum.w, step);
    }
    if (present && share == 0) {
      body(row, column, sum.x, sum.y);
      body(row, column + 2, sum.z, sum.w);
    }
  }
}

// All ROWS rows, of which each rank holds SLICE: row r is row r % SLICE of rank r / SLICE.
template <typename SHAPE, int ROWS, int SLICE, typename F>
__device__ __forceinline__ void gather_ranks(const float* mine, F body) {
  constexpr int quads = SHAPE::kColumns / 4;
#pragma unroll 2
  for (int i = thread_index(); i < ROWS * quads; i += SHAPE::kThreads) {
    const int row = i / quads;
    const int column = i % quads * 4;
    const unsigned int at = ptx::shared_address(mine + row % SLICE * SHAPE::kPitch + column);
    const float4 v = ptx::load_remote4(ptx::in_block(at, row / SLICE));
    body(row, column, v.x, v.y);
    body(row, column + 2, v.z, v.w);
  }
}
