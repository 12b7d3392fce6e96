// The softmax of a row in any layout: in registers of neighboring lanes, in quads or interleaved, or in
// memory. All kernels with a softmax use it, except those that are generated for a network, whose rows
// are columns of shared memory (persistent/loss.cuh).
//
// -infinity stands for a column that does not exist. The maximum ignores a NaN, which comes back through
// the sum: then all probabilities are NaN and the first maximum is at 0, as in NumPy's argmax.
#pragma once
#include "primitives/common.cuh"

// A row whose values have become exp(value - largest): the largest, their sum, and the column of the first
// maximum. A probability is a value over `total`.
struct RowSoftmax {
  float largest;
  float total;
  int first;
};

// The largest value of a row that each of LANES lanes holds QUADS quads of.
template <int LANES, int QUADS>
__device__ __forceinline__ float largest_of_quads(const float (&values)[QUADS][4]) {
  float largest = -infinity();
#pragma unroll
  for (int q = 0; q < QUADS; ++q) {
    largest = fmaxf(largest, fmaxf(fmaxf(values[q][0], values[q][1]),
                                   fmaxf(values[q][2], values[q][3])));
  }
  return warp_max<LANES>(largest);
}

// The first column that holds `largest`; the columns of lane `part` of the LANES begin at 4 * QUADS *
// part. A large number if none does.
template <int LANES, int QUADS>
__device__ __forceinline__ int first_of_quads(const float (&values)[QUADS][4], float largest,
                                              int part) {
  int first = 0x7fffffff;
#pragma unroll
  for (int i = 4 * QUADS - 1; i >= 0; --i) {
    if (values[i / 4][i % 4] == largest) first = 4 * QUADS * part + i;
  }
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2) {
    first = min(first, __shfl_xor_sync(kFullWarp, first, step));
  }
  return first;
}

// The softmax of a row in quads, in place.
template <int LANES, int QUADS>
__device__ __forceinline__ RowSoftmax softmax_of_quads(float (&values)[QUADS][4], int part) {
  const float largest = largest_of_quads<LANES>(values);
  const int first = first_of_quads<LANES>(values, largest, part);
  float total = 0.0f;
#pragma unroll
  for (int q = 0; q < QUADS; ++q) {
#pragma unroll
    for (int i = 0; i < 4; ++i) values[q][i] = expf(values[q][i] - largest);
    total += (values[q][0] + values[q][1]) + (values[q][2] + values[q][3]);
  }
  total = warp_sum<LANES>(total);
  return {largest, total, total == total ? first : 0};
}

// The softmax of a row interleaved over a warp, in place: a lane's value i is column 32 * i + lane.
// LANES, a power of two, is the number of lanes that hold any.
template <int LANES, int N>
__device__ __forceinline__ RowSoftmax softmax_in_turns(float (&values)[N]) {
  float largest = -infinity();
#pragma unroll
  for (int i = 0; i < N; ++i) largest = fmaxf(largest, values[i]);
  largest = warp_max<LANES>(largest);
  int first = 0;
  float total = 0.0f;
#pragma unroll
  for (int i = N - 1; i >= 0; --i) {
    const unsigned int here = __ballot_sync(kFullWarp, values[i] == largest);
    if (here != 0u) first = 32 * i + __ffs(static_cast<int>(here)) - 1;
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {
    values[i] = expf(values[i] - largest);
    total += values[i];
  }
  total = warp_sum<LANES>(total);
  return {largest, total, total == total ? first : 0};
}

// The sum of exp(value(column) - largest) over the `cols` columns of a row that LANES neighboring lanes
// share.
template <int LANES, typename VALUE>
__device__ __forceinline__ float sum_of_powers(VALUE value, int cols, float largest, int lane) {
  float total = 0.0f;
#pragma unroll 4
  for (int column = lane; column < cols; column += LANES) total += expf(value(column) - largest);
  return warp_sum<LANES>(total);
}

// The cross-entropy of a row of `logits` whose class has the probability p, by one thread: it reads the row
// only where p is below FLT_MIN.
__device__ __forceinline__ float cross_entropy_of_row(float p, const float* __restrict__ logits, int label,
                                                      int cols) {
  if (!(p < kSmallestNormal)) return -logf(p);
  float largest = -infinity();
  for (int column = 0; column < cols; ++column) largest = fmaxf(largest, logits[column]);
  const float total = sum_of_powers<1>([&](int column) { return logits[column]; }, cols, largest, 0);
  return cross_entropy_of(p, largest - logits[label], total);
}

// The contribution of a row's cross-entropy to the gradient at a column of probability p; `share` is the
// weight of the row.
__device__ __forceinline__ float cross_entropy_slope(float p, bool labelled, float share) {
  return (p - (labelled ? 1.0f : 0.0f)) * share;
}
