// Runs a block's epilogue on its sums, which are in shared memory (mma_sums.cuh), four columns at a time.
// Shared by all main loops of gemm_kernels.cuh.
//
// If rows allow it, the epilogue's operands are fetched early. Those of as many rows as EARLY bytes hold
// are fetched during the GEMM, when registers are scarce. More are fetched once the sums have left the
// registers, before the partial sums are added. One access to memory after the other, row by row, would
// take as long as everything else. Otherwise a loop works element by element, which is less code.
#pragma once
#include "gemm/mma_epilogue.cuh"
#include "gemm/mma_sums.cuh"

struct NoBias {};
template <typename EPILOGUE, bool BIAS>
struct BiasOf {
  using Type = NoBias;
};
template <typename EPILOGUE>
struct BiasOf<EPILOGUE, true> {
  using Type = typename EPILOGUE::OfBias;
};

template <typename TILE, typename EPILOGUE, typename PARTS, int EARLY = 0,
          bool TOGETHER = EPILOGUE::kTogether>
struct Finish {
  using Fetched = typename EPILOGUE::Fetched;
  using Columns = typename EPILOGUE::Columns;
  static constexpr int kPasses = PARTS::kPasses;
  static constexpr int kStep = PARTS::kStep;
  static constexpr int kBytes = EPILOGUE::kFetchedBytes;  // of each row
  static constexpr int kFew =  // with 512 threads each has 128 registers
      TILE::kThreads > 256 && kBytes > 32 ? 2 : 4;
  static constexpr int kAtOnce = kPasses < kFew ? kPasses : kFew;
  static constexpr bool kAll = kPasses * kBytes <= 128;
  static constexpr int kKept = kAll ? (kPasses + kAtOnce - 1) / kAtOnce * kAtOnce : kAtOnce;
  static constexpr int kFit = kBytes == 0 ? 0 : EARLY / (kBytes == 0 ? 1 : kBytes);
  static constexpr int kAhead = kFit < kKept ? kFit : kKept;

  EPILOGUE& epilogue;
  const PARTS sums;
  const int m0, n0, thread;
  const bool whole;  // the epilogue can process four columns at once
  Fetched fetched[kKept];
  Columns columns;

  // (m0, n0) is the tile's place in the result.
  __device__ __forceinline__ Finish(EPILOGUE& with, int row, int column, int index)
      : epilogue(with), m0(row), n0(column), thread(index), whole(with.whole()), columns{} {
    if constexpr (EARLY > 0) {
      if (!whole) return;
      columns = epilogue.of_columns(this->column());
      fetch<0, kAhead>();
    }
  }

  // All threads write the partial sums, so all of them call this. If `biased`, the bias is included; its
  // sums are behind the last column of every part.
  template <bool BIAS>
  __device__ __forceinline__ void run(bool biased) {
    static_assert(PARTS::kRows <= TILE::kThreads, "a thread for each row");
    const int bias_row = sums.first + thread;
    const bool has_bias = BIAS && biased && bias_row < sums.end();
    typename BiasOf<EPILOGUE, BIAS>::Type of_bias{};
    if constexpr (BIAS) {
      if (has_bias) of_bias = epilogue.fetch_bias(m0 + bias_row);
    }
    if (whole) {
      if constexpr (EARLY == 0) columns = epilogue.of_columns(column());
      fetch<kAhead, kKept>();
    }
    sums.template ready<BIAS>(biased, thread);
    if constexpr (BIAS) {
      if (has_bias) epilogue.store_bias(m0 + bias_row, sums.bias(bias_row), of_bias);
    }
    if (whole) {
      all();
    } else {
#pragma unroll 1
      for (int pass = 0; pass < kPasses; ++pass) {
        if (!sums.inside(pass, thread)) continue;
        float values[4];
        sums.add_up(values, sums.row(pass, thread), PARTS::column(0, thread));
        epilogue.elements(m0 + sums.row(pass, thread), column(), values);
      }
    }
    if constexpr (EPILOGUE::kReports) epilogue.report();
  }

 private:
  __device__ __forceinline__ int column() const { return n0 + PARTS::column(0, thread); }
  __device__ __forceinline__ Passes<kStep> passes(int from) const {
    const int there = epilogue.n - column();
    return {m0 + sums.row(from, thread), there > 0 ? min(epilogue.m, m0 + sums.end()) : 0, there};
  }
  template <int FROM, int TO>
  __device__ __forceinline__ void fetch() {
    if constexpr (FROM < TO) {
      epilogue.template fetch<TO - FROM>(fetched + FROM, passes(FROM), column());
    }
  }

