// activate, activate_backward: an activation and its gradient.
//
//   activate:          a[rows, cols] = act(z)
//   activate_backward: dz = da * act'(saved)      saved: a of relu and tanh, z of gelu
//   *overflow = 1 where TDZ cannot hold a dz (common.cuh); not looked at where overflow is null
//
// template <TZ, TA, ACTIVATION>, <TDA, TS, TDZ, ACTIVATION>: storage types (types.cuh) of the operands
// in that order, ACTIVATION of activations.cuh. Scalars: rows, cols. In place is allowed (a == z,
// dz == da) if both have the same type. Used by the layer-by-layer step; `fuse` moves both into the
// epilogues of GEMMs.
// Launch: one dimension, any size (grid-stride). A thread processes vector_length neighboring columns
// (16 bytes of the widest operand), so rows * ceil(cols / vector_length) threads cover the matrix.
// Limit: device-memory traffic; for small layers the launch itself.
#include "elementwise/activations.cuh"
#include "primitives/common.cuh"

template <typename TZ, typename TA, typename ACTIVATION>
__global__ void activate(const TZ* z, int ldz, TA* a, int lda, int rows, int cols) {
  pdl_wait();
  pdl_trigger();
  constexpr int N = vector_length<TZ, TA>();
  const bool wide = vector_aligned<N>(z, ldz) && vector_aligned<N>(a, lda);
  for_vectors<N>(rows, cols, wide, [&](int row, int column, bool whole, int count) {
    float values[N];
    load_part<N>(values, at(z, ldz, row, column), whole, count);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = ACTIVATION::apply(values[i]);
    store_part<N>(at(a, lda, row, column), values, whole, count);
  });
}

template <typename TDA, typename TS, typename TDZ, typename ACTIVATION>
__global__ void activate_backward(const TDA* da, int ldda, const TS* saved, int ldsaved, TDZ* dz,
                                  int lddz, int* __restrict__ overflow, int rows, int cols) {
  pdl_wait();
  pdl_trigger();
  constexpr int N = vector_length<TDA, TS, TDZ>();
  const bool wide = vector_aligned<N>(da, ldda) && vector_aligned<N>(saved, ldsaved) &&
                    vector_aligned<N>(dz, lddz);
  for_vectors<N>(rows, cols, wide, [&](int row, int column, bool whole, int count) {
    float values[N];
    float kept[N];
    load_part<N>(values, at(da, ldda, row, column), whole, count);
    load_part<N>(kept, at(saved, ldsaved, row, column), whole, count);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = ACTIVATION::backward(values[i], kept[i]);
    store_part<N>(at(dz, lddz, row, column), values, whole, count);
    if (overflow != nullptr) report_overflow(overflow, poison<TDZ>(values));
  });
}
