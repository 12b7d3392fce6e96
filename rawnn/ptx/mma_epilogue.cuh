// What becomes of a product's sums: shared by all main loops of product_kernels.cuh.
//
//   ProductEpilogue: c = act(alpha * sum + beta * c + bias) * slope(saved), and pre, what act is of
//   UpdateEpilogue:  the step of an optimizer (rules.cuh) with the gradient sum / loss_scale,
//                    copy = round(w * copy_scale), and the bias
//   LossEpilogue:    the gradient of a loss of alpha * sum + bias, and the block's sums of the loss
//                    and of what is right (mma_loss.cuh)
//
// The sums come four neighbouring columns at a time, in an order in which the threads of a warp
// touch whole rows. An epilogue is told first to do what it can `ahead` of pdl_wait, with what no
// kernel directly before writes, and to `begin` where memory may be read, then to `fetch` what it
// reads, so that these reads can be under way during the product, and then to `store`. WHOLE
// says that rows allow four columns to be accessed at once, as `whole` finds out: then their
// padding holds what is missing of the last four, which is read and not written. All threads of a
// block call the store of one that works kTogether, also for rows behind the last. One that kReports
// has the last word of every thread.
#pragma once
#include "activations.cuh"
#include "common.cuh"
#include "rules.cuh"
#include "updates.cuh"

// c [m, n] is TC, saved and pre [m, n] TS; bias, pre and overflow may be null, c is read where
// beta != 0.
template <typename TC, typename TS, typename ACTIVATION, typename SLOPE>
struct ProductEpilogue {
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

  struct Fetched {
    float c[4];
    float bias[4];
    float saved[4];
  };

  __device__ __forceinline__ void ahead() {}
  __device__ __forceinline__ void begin() {}

  __device__ __forceinline__ bool whole() const {
    return vector_aligned<4>(c, ldc) && vector_aligned<4>(bias, 0) &&
           (SLOPE::kIdentity || vector_aligned<4>(saved, ldsaved)) &&
           (pre == nullptr || vector_aligned<4>(pre, ldpre));
  }

  template <bool WHOLE>
  __device__ __forceinline__ Fetched fetch(int row, int column) const {
    Fetched found{};
    const int count = row < m ? n - column : 0;
    if (WHOLE && count <= 0) return found;
    if (beta != 0.0f) load_part<4>(found.c, at(c, ldc, row, column), WHOLE, count);
    if (bias != nullptr) load_part<4>(found.bias, bias + column, WHOLE && count >= 4, count);
    if constexpr (!SLOPE::kIdentity) {
      load_part<4>(found.saved, at(saved, ldsaved, row, column), WHOLE, count);
    }
    return found;
  }

  template <bool WHOLE>
  __device__ __forceinline__ void store(int row, int column, const float (&sums)[4],
                                        const Fetched& found) const {
    const int count = row < m ? n - column : 0;
    if (WHOLE && count <= 0) return;
    float values[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[i] = alpha * sums[i] + found.bias[i];
      if (beta != 0.0f) values[i] += beta * found.c[i];
    }
    const bool four = WHOLE && count >= 4;
    if (pre != nullptr) store_part<4>(at(pre, ldpre, row, column), values, four, count);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[i] = SLOPE::backward(ACTIVATION::apply(values[i]), found.saved[i]);
    }
    store_part<4>(at(c, ldc, row, column), values, four, count);
    if (overflow != nullptr) {
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] = i < count ? values[i] : 0.0f;
      report_overflow(overflow, poison<TC>(values));
    }
  }
};

// The state that RULE keeps for each weight, as matrices like w, and for each element of the bias.
template <int N>
struct States {
  float* of_weights[N];
  int ld[N];
  float* of_bias[N];
};
template <>
struct States<0> {};

// What an op says of its optimizer, besides the rate.
template <typename RULE>
struct Settings;
template <>
struct Settings<Sgd> {
  float decay;
  __device__ __forceinline__ Sgd rule(float rate, int t) const { return {rate, t, decay}; }
};
template <>
struct Settings<Momentum> {
  float decay, momentum;
  bool nesterov;
  __device__ __forceinline__ Momentum rule(float rate, int t) const {
    return {rate, t, decay, momentum, nesterov};
  }
};
template <>
struct Settings<QuickAdam> {
  float decay;
  double beta1, beta2;
  float eps;
  bool decoupled;
  __device__ __forceinline__ QuickAdam rule(float rate, int t) const {
    return {rate, t, decay, beta1, beta2, eps, decoupled};
  }
};

