// The loss as an epilogue of the last GEMM: z is never stored, and the backward pass need not wait for a
// separate kernel.
//
//   z = alpha * sum + bias,  dz = the loss's gradient of z, as in mse.cu, bce.cu and loss.cu
//
// For a softmax, the LANES neighboring threads that hold a row share it, four columns each; a tile then
// spans all columns. The block writes its sums of the loss and of the correct results to its place among
// the step's partial sums (metrics.cuh).
#pragma once
#include "losses/losses.cuh"
#include "losses/metrics.cuh"
#include "gemm/mma_epilogue.cuh"
#include "losses/softmax.cuh"

// dz [m, n] is TD; t [m, n] TT, or y [m] int32 for a loss of whole rows. bias, loss_scale, overflow and
// correct's parts may be null.
template <typename TD, typename TT, typename LOSS, int LANES>
struct LossEpilogue {
  static constexpr bool kTogether = LOSS::kRows;
  static constexpr bool kReports = true;
  TD* dz;
  int lddz;
  const float* bias;
  const TT* t;
  int ldt;
  const int* y;
  const float* loss_scale;
  int* overflow;
  const int* cursor;
  int offset;
  Parts parts;
  int block;  // its index in the grid
  int m, n;
  float alpha;
  float share{};  // until begin(), the step until ahead()
  int step = 0;
  Tally tally = {0.0f, 0};

  struct Columns {
    float bias[4];
  };
  struct Fetched {
    Four<TT> t;
  };
  static constexpr int kFetchedBytes = sizeof(Fetched);
  struct OfRow {
    float bias[4];
    int label;
  };

  __device__ __forceinline__ void ahead() { step = current_step(cursor, offset); }
  __device__ __forceinline__ void begin() {
    const float scale = loss_scale == nullptr ? 1.0f : loss_scale[0];
    if constexpr (LOSS::kRows) {
      share = 1.0f / static_cast<float>(m) * scale;
    } else {
      share = scale / (static_cast<float>(m) * static_cast<float>(n));
    }
  }

  __device__ __forceinline__ bool whole() const {
    return vector_aligned<4>(dz, lddz) && vector_aligned<4>(bias, 0) &&
           (LOSS::kRows || vector_aligned<4>(t, ldt));
  }

  __device__ __forceinline__ Columns of_columns(int column) const {
    Columns found{};
    if (bias != nullptr) load_part<4>(found.bias, bias + column, column + 4 <= n, n - column);
    return found;
  }

  template <int N, int STEP>
  __device__ __forceinline__ void fetch(Fetched* found, const Passes<STEP>& passes,
                                        int column) const {
    for_passes<N>(passes, t, ldt, column, [&](int i, const TT* from) { found[i].t.load(from); });
  }

  template <int N, int STEP>
  __device__ __forceinline__ void store(const Passes<STEP>& passes, int column,
                                        float (&values)[N][4], const Fetched* found,
                                        const Columns& with) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) values[i][j] = alpha * values[i][j] + with.bias[j];
      float targets[4];
      found[i].t.take(targets);
      of_elements(values[i], passes.exists(i) ? passes.columns : 0, targets);
    }
    store_passes<N>(passes, dz, lddz, column, values);
    if (overflow != nullptr) report_overflow(overflow, poison_of<TD>(passes, values));
  }

  __device__ __forceinline__ void elements(int row, int column, const float (&sums)[4]) {
    const int count = row < m ? n - column : 0;
    if (count <= 0) return;
    float values[4];
    float targets[4];
    load_part<4>(targets, at(t, ldt, row, column), false, count);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[i] = alpha * sums[i] + (bias == nullptr || i >= count ? 0.0f : bias[column + i]);
    }
    of_elements(values, count, targets);
    store_part<4>(at(dz, lddz, row, column), values, false, count);
    if (overflow != nullptr) report_overflow(overflow, poison<TD>(values));
  }

  // What a loss over rows needs of four columns, some of which may not exist.
  template <bool WHOLE>
  __device__ __forceinline__ OfRow fetch_row(int row, int column) const {
    OfRow found{};
    const int count = row < m ? n - column : 0;
    if (count <= 0) return found;
    if (bias != nullptr) load_part<4>(found.bias, bias + column, WHOLE && count >= 4, count);
    found.label = y[row];
    return found;
  }

  template <bool WHOLE>
  __device__ __forceinline__ void store_row(int row, int column, const float (&sums)[4],
                                            const OfRow& found) {
    const int count = row < m ? n - column : 0;
    float values[1][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) values[0][i] = alpha * sums[i] + found.bias[i];
    of_a_row(values, column, count, found.label);
    store_part<4>(at(dz, lddz, row, column), values[0], WHOLE && count >= 4, count);
    if (overflow != nullptr) report_overflow(overflow, poison<TD>(values[0]));
  }

  // All threads call it after their last store.
  __device__ __forceinline__ void report() const { leave_parts(tally, parts, step, block); }

 private:
  // Turns values into the gradient, 0 behind the last column. It has no branch, so that the compiler can
  // overlap elements and rows.
  __device__ __forceinline__ void of_elements(float (&values)[4], int count, const float (&t)[4]) {
    float loss = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool here = i < count;
      const float of_one = LOSS::loss(values[i], t[i]);
      const bool right = LOSS::right(values[i], t[i]);
      const float slope = LOSS::gradient(values[i], t[i]) * share;
      loss += here ? of_one : 0.0f;
      tally.right += here && right ? 1 : 0;
      values[i] = here ? slope : 0.0f;
    }
    tally.loss += loss;
  }

  // The same by all lanes of a row. A label outside the classes makes the loss NaN.
  __device__ __forceinline__ void of_a_row(float (&values)[1][4], int column, int count,
                                           int label) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i >= count) values[0][i] = -infinity();
    }
    float of_label = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) of_label = column + i == label ? values[0][i] : of_label;
    const RowSoftmax softmax = softmax_of_quads<LANES>(values, column / 4);
    const float inverse = 1.0f / softmax.total;
    const bool none = label < 0 || label >= n;
    float labelled = 1.0f;  // if the label is in another thread's columns
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float p = values[0][i] * inverse;
      const bool here = column + i == label;
      labelled = here && i < count ? p : labelled;
      values[0][i] = i < count ? cross_entropy_slope(p, here, share) : 0.0f;
    }
    const bool first = column == 0 && count > 0;
    const float loss = cross_entropy_of(labelled, softmax.largest - of_label, softmax.total);
    tally.loss += first && none ? not_a_number() : loss;
    tally.right += first && !none && softmax.first == label ? 1 : 0;
  }
};
