// What all parameter updates share: the step's learning rate, removing the loss scale from the
// gradient, whether the step is skipped, and how the new weights are stored.
//
//   s = *cursor + offset: the step in the epoch.   lr: rates[s] if rates is given, else the scalar
//   g = dw / loss_scale[0] + decay * w             the whole update is skipped if overflow[0] != 0
//   if other is given, dw is share * dw + other_share * other, rounded to their type: two ranks'
//   parts of a gradient
//   copy = the new weights times copy_scale (a power of two), rounded to nearest even
//   stochastic: weights stored as bfloat16 are rounded stochastically, with the random bits of (seed,
//   stream, clock[1] + s, element); `element` counts row by row without padding
//
// Null operands are not used: other, rates, clock, loss_scale, overflow, copy; a null cursor counts as
// 0.
#pragma once
#include "primitives/common.cuh"
#include "primitives/rounding.cuh"

// The step in the epoch, and counted from the start of training.
__device__ __forceinline__ int epoch_step(const int* __restrict__ cursor, int offset) {
  return cursor == nullptr ? offset : *cursor + offset;
}

__device__ __forceinline__ int total_step(const int* __restrict__ cursor, int offset,
                                          const int* __restrict__ clock) {
  return epoch_step(cursor, offset) + (clock == nullptr ? 0 : clock[1]);
}

__device__ __forceinline__ float learning_rate(float lr, const float* __restrict__ rates,
                                               const int* __restrict__ cursor, int offset) {
  return rates == nullptr ? lr : rates[epoch_step(cursor, offset)];
}

__device__ __forceinline__ bool left_out(const int* __restrict__ overflow) {
  return overflow != nullptr && *overflow != 0;
}

// The factor that removes the loss scale, a power of two, from a gradient.
__device__ __forceinline__ float unscale(const float* __restrict__ loss_scale) {
  return loss_scale == nullptr ? 1.0f : 1.0f / loss_scale[0];
}

// The step of an update, and what its rate, its step count and whether it is skipped are read from.
struct Moment {
  const float* rates;
  const int* cursor;
  const int* clock;
  const float* loss_scale;
  const int* overflow;
  int offset;
};

__device__ __forceinline__ Rounding rounding(bool stochastic, unsigned long long seed,
                                             unsigned int stream, const int* __restrict__ cursor,
                                             int offset, const int* __restrict__ clock) {
  return {stochastic, seed, stream, stochastic ? total_step(cursor, offset, clock) : 0};
}

template <typename T>
struct RoundsStochastically {
  static constexpr bool kPossible = false;
};
template <>
struct RoundsStochastically<bfloat16> {
  static constexpr bool kPossible = true;
};

// One new weight; `element` is its index without padding.
template <typename T>
__device__ __forceinline__ T round_weight(float value, const Rounding& how, unsigned int element) {
  if constexpr (RoundsStochastically<T>::kPossible) {
    if (how.stochastic) {
      return stochastic_round_bf16(value, rounding_bits(how.seed, how.stream, how.step, element));
    }
  }
  return from_float<T>(value);
}

// Weights that a thread processes at once: 16 bytes of the weights' own type, so that 8 bfloat16 share a
// draw. The other operands are accessed in smaller or several pieces.
template <typename TW>
__device__ constexpr int update_length() {
  return vector_length<TW>();
}

// The first `count` of N new weights, `element` being the index of the first.
template <int N, typename T>
__device__ __forceinline__ void store_weights(T* to, const float (&values)[N], bool whole,
                                              int count, const Rounding& how,
                                              unsigned int element) {
  if constexpr (RoundsStochastically<T>::kPossible) {
    if (how.stochastic) {
      static_assert(N == 8, "a draw serves 8 weights");
      unsigned int words[N / 2];
      round_stochastic(words, values, rounding_window<N>(how, element).word);
      if (whole) {
        store_words(to, words);
      } else {
#pragma unroll
        for (int i = 0; i < N; ++i) {
          if (i < count) to[i] = T{static_cast<unsigned short>(words[i / 2] >> (16 * (i % 2)))};
        }
      }
      return;
    }
  }
  store_part<N>(to, values, whole, count);
}

// Walks one update over a matrix. body(weight, gradient, index) returns each new weight, with the
// gradient unscaled and without decay; (row, column + index) is its place.
template <typename TW, typename TG, typename TC, typename Load, typename Body, typename Store>
__device__ __forceinline__ void update_matrix(TW* __restrict__ w, int ldw,
                                              const TG* __restrict__ dw, int lddw,
                                              const TG* __restrict__ other, int ldother,
                                              float share, float other_share,
                                              TC* __restrict__ copy, int ldcopy,
                                              float copy_scale, bool wide_state,
                                              const float* __restrict__ loss_scale, int rows,
                                              int cols, const Rounding& how, Load load, Body body,
                                              Store store) {
  constexpr int N = update_length<TW>();
  const float factor = unscale(loss_scale);
  const bool wide = wide_state && vector_aligned<N>(w, ldw) && vector_aligned<N>(dw, lddw) &&
                    vector_aligned<N>(other, ldother) && vector_aligned<N>(copy, ldcopy);
  for_vectors<N>(rows, cols, wide, [&](int row, int column, bool whole, int count) {
    TW* const weights = at(w, ldw, row, column);
    float values[N];
    float gradients[N];
    load_part<N>(values, weights, whole, count);
    load_part<N>(gradients, at(dw, lddw, row, column), whole, count);
    if (other != nullptr) {
      float theirs[N];
      load_part<N>(theirs, at(other, ldother, row, column), whole, count);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        gradients[i] = to_float(
            from_float<TG>(share * gradients[i] + other_share * theirs[i]));
      }
    }
    load(row, column, whole, count);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = body(values[i], gradients[i] * factor, i);
    const unsigned int element = static_cast<unsigned int>(row) * static_cast<unsigned int>(cols) +
                                 static_cast<unsigned int>(column);
    store_weights<N>(weights, values, whole, count, how, element);
    if (copy != nullptr) {
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] *= copy_scale;
      store_part<N>(at(copy, ldcopy, row, column), values, whole, count);
    }
    store(row, column, whole, count);
  });
}
