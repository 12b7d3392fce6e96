// The passes of a step in one launch: all layers forward, the loss, and all gradients of inputs, for the
// kernels that are written for a network (passes_source.py).
//
//   a_l = act(a_(l-1) w_l^T + b_l),  z = a_(L-1) w_L^T + b_L,  dz_L = the gradient of the loss of z
//   dz_l = (dz_(l+1) w_(l+1)) * slope(a_l)
//
// a_0 = x [batch, features]; w_l: [outputs, inputs], b_l: float; a_l and dz_l [batch, outputs] go to
// memory, for the updates behind. All are of one type T: float16, bfloat16 or float, whose products are of
// tf32 or, each of three, as exact as float's. The blocks' sums of the loss go to loss_parts[s], and
// correct_parts[s] (metrics.cuh).
//
// A cluster of kRanks blocks has kRows rows of the batch all the way: values lie in shared memory, and each
// block computes a slice of each layer's units for all of them, from weights that it alone of its
// cluster reads, and sends it to all (st.async, counted at barriers). Narrow layers are computed by every
// block. Values of the layer after the next take the place of those that the last product read; whoever
// sends them has heard of all that they were read, as it has their slices of the layer between.
// Rows of weights, of x, a_l and dz_l begin at multiples of 16 bytes. x and y are read ahead of the wait.
// Launch: kRanks * ceil(batch / kRows) blocks of 32 * kWarps, in clusters of kRanks; shared memory as the
// kernel's Places say.
// Limit: the L2 cache, from which each cluster reads all weights twice, and one way from block to block
// a layer.
#pragma once
#include "device/copies.cuh"
#include "passes_finish.cuh"

namespace passes {

__device__ __forceinline__ int thread_index() { return static_cast<int>(threadIdx.x); }

// The rows of x, zeros behind the last feature and the last row.
template <typename SHAPE, int FEATURES, typename T>
__device__ __forceinline__ void fetch_rows(const Here<SHAPE>& here, int values, int pitch, const T* x, int ld) {
  constexpr int pieces = (FEATURES + kChunk<T> - 1) / kChunk<T> * 4;
#pragma unroll 4
  for (int i = thread_index(); i < SHAPE::kRows * pieces; i += 32 * SHAPE::kWarps) {
    const int row = i / pieces;
    const int column = i % pieces * kPiece<T>;
    const int left = row < here.present ? FEATURES - column : 0;
    const int exist = min(max(left * static_cast<int>(sizeof(T)), 0), 16);
    ptx::copy_async(here.at + values + row * pitch + i % pieces * 16,
                    exist > 0 ? at(x, ld, here.first + row, column) : x, exist);
  }
}

// The biases of a part's tiles; zeros where there are none.
template <typename SHAPE>
__device__ __forceinline__ void fetch_biases(const Part<SHAPE>& part, const float* bias) {
  const int units = part.task.rounds * part.task.groups * kTile;
#pragma unroll 1
  for (int i = 4 * thread_index(); i < units; i += 128 * SHAPE::kWarps) {
    const int unit = part.first_unit() + i;
    const int exist = bias == nullptr ? 0 : min(max((part.task.units - unit) * 4, 0), 16);
    ptx::copy_async(part.here.at + part.task.bias + 4 * i, exist > 0 ? bias + unit : bias, exist);
  }
}

// Labels of rows that exist; others' are asked for nothing.
template <typename SHAPE>
__device__ __forceinline__ void fetch_labels(const Here<SHAPE>& here, int to, const int* y) {
  const int row = thread_index();
  if (row >= SHAPE::kRows) return;
  ptx::copy_async<4>(here.at + to + 4 * row, row < here.present ? y + here.first + row : y,
                     row < here.present ? 4 : 0);
}

// What block number `product` made is there for the next product, in all blocks that need it.
template <typename SHAPE>
struct Exchanges {
  unsigned int barriers;  // two, which take turns
  int count = 0;

  __device__ __forceinline__ unsigned int barrier() const { return barriers + count % 2 * 8; }
  __device__ __forceinline__ void hand_over(const Part<SHAPE>& part) {
    if (part.sliced()) {
      meet(barrier(), count / 2 % 2, (part.task.pieces - part.pieces) * 16 * SHAPE::kRows);
      ++count;
    } else {
      __syncthreads();
    }
  }
};

// All products, in the order of `table`: kDepth forward ones, and of all layers but the first those of
// gradients. `lose` makes of the last forward one's sums, in `scratch`, what goes on.
template <typename SHAPE, typename LOSE>
__device__ __forceinline__ void all_products(const Task<typename SHAPE::Element>* table,
                                             Product<SHAPE>& p, const Here<SHAPE>& here,
                                             float4* scratch, int* overflow, LOSE lose) {
  constexpr int kProducts = 2 * SHAPE::kDepth - 1;
  Exchanges<SHAPE> exchanges{here.at};
#pragma unroll 1
  for (int i = 0; i < SHAPE::kDepth; ++i) {
    const Task<typename SHAPE::Element>& task = table[i];
    const int rounds = task.rounds;
#pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
      p.template run<true>(here.at + task.from, task.pitch_from);
      p.leave(scratch, task);
      const bool again = round + 1 < rounds;
      if (again || i + 1 < SHAPE::kDepth) {
        p.template begin<true>(table[again ? i : i + 1], here.rank, again ? round + 1 : 0);
      } else if (SHAPE::kDepth > 1) {
        p.template begin<false>(table[SHAPE::kDepth], here.rank, 0);
      }
      const Part<SHAPE> part(here, task, exchanges.barrier());
      __syncthreads();
      if (i + 1 < SHAPE::kDepth) {
        activate(part, round, scratch);
      } else {
        lose(part, round);
      }
      if (again) __syncthreads();
    }
    if (i + 1 < kProducts) exchanges.hand_over(Part<SHAPE>(here, task, 0u));
  }
#pragma unroll 1
  for (int i = SHAPE::kDepth; i < kProducts; ++i) {
    const Task<typename SHAPE::Element>& task = table[i];
    const int rounds = task.rounds;
#pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
      p.template run<false>(here.at + task.from, task.pitch_from);
      p.leave(scratch, task);
      const bool again = round + 1 < rounds;
      if (again || i + 1 < kProducts) {
        p.template begin<false>(table[again ? i : i + 1], here.rank, again ? round + 1 : 0);
      }
      const Part<SHAPE> part(here, task, exchanges.barrier());
      __syncthreads();
      slope(part, round, scratch, overflow);
      if (again) __syncthreads();
    }
    if (i + 1 < kProducts) exchanges.hand_over(Part<SHAPE>(here, task, 0u));
  }
}

}  // namespace passes
