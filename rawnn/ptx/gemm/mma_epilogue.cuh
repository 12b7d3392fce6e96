// The epilogues of a GEMM, which process its sums; shared by all main loops of gemm_kernels.cuh.
//
//   GemmEpilogue: c = act(alpha * sum + beta * c + bias) * slope(saved), and pre, the input of act
//   UpdateEpilogue:  the step of an optimizer with the gradient sum / loss_scale (mma_update.cuh)
//   LossEpilogue:    the gradient of a loss of alpha * sum + bias, and the block's partial sums of the
//                    loss and of the correct results (mma_loss.cuh)
//
// A thread receives the sums of four neighboring columns at a time, in an order in which a warp touches
// whole rows; it has the same four columns in all of its rows (Passes). The calls are, in order:
//   ahead       work before pdl_wait, with data that no kernel directly before writes
//   begin       memory may be read from here on
//   of_columns  fetches what serves all rows of a thread; then the operands of each row are fetched, so
//               that these reads overlap with the GEMM
//   store       stores some rows at once
// Between a row's sums and its stores all branches are the same for all rows, so that the compiler lets
// rows overlap: each is an access to shared memory, dozens of dependent instructions, and a store. This
// is for rows that allow four columns to be accessed at once, as `whole` determines. Their padding stands
// in for the missing ones of the last four columns; it is read, not written. Other rows are processed by
// element (`elements`). If kTogether, all threads of a block call the store, also for rows behind the
// last, and it is a different one (mma_loss.cuh). If kReports, every thread finally calls `report`.
#pragma once
#include "elementwise/activations.cuh"
#include "primitives/common.cuh"

// The rows of the result that a thread finishes: `first` and every STEP-th after it, before `end`.
// `columns` of its four columns exist, in all of them.
template <int STEP>
struct Passes {
  int first, end, columns;
  __device__ __forceinline__ bool full() const { return columns >= 4; }
  __device__ __forceinline__ int row(int pass) const { return first + pass * STEP; }
  __device__ __forceinline__ bool exists(int pass) const { return row(pass) < end; }
};

// Four elements as they lie in memory.
template <typename T>
struct Four {
  unsigned int words[sizeof(T)];
  __device__ __forceinline__ void load(const T* from) { load_words(words, from); }
  __device__ __forceinline__ void take(float (&values)[4]) const {
    words_to_values<T>(values, words);
  }
};

// Calls body(pass, pointer to the pass's four columns) for those of N passes that exist.
template <int N, int STEP, typename T, typename BODY>
__device__ __forceinline__ void for_passes(const Passes<STEP>& passes, T* matrix, int ld,
                                           int column, BODY body) {
  T* place = at(matrix, ld, passes.first, column);
  const long long apart = static_cast<long long>(ld) * STEP;
#pragma unroll
  for (int pass = 0; pass < N; ++pass) {
    if (passes.exists(pass)) body(pass, place);
    place += apart;
  }
}

// Writes the existing ones of N passes' four columns, which are fewer than four.
template <int N, int STEP, typename T>
__device__ __forceinline__ void store_some(const Passes<STEP>& passes, T* matrix, int ld, int column,
                                           const float (&values)[N][4]) {
  for_passes<N>(passes, matrix, ld, column, [&](int i, T* to) {
#pragma unroll
    for (int j = 0; j < 3; ++j) {
      if (j < passes.columns) to[j] = from_float<T>(values[i][j]);
    }
  });
}

template <int N, int STEP, typename T>
__device__ __forceinline__ void store_passes(const Passes<STEP>& passes, T* matrix, int ld,
                                             int column, const float (&values)[N][4]) {
  if (passes.full()) {
    for_passes<N>(passes, matrix, ld, column,
                  [&](int i, T* to) { store_values<4>(to, values[i]); });
  } else {
    store_some<N>(passes, matrix, ld, column, values);
  }
}

