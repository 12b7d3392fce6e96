// A loss that is a mean over all elements, as an epilogue of the last layer's GEMM.
#pragma once
#include "persistent/loss.cuh"

// Turns each output into its gradient in the epilogue of a GEMM or of a reduction (pairs, by_pairs), so z is
// never stored and no barrier is needed. Targets are [example][PITCH] in shared memory. There are `count`
// outputs, at most ROWS. `seen` is the tally of the thread, by address, because GEMMs copy their epilogue.
template <typename SHAPE, typename LOSS, int PITCH, int ROWS, typename T, typename SCALING = UnscaledGradient>
struct OutputsLoss {
  T* dz;
  const float* targets;
  int count, present;
  float share;
  Tally* seen;
  SCALING scaled;

  // Pairs of outputs, each of two neighbouring examples from column[] on. All targets are loaded ahead of the
  // first store, as the compiler moves no load across it.
  template <int PAIRS>
  __device__ __forceinline__ void of(const int (&row)[PAIRS], const int (&column)[PAIRS],
                                     const float2 (&z)[PAIRS]) const {
    float2 target[PAIRS] = {}, slope[PAIRS];
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      const float* const from = targets + column[i] * PITCH + row[i];
      if (row[i] < count) target[i] = make_float2(from[0], from[PITCH]);
    }
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      slope[i].x = slope_of(row[i] < count && column[i] < present, z[i].x, target[i].x);
      slope[i].y = slope_of(row[i] < count && column[i] + 1 < present, z[i].y, target[i].y);
    }
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      T* const to = dz + row[i] * SHAPE::kPitch + column[i];
      if (row[i] < count) store_two<SHAPE>(to, slope[i].x, slope[i].y);
    }
  }
  __device__ __forceinline__ float slope_of(bool there, float z, float target) const {
    const float loss = LOSS::loss(z, target);
    const float gradient = LOSS::gradient(z, target) * share;
    seen->loss += there ? loss : 0.0f;
    seen->right += there && LOSS::right(z, target) ? 1 : 0;
    if (!there) return 0.0f;
    return scaled(gradient);
  }
};

// The lower half of a tile of 16 rows is left out if there are no such outputs.
template <typename SHAPE, typename LOSS, int PITCH, int ROWS, typename T, typename SCALING>
__device__ __forceinline__ auto pairs(const OutputsLoss<SHAPE, LOSS, PITCH, ROWS, T, SCALING>& loss) {
  return finish([=](int, int mt, int nt, const float (&sum)[4]) {
    const int row = mt * 16 + lane_index() / 4;
    const int column = nt * 8 + lane_index() % 4 * 2;
    const float2 upper = make_float2(sum[0], sum[1]);
    if constexpr (ROWS > 8) {
      loss.template of<2>({row, row + 8}, {column, column}, {upper, make_float2(sum[2], sum[3])});
    } else {
      loss.template of<1>({row}, {column}, {upper});
    }
  });
}

template <typename SHAPE, typename LOSS, int PITCH, int ROWS, typename T, typename SCALING>
struct ByPairs<OutputsLoss<SHAPE, LOSS, PITCH, ROWS, T, SCALING>> {
  OutputsLoss<SHAPE, LOSS, PITCH, ROWS, T, SCALING> loss;

  __device__ __forceinline__ void operator()(int row, int column, float2 v) const {
    loss.template of<1>({row}, {column}, {v});
  }
  __device__ __forceinline__ void operator()(int row, int column, float4 v) const {
    loss.template of<2>({row, row}, {column, column + 2},
                        {make_float2(v.x, v.y), make_float2(v.z, v.w)});
  }
};