// w [m, n] is TW, its copy TC (null where there is none), bias [m] float.
template <typename TW, typename TC, typename RULE>
struct UpdateEpilogue {
  static constexpr bool kTogether = false;
  static constexpr bool kReports = false;
  static constexpr int kStates = RULE::kStates;
  TW* w;
  int ldw;
  TC* copy;
  int ldcopy;
  float* bias;
  States<kStates> states;
  Moment when;
  int m, n;
  float lr;
  Settings<RULE> settings;
  float copy_scale;
  Rounding how;
  RULE rule = settings.rule(0.0f, 1);  // until ahead()
  float factor = 1.0f;                 // takes the loss scale out of the gradient
  bool skip = false;

  struct Fetched {
    float value[1 + kStates][4];  // w, and its state
  };

  // What follows from the step's number: Adam's corrections alone are 400 cycles behind two loads.
  __device__ __forceinline__ void ahead() {
    rule = settings.rule(learning_rate(lr, when.rates, when.cursor, when.offset),
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

  template <bool WHOLE>
  __device__ __forceinline__ Fetched fetch(int row, int column) const {
    Fetched found{};
    const int count = row < m ? n - column : 0;
    if (WHOLE && count <= 0) return found;
    load_part<4>(found.value[0], at(w, ldw, row, column), WHOLE, count);
    if constexpr (kStates > 0) {
#pragma unroll
      for (int s = 0; s < kStates; ++s) {
        load_part<4>(found.value[1 + s], at(states.of_weights[s], states.ld[s], row, column),
                     WHOLE, count);
      }
    }
    return found;
  }

  template <bool WHOLE>
  __device__ __forceinline__ void store(int row, int column, const float (&sums)[4],
                                        const Fetched& found) const {
    const int count = row < m ? n - column : 0;
    if (skip || (WHOLE && count <= 0)) return;
    const bool four = WHOLE && count >= 4;
    float values[4];
    float state[kStates > 0 ? kStates : 1][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float kept[kStates > 0 ? kStates : 1];
#pragma unroll
      for (int s = 0; s < kStates; ++s) kept[s] = found.value[1 + s][i];
      values[i] = rule(found.value[0][i], factor * sums[i], kept);
#pragma unroll
      for (int s = 0; s < kStates; ++s) state[s][i] = kept[s];
    }
    if constexpr (kStates > 0) {
#pragma unroll
      for (int s = 0; s < kStates; ++s) {
        store_part<4>(at(states.of_weights[s], states.ld[s], row, column), state[s], four, count);
      }
    }
    if (copy != nullptr) {
      float scaled[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) scaled[i] = values[i] * copy_scale;
      store_part<4>(at(copy, ldcopy, row, column), scaled, four, count);
    }
    if constexpr (RoundsByChance<TW>::kPossible) {
      if (how.stochastic) round_by_chance(values, row, column);
    }
    store_part<4>(at(w, ldw, row, column), values, four, count);
  }

  __device__ __forceinline__ void store_bias(int row, float sum) const {
    if (row >= m || skip) return;
    float kept[kStates > 0 ? kStates : 1];
    if constexpr (kStates > 0) {
#pragma unroll
      for (int s = 0; s < kStates; ++s) kept[s] = states.of_bias[s][row];
    }
    bias[row] = rule(bias[row], factor * sum, kept);
    if constexpr (kStates > 0) {
#pragma unroll
      for (int s = 0; s < kStates; ++s) states.of_bias[s][row] = kept[s];
    }
  }

 private:
  // Values become bfloat16s, still kept as floats. Elements count row by row without padding.
  __device__ __forceinline__ void round_by_chance(float (&values)[4], int row, int column) const {
    const unsigned int element = static_cast<unsigned int>(row) * static_cast<unsigned int>(n) +
                                 static_cast<unsigned int>(column);
    unsigned int words[2];
    ::round_by_chance(words, values, rounding_window<4>(how, element).word);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 both = unpack_pair<bfloat16>(words[i]);
      values[2 * i] = both.x;
      values[2 * i + 1] = both.y;
    }
  }
};
