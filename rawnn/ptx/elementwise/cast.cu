// cast: a matrix in another storage type, scaled and rounded to nearest even: the working copy of a
// layer's master weights.
//
//   copy[rows, cols] = round(source[rows, cols] * copy_scale), each with its own pitch; padding is unchanged
//
// template <TS, TC>: storage types of source and copy. Scalars: rows, cols (a vector is one
// row), copy_scale (a power of two).
// Updates write the copy themselves; this kernel makes the first one.
// Launch: one dimension, any size (grid-stride); a thread processes vector_length<TS, TC> columns.
// Limit: device-memory traffic.
#include "primitives/common.cuh"

template <typename TS, typename TC>
__global__ void cast(const TS* __restrict__ source, int ldsource, TC* __restrict__ copy, int ldcopy,
                     int rows, int cols, float copy_scale) {
  pdl_wait();
  pdl_trigger();
  constexpr int N = vector_length<TS, TC>();
  const bool wide = vector_aligned<N>(source, ldsource) && vector_aligned<N>(copy, ldcopy);
  for_vectors<N>(rows, cols, wide, [&](int row, int column, bool whole, int count) {
    float values[N];
    load_part<N>(values, at(source, ldsource, row, column), whole, count);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] *= copy_scale;
    store_part<N>(at(copy, ldcopy, row, column), values, whole, count);
  });
}
