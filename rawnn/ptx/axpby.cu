// axpby: what two ranks have of a gradient becomes its sum.
//
//   y = a * x + b * y      [rows, cols], each with its own pitch; padding is left alone
//
// template <T>: storage type of both. Scalars: rows, cols (a vector is one row), a, b.
// Launch: one dimension, any size (grid-stride); a thread takes 16 bytes of y.
// Limit: device-memory traffic.
#include "common.cuh"

template <typename T>
__global__ void axpby(T* __restrict__ y, int ldy, const T* __restrict__ x, int ldx, int rows,
                      int cols, float a, float b) {
  pdl_wait();
  pdl_trigger();
  constexpr int N = vector_length<T>();
  const bool wide = vector_aligned<N>(y, ldy) && vector_aligned<N>(x, ldx);
  for_vectors<N>(rows, cols, wide, [&](int row, int column, bool whole, int count) {
    float mine[N];
    float theirs[N];
    load_part<N>(mine, at(y, ldy, row, column), whole, count);
    load_part<N>(theirs, at(x, ldx, row, column), whole, count);
#pragma unroll
    for (int i = 0; i < N; ++i) mine[i] = a * theirs[i] + b * mine[i];
    store_part<N>(at(y, ldy, row, column), mine, whole, count);
  });
}
