// Losses that are a mean over all elements of z and t, shared by mse.cu and bce.cu.
#pragma once
#include "losses/losses.cuh"
#include "losses/metrics.cuh"

// Tallies this thread's elements. Unless dz is null it stores their gradients: those of the mean, times
// loss_scale[0].
template <typename LOSS, typename TT, typename TD>
__device__ __forceinline__ Tally pointwise(const float* __restrict__ z, int ldz,
                                           const TT* __restrict__ t, int ldt, TD* dz, int lddz,
                                           const float* __restrict__ loss_scale,
                                           int* __restrict__ overflow, int rows, int cols,
                                           bool counts) {
  constexpr int N = vector_length<float, TT, TD>();
  const bool wide =
      vector_aligned<N>(z, ldz) && vector_aligned<N>(t, ldt) && vector_aligned<N>(dz, lddz);
  const float scale = loss_scale == nullptr ? 1.0f : loss_scale[0];
  const float share = scale / (static_cast<float>(rows) * static_cast<float>(cols));
  Tally tally = {0.0f, 0};
  for_vectors<N>(rows, cols, wide, [&](int row, int column, bool whole, int count) {
    float values[N];
    float targets[N];
    load_part<N>(values, at(z, ldz, row, column), whole, count);
    load_part<N>(targets, at(t, ldt, row, column), whole, count);
    float loss = 0.0f;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i < count) {
        loss += LOSS::loss(values[i], targets[i]);
        if (counts) tally.right += LOSS::right(values[i], targets[i]) ? 1 : 0;
      }
      values[i] = i < count ? LOSS::gradient(values[i], targets[i]) * share : 0.0f;
    }
    tally.loss += loss;
    if (dz != nullptr) {
      store_part<N>(at(dz, lddz, row, column), values, whole, count);
      if (overflow != nullptr) report_overflow(overflow, poison<TD>(values));
    }
  });
  return tally;
}

// The kernels' body. The step is read first, so that its latency overlaps with the elements.
template <typename LOSS, typename TT, typename TD>
__device__ __forceinline__ void report_pointwise(
    const float* __restrict__ z, int ldz, const TT* __restrict__ t, int ldt,
    const int* __restrict__ cursor, int offset, TD* dz, int lddz,
    const float* __restrict__ loss_scale, int* __restrict__ overflow,
    int* __restrict__ workspace, float* loss, int* correct, int rows, int cols,
    const Parts& parts = {}) {
  const int step = current_step(cursor, offset);
  const Tally tally = pointwise<LOSS>(z, ldz, t, ldt, dz, lddz, loss_scale, overflow, rows, cols,
                                      correct != nullptr || parts.correct != nullptr);
  report_tally(tally, workspace, step, static_cast<float>(rows) * static_cast<float>(cols), loss,
               correct, parts);
}
