// One row of a loss over classes, by one thread or one warp, in registers or re-read from memory. With
// SOFTMAX the row is z and its softmax is computed here; otherwise it holds the probabilities, and `logits`,
// which may be null if the loss is not used, is z.
#pragma once
#include "losses/metrics.cuh"
#include "losses/softmax.cuh"

// One row of up to 4 * QUADS columns by one thread. `gradient` and `overflow` may be null.
template <int QUADS, bool SOFTMAX, typename TD>
__device__ __forceinline__ void short_row(const float* __restrict__ row, bool wide_row,
                                          const float* __restrict__ logits,
                                          TD* __restrict__ gradient, bool wide_gradient, int label,
                                          int cols, float share, int* __restrict__ overflow,
                                          Tally& tally) {
  float values[QUADS][4];
#pragma unroll
  for (int q = 0; q < QUADS; ++q) {
    if (wide_row && 4 * q + 4 <= cols) {
      load_values<4>(values[q], row + 4 * q);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = 4 * q + i;
        values[q][i] = column < cols ? row[column] : -infinity();
      }
    }
  }
  if (label < 0 || label >= cols) label = -1;

  int predicted = 0;
  RowSoftmax found = {};
  if (SOFTMAX) {
    found = softmax_of_quads<1>(values, 0);
    predicted = found.first;
    const float inverse = 1.0f / found.total;
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
#pragma unroll
      for (int i = 0; i < 4; ++i) values[q][i] *= inverse;
    }
  } else {
    predicted = first_of_quads<1>(values, largest_of_quads<1>(values), 0);
    // The first NaN if there is one, as NumPy's argmax.
#pragma unroll
    for (int column = 4 * QUADS - 1; column >= 0; --column) {
      const float value = values[column / 4][column % 4];
      if (value != value) predicted = column;
    }
  }

  float labelled = not_a_number();
#pragma unroll
  for (int q = 0; q < QUADS; ++q) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool here = 4 * q + i == label;
      if (here) labelled = values[q][i];
      values[q][i] = cross_entropy_slope(values[q][i], here, share);
    }
    if (gradient != nullptr) {
      if (wide_gradient && 4 * q + 4 <= cols) {
        store_values<4>(gradient + 4 * q, values[q]);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (4 * q + i < cols) gradient[4 * q + i] = from_float<TD>(values[q][i]);
        }
      }
    }
  }
  if (gradient != nullptr && overflow != nullptr) {
    float sum = 0.0f;  // columns that do not exist hold no gradient
#pragma unroll
    for (int column = 0; column < 4 * QUADS; ++column) {
      if (column < cols) sum += poison<TD>(values[column / 4][column % 4]);
    }
    report_overflow(overflow, sum);
  }
  if (SOFTMAX) {
    tally.loss += cross_entropy_of(labelled, found.largest - row[max(label, 0)], found.total);
  } else if (logits != nullptr) {
    tally.loss += cross_entropy_of_row(labelled, logits, label, cols);
  }
  tally.right += predicted == label ? 1 : 0;
}

// Whether (value, column) comes before (best, at) as a row's first maximum, a NaN before any number.
__device__ __forceinline__ bool precedes(float value, int column, float best, int at) {
  const bool nan = value != value;
  const bool best_nan = best != best;
  if (nan != best_nan) return nan;
  return nan || value == best ? column < at : value > best;
}

