// The step of an optimizer as an epilogue of the weight-gradient GEMM (mma_epilogue.cuh):
//
//   w = the step of a rule (step_functors.cuh) with the gradient sum / loss_scale,
//   copy = round(w * copy_scale), and the bias, from the sums of dz's rows
#pragma once
#include "gemm/mma_epilogue.cuh"
#include "optimizers/step_functors.cuh"
#include "optimizers/updates.cuh"

// OPTIMIZER's state for each weight, as matrices like w, and for each element of the bias. T is float, or
// const float where it is only read.
template <int N, typename T = float>
struct States {
  T* of_weights[N];
  int ld[N];
  T* of_bias[N];
};
template <typename T>
struct States<0, T> {};

// The settings of an op's optimizer, except the rate.
template <typename OPTIMIZER>
struct Settings;
template <>
struct Settings<Sgd> {
  float decay;
  __device__ __forceinline__ Sgd optimizer(float rate, int t) const { return {rate, t, decay}; }
};
template <>
struct Settings<Momentum> {
  float decay, momentum;
  bool nesterov;
  __device__ __forceinline__ Momentum optimizer(float rate, int t) const {
    return {rate, t, decay, momentum, nesterov};
  }
};
template <>
struct Settings<ApproximateAdam> {
  float decay;
  double beta1, beta2;
  float eps;
  bool decoupled;
  __device__ __forceinline__ ApproximateAdam optimizer(float rate, int t) const {
    return {rate, t, decay, beta1, beta2, eps, decoupled};
  }
};

// w [m, n] is TW, its copy TC (null if there is none), bias [m] float.
template <typename TW, typename TC, typename OPTIMIZER>
struct UpdateEpilogue {
  static constexpr bool kTogether = false;
  static constexpr bool kReports = false;
  static constexpr int kStates = OPTIMIZER::kStates;
  TW* w;
  int ldw;
  TC* copy;
  int ldcopy;
  float* bias;
  States<kStates> states;
  Moment when;
  int m, n;
  float lr;
  Settings<OPTIMIZER> settings;
  float copy_scale;
  Rounding how;
  OPTIMIZER optimizer = settings.optimizer(0.0f, 1);  // until ahead()
  float factor = 1.0f;                 // removes the loss scale from the gradient
  bool skip = false;

  static constexpr int kKept = kStates > 0 ? kStates : 1;
  struct Columns {};
  struct Fetched {
    Four<TW> w;
    Four<float> state[kKept];
  };
  static constexpr int kFetchedBytes = sizeof(Four<TW>) + kStates * sizeof(Four<float>);

  // What follows from the step's number: Adam's corrections alone are 400 cycles after two loads.
  __device__ __forceinline__ void ahead() {
    optimizer = settings.optimizer(learning_rate(lr, when.rates, when.cursor, when.offset),
                         total_step(when.cursor, when.offset, when.clock) + 1);
    how = rounding(how.stochastic, how.seed, how.stream, when.cursor, when.offset, when.clock);
  }
  __device__ __forceinline__ void begin() {
    skip = left_out(when.overflow);
    factor = unscale(when.loss_scale);
  }

  __device__ __forceinline__ bool whole() const {
    bool found = vector_aligned<4>(w, ldw) && vector_aligned<4>(copy, ldcopy);
    if constexpr (kStates > 0) {
#pragma unroll
      for (int s = 0; s < kStates; ++s) {
        found = found && vector_aligned<4>(states.of_weights[s], states.ld[s]);
      }
    }
    return found;
  }

  __device__ __forceinline__ Columns of_columns(int) const { return {}; }