  __device__ __forceinline__ void all() {
    if constexpr (kAll) {
#pragma unroll
      for (int from = 0; from < kPasses; from += kAtOnce) some(from, fetched + from);
    } else {
      some(0, fetched);
#pragma unroll 1
      for (int from = kAtOnce; from < kPasses; from += kAtOnce) {
        epilogue.template fetch<kAtOnce>(fetched, passes(from), column());
        some(from, fetched);
      }
    }
  }

  __device__ __forceinline__ void some(int from, const Fetched* found) {
    const Passes<kStep> those = passes(from);
    float values[kAtOnce][4];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) values[i][j] = 0.0f;
      if (those.exists(i)) sums.add_up(values[i], those.row(i) - m0, PARTS::column(0, thread));
    }
    epilogue.template store<kAtOnce>(those, column(), values, found, columns);
  }
};

// The same if all threads that hold a row work on it together.
template <typename TILE, typename EPILOGUE, typename PARTS, int EARLY>
struct Finish<TILE, EPILOGUE, PARTS, EARLY, true> {
  using OfRow = typename EPILOGUE::OfRow;
  static constexpr int kPasses = PARTS::kPasses;
  static constexpr int kAtOnce = kPasses < 4 ? kPasses : 4;

  EPILOGUE& epilogue;
  const PARTS sums;
  const int m0, n0, thread;
  const bool whole;

  __device__ __forceinline__ Finish(EPILOGUE& with, int row, int column, int index)
      : epilogue(with), m0(row), n0(column), thread(index), whole(with.whole()) {}

  template <bool BIAS>
  __device__ __forceinline__ void run(bool biased) {
    OfRow some[kAtOnce];
    if (whole) fetch_rows(some, 0);
    sums.template ready<BIAS>(biased, thread);
    if (whole) {
      finish_rows(some, 0);
#pragma unroll 1
      for (int first = kAtOnce; first < kPasses; first += kAtOnce) {
        fetch_rows(some, first);
        finish_rows(some, first);
      }
    } else {
#pragma unroll 1
      for (int pass = 0; pass < kPasses; ++pass) {
        finish_row<false>(pass,
                          epilogue.template fetch_row<false>(row_of(pass), column()));
      }
    }
    if constexpr (EPILOGUE::kReports) epilogue.report();
  }

 private:
  __device__ __forceinline__ int column() const { return n0 + PARTS::column(0, thread); }
  // The row in the result; behind its last row if the thread only participates.
  __device__ __forceinline__ int row_of(int pass) const {
    return sums.inside(pass, thread) ? m0 + sums.row(pass, thread) : epilogue.m;
  }
  template <int N>
  __device__ __forceinline__ void fetch_rows(OfRow (&some)[N],
                                             int first) const {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (first + i < kPasses) {
        some[i] = epilogue.template fetch_row<true>(row_of(first + i), column());
      }
    }
  }
  template <int N>
  __device__ __forceinline__ void finish_rows(const OfRow (&some)[N],
                                              int first) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (first + i < kPasses) finish_row<true>(first + i, some[i]);
    }
  }
  template <bool WHOLE>
  __device__ __forceinline__ void finish_row(int pass, const OfRow& found) {
    float values[4] = {};
    if (sums.inside(pass, thread)) {
      sums.add_up(values, sums.row(pass, thread), PARTS::column(0, thread));
    }
    epilogue.template store_row<WHOLE>(row_of(pass), column(), values, found);
  }
};

// The four columns of a thread that has its sums in registers, for an epilogue that processes four.
template <typename EPILOGUE>
__device__ __forceinline__ void finish_four(EPILOGUE& epilogue, int row, int column,
                                            const float (&sums)[4]) {
  const int there = epilogue.n - column;
  const Passes<1> here{row, there > 0 ? epilogue.m : 0, there};
  typename EPILOGUE::Fetched found[1] = {};
  float values[1][4] = {{sums[0], sums[1], sums[2], sums[3]}};
  epilogue.template fetch<1>(found, here, column);
  epilogue.template store<1>(here, column, values, found, epilogue.of_columns(column));
}