// One row of any width by LANES neighboring threads, each of which holds the row's label; the first
// keeps the tally. Three passes over the row, which is in the L1 cache after the first.
template <int LANES, bool SOFTMAX, typename TD>
__device__ __forceinline__ void long_row(const float* __restrict__ row,
                                         const float* __restrict__ logits,
                                         TD* __restrict__ gradient, int label, int cols, float share,
                                         int* __restrict__ overflow, int lane, Tally& tally) {
  float best = lane < cols ? row[lane] : -infinity();
  float largest = best;
  int predicted = lane;
#pragma unroll 8  // many loads in flight: the only pass that waits for the L2 cache
  for (int column = lane + LANES; column < cols; column += LANES) {
    const float value = row[column];
    largest = fmaxf(largest, value);
    if (precedes(value, column, best, predicted)) {
      best = value;
      predicted = column;
    }
  }
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2) {
    const float value = __shfl_xor_sync(kFullWarp, best, step);
    const int column = __shfl_xor_sync(kFullWarp, predicted, step);
    if (precedes(value, column, best, predicted)) {
      best = value;
      predicted = column;
    }
  }
  float total = 1.0f, inverse = 1.0f;
  if (SOFTMAX) {
    largest = warp_max<LANES>(largest);
    total =
        sum_of_powers<LANES>([&](int column) { return row[column]; }, cols, largest, lane);
    if (total != total) predicted = 0;  // all probabilities are NaN: the first maximum is at 0
    inverse = 1.0f / total;
  }
  if (gradient != nullptr) {
    float sum = 0.0f;
#pragma unroll 4
    for (int column = lane; column < cols; column += LANES) {
      const float value = row[column];
      const float p = SOFTMAX ? expf(value - largest) * inverse : value;
      const float slope = cross_entropy_slope(p, column == label, share);
      gradient[column] = from_float<TD>(slope);
      sum += poison<TD>(slope);
    }
    if (overflow != nullptr) report_overflow(overflow, sum);
  }
  if (lane == 0) {
    if (label < 0 || label >= cols) {
      tally.loss += not_a_number();
    } else if (SOFTMAX) {
      const float value = row[label];
      tally.loss += cross_entropy_of(expf(value - largest) * inverse, largest - value, total);
    } else if (logits != nullptr) {
      tally.loss += cross_entropy_of_row(row[label], logits, label, cols);
    }
    tally.right += predicted == label ? 1 : 0;
  }
}

// Quads 32 apart of a row from `from` on; `left` columns remain.
template <int QUADS>
__device__ __forceinline__ void load_quads(float (&values)[QUADS][4], const float* from, bool wide,
                                           int left) {
#pragma unroll
  for (int q = 0; q < QUADS; ++q) {
    if (wide && 128 * q + 4 <= left) {
      load_values<4>(values[q], from + 128 * q);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        values[q][i] = 128 * q + i < left ? from[128 * q + i] : -infinity();
      }
    }
  }
}

// A row of any width by a warp, from z, in quads. Each lane first loads a line of its own, so up to
// 1024 columns arrive in one round trip and the passes over them hit the L1 cache.
template <typename TD>
__device__ __forceinline__ void quads_row(const float* __restrict__ row, bool wide_row,
                                          TD* __restrict__ gradient, bool wide_gradient, int label,
                                          int cols, float share, int* __restrict__ overflow,
                                          int lane, Tally& tally) {
  constexpr int quads = 4;  // loads in flight at once
  constexpr int span = 128 * quads;
  float values[quads][4];
  float largest = 32 * lane < cols ? row[32 * lane] : -infinity();
  for (int column = 4 * lane; column < cols; column += span) {
    load_quads(values, row + column, wide_row, cols - column);
    largest = fmaxf(largest, largest_of_quads<1>(values));
  }
  largest = warp_max(largest);
  float total = 0.0f;
  int first = 0x7fffffff;
  for (int column = 4 * lane; column < cols; column += span) {
    load_quads(values, row + column, wide_row, cols - column);
    int here = 0x3fffffff;
#pragma unroll
    for (int i = 4 * quads - 1; i >= 0; --i) {
      const float value = values[i / 4][i % 4];
      if (value == largest) here = 128 * (i / 4) + i % 4;
      total += expf(value - largest);
    }
    first = min(first, column + here);
  }
  total = warp_sum(total);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    first = min(first, __shfl_xor_sync(kFullWarp, first, step));
  }
  if (total != total) first = 0;  // all probabilities are NaN: the first maximum is at 0
  const float inverse = 1.0f / total;
  if (label < 0 || label >= cols) label = -1;         // matches no lane
  float labelled = label < 0 ? not_a_number() : 1.0f;  // 1 unless this lane has the label
  float sum = 0.0f;
  for (int column = 4 * lane; column < cols; column += span) {
    load_quads(values, row + column, wide_row, cols - column);
#pragma unroll
    for (int q = 0; q < quads; ++q) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float p = expf(values[q][i] - largest) * inverse;
        const bool here = label - column == 128 * q + i;
        if (here) labelled = p;
        values[q][i] = cross_entropy_slope(p, here, share);
        sum += poison<TD>(values[q][i]);  // 0 outside the columns
      }
      store_part<4>(gradient + column + 128 * q, values[q],
                    wide_gradient && column + 128 * q + 4 <= cols, cols - column - 128 * q);
    }
  }
  if (overflow != nullptr) report_overflow(overflow, sum);
  tally.loss += cross_entropy_of(labelled, largest - row[max(label, 0)], total);
  tally.right += lane == 0 && first == label ? 1 : 0;
}