  template <int N, int STEP>
  __device__ __forceinline__ void fetch(Fetched* found, const Passes<STEP>& passes,
                                        int column) const {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (!passes.exists(i)) continue;
      const int row = passes.row(i);
      found[i].w.load(at(w, ldw, row, column));
      if constexpr (kStates > 0) {
#pragma unroll
        for (int s = 0; s < kStates; ++s) found[i].state[s].load(&state_of(s, row, column));
      }
    }
  }

  // A row is stored as soon as it is complete: otherwise the memory would idle until all are.
  template <int N, int STEP>
  __device__ __forceinline__ void store(const Passes<STEP>& passes, int column,
                                        float (&values)[N][4], const Fetched* found,
                                        const Columns&) const {
    if (skip) return;
    float state[kKept][N][4];
    float scaled[N][4];
    const bool full = passes.full();
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int row = passes.row(i);
      const bool stores = full && passes.exists(i);
      float weights[4];
      found[i].w.take(weights);
      if constexpr (kStates > 0) {
#pragma unroll
        for (int s = 0; s < kStates; ++s) found[i].state[s].take(state[s][i]);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float kept[kKept];
#pragma unroll
        for (int s = 0; s < kStates; ++s) kept[s] = state[s][i][j];
        values[i][j] = optimizer(weights[j], factor * values[i][j], kept);
#pragma unroll
        for (int s = 0; s < kStates; ++s) state[s][i][j] = kept[s];
        scaled[i][j] = values[i][j] * copy_scale;
      }
      if constexpr (RoundsStochastically<TW>::kPossible) {
        if (how.stochastic) round_stochastic(values[i], row, column);
      }
      if constexpr (kStates > 0) {
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
          if (stores) store_values<4>(&state_of(s, row, column), state[s][i]);
        }
      }
      if (stores && copy != nullptr) store_values<4>(at(copy, ldcopy, row, column), scaled[i]);
      if (stores) store_values<4>(at(w, ldw, row, column), values[i]);
    }
    if (full) return;
    if constexpr (kStates > 0) {
#pragma unroll
      for (int s = 0; s < kStates; ++s) {
        store_some<N>(passes, states.of_weights[s], states.ld[s], column, state[s]);
      }
    }
    if (copy != nullptr) store_some<N>(passes, copy, ldcopy, column, scaled);
    store_some<N>(passes, w, ldw, column, values);
  }

  __device__ __forceinline__ void elements(int row, int column, const float (&sums)[4]) const {
    const int count = row < m ? n - column : 0;
    if (skip || count <= 0) return;
    float values[4];
    load_part<4>(values, at(w, ldw, row, column), false, count);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i >= count) break;
      float kept[kKept];
      if constexpr (kStates > 0) {
#pragma unroll
        for (int s = 0; s < kStates; ++s) kept[s] = state_of(s, row, column + i);
      }
      values[i] = optimizer(values[i], factor * sums[i], kept);
      if constexpr (kStates > 0) {
#pragma unroll
        for (int s = 0; s < kStates; ++s) state_of(s, row, column + i) = kept[s];
      }
      if (copy != nullptr) {
        *at(copy, ldcopy, row, column + i) = from_float<TC>(values[i] * copy_scale);
      }
    }
    if constexpr (RoundsStochastically<TW>::kPossible) {
      if (how.stochastic) round_stochastic(values, row, column);
    }
    store_part<4>(at(w, ldw, row, column), values, false, count);
  }

  // An element of the bias and its state.
  struct OfBias {
    float value, kept[kKept];
  };

  __device__ __forceinline__ OfBias fetch_bias(int row) const {
    OfBias found{};
    if (row >= m) return found;
    found.value = bias[row];
    if constexpr (kStates > 0) {
#pragma unroll
      for (int s = 0; s < kStates; ++s) found.kept[s] = states.of_bias[s][row];
    }
    return found;
  }

  __device__ __forceinline__ void store_bias(int row, float sum, OfBias found) const {
    if (row >= m || skip) return;
    bias[row] = optimizer(found.value, factor * sum, found.kept);
    if constexpr (kStates > 0) {
#pragma unroll
      for (int s = 0; s < kStates; ++s) states.of_bias[s][row] = found.kept[s];
    }
  }

 private:
  __device__ __forceinline__ float& state_of(int s, int row, int column) const {
    return *at(states.of_weights[s], states.ld[s], row, column);
  }

  // Rounds values to bfloat16, stored as floats. Elements count row by row without padding.
  __device__ __forceinline__ void round_stochastic(float (&values)[4], int row, int column) const {
    const unsigned int element = static_cast<unsigned int>(row) * static_cast<unsigned int>(n) +
                                 static_cast<unsigned int>(column);
    unsigned int words[2];
    ::round_stochastic(words, values, rounding_window<4>(how, element).word);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 both = unpack_pair<bfloat16>(words[i]);
      values[2 * i] = both.x;
      values[2 * i + 1] = both.y;
    }
  }
};