// NaN if any of `values` overflows as T, of the columns that exist.
template <typename T, int N, int STEP>
__device__ __forceinline__ float poison_of(const Passes<STEP>& passes,
                                           const float (&values)[N][4]) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < N; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float of_one = poison<T>(values[i][j]);
      sum += passes.exists(i) && j < passes.columns ? of_one : 0.0f;
    }
  }
  return sum;
}

// c [m, n] is TC, saved and pre [m, n] TS; bias, pre and overflow may be null; c is read only if
// beta != 0.
template <typename TC, typename TS, typename ACTIVATION, typename SLOPE>
struct GemmEpilogue {
  static constexpr bool kTogether = false;
  static constexpr bool kReports = false;
  TC* c;
  int ldc;
  const float* bias;
  const TS* saved;
  int ldsaved;
  TS* pre;
  int ldpre;
  int* overflow;
  int m, n;
  float alpha, beta;

  struct Columns {
    float bias[4];
  };
  struct Fetched {
    Four<TS> saved;
  };
  static constexpr int kFetchedBytes = SLOPE::kIdentity ? 0 : sizeof(Fetched);

  __device__ __forceinline__ void ahead() {}
  __device__ __forceinline__ void begin() {}

  __device__ __forceinline__ bool whole() const {
    return vector_aligned<4>(c, ldc) && vector_aligned<4>(bias, 0) &&
           (SLOPE::kIdentity || vector_aligned<4>(saved, ldsaved)) &&
           (pre == nullptr || vector_aligned<4>(pre, ldpre));
  }

  __device__ __forceinline__ Columns of_columns(int column) const {
    Columns found{};
    if (bias != nullptr) load_part<4>(found.bias, bias + column, column + 4 <= n, n - column);
    return found;
  }

  template <int N, int STEP>
  __device__ __forceinline__ void fetch(Fetched* found, const Passes<STEP>& passes,
                                        int column) const {
    if constexpr (!SLOPE::kIdentity) {
      for_passes<N>(passes, saved, ldsaved, column,
                    [&](int i, const TS* from) { found[i].saved.load(from); });
    }
  }

  template <int N, int STEP>
  __device__ __forceinline__ void store(const Passes<STEP>& passes, int column,
                                        float (&values)[N][4], const Fetched* found,
                                        const Columns& with) const {
#pragma unroll
    for (int i = 0; i < N; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) values[i][j] = alpha * values[i][j] + with.bias[j];
    }
    if (beta != 0.0f) {
      for_passes<N>(passes, c, ldc, column, [&](int i, const TC* from) {
        float before[4];
        load_values<4>(before, from);
#pragma unroll
        for (int j = 0; j < 4; ++j) values[i][j] += beta * before[j];
      });
    }
    if (pre != nullptr) store_passes<N>(passes, pre, ldpre, column, values);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      float slopes[4] = {};
      if constexpr (!SLOPE::kIdentity) found[i].saved.take(slopes);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        values[i][j] = SLOPE::backward(ACTIVATION::apply(values[i][j]), slopes[j]);
      }
    }
    store_passes<N>(passes, c, ldc, column, values);
    if (overflow != nullptr) report_overflow(overflow, poison_of<TC>(passes, values));
  }

  __device__ __forceinline__ void elements(int row, int column, const float (&sums)[4]) const {
    const int count = row < m ? n - column : 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i >= count) break;
      float value = alpha * sums[i] + (bias == nullptr ? 0.0f : bias[column + i]);
      if (beta != 0.0f) value += beta * to_float(*at(c, ldc, row, column + i));
      if (pre != nullptr) *at(pre, ldpre, row, column + i) = from_float<TS>(value);
      float slope = 0.0f;
      if constexpr (!SLOPE::kIdentity) slope = to_float(*at(saved, ldsaved, row, column + i));
      value = SLOPE::backward(ACTIVATION::apply(value), slope);
      *at(c, ldc, row, column + i) = from_float<TC>(value);
      if (overflow != nullptr) report_overflow(overflow, poison<TC>(value));
    }
  }
};
