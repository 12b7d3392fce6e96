// What becomes of a product's sums: shared by mma.cu, wgmma.cu and tiled.cu.
//
//   ProductEpilogue: c = act(alpha * sum + beta * c + bias) * slope(saved)
//   UpdateEpilogue:  w -= lr * (sum / loss_scale + decay * w), copy = round(w * copy_scale), and
//                    the bias
//
// The sums come four neighbouring columns at a time, in an order in which the threads of a warp
// touch whole rows. An epilogue is asked to `begin` where memory may be read, then to `fetch` what
// it reads, so that these reads can be under way during the product, and then to `store`. WHOLE
// says that either all four columns exist or none, and that they can be accessed at once, as
// `whole` finds out.
#pragma once
#include "activations.cuh"
#include "common.cuh"
#include "updates.cuh"

// c [m, n] is TC, saved [m, n] TS; bias and overflow may be null, c is read where beta != 0.
template <typename TC, typename TS, typename ACTIVATION, typename SLOPE>
struct ProductEpilogue {
  TC* c;
  int ldc;
  const float* bias;
  const TS* saved;
  int ldsaved;
  int* overflow;
  int m, n;
  float alpha, beta;

  struct Fetched {
    float c[4];
    float bias[4];
    float saved[4];
  };

  __device__ __forceinline__ void begin() {}

  __device__ __forceinline__ bool whole() const {
    return n % 4 == 0 && vector_aligned<4>(c, ldc) && vector_aligned<4>(bias, 0) &&
           (SLOPE::kIdentity || vector_aligned<4>(saved, ldsaved));
  }

  template <bool WHOLE>
  __device__ __forceinline__ Fetched fetch(int row, int column) const {
    Fetched found{};
    const int count = row < m ? n - column : 0;
    if (WHOLE && count <= 0) return found;
    if (beta != 0.0f) load_part<4>(found.c, at(c, ldc, row, column), WHOLE, count);
    if (bias != nullptr) load_part<4>(found.bias, bias + column, WHOLE, count);
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
      values[i] = SLOPE::backward(ACTIVATION::apply(values[i]), found.saved[i]);
    }
    store_part<4>(at(c, ldc, row, column), values, WHOLE, count);
    if (overflow != nullptr) {
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] = WHOLE || i < count ? values[i] : 0.0f;
      report_overflow(overflow, poison<TC>(values));
    }
  }
};

// w [m, n] is TW, its copy TC (null where there is none), bias [m] float.
template <typename TW, typename TC>
struct UpdateEpilogue {
  TW* w;
  int ldw;
  TC* copy;
  int ldcopy;
  float* bias;
  const float* rates;
  const int* cursor;
  const int* clock;
  const float* loss_scale;
  const int* overflow;
  int m, n;
  float lr;  // until begin() of every step, then of this one
  float decay;
  float copy_scale;
  int offset;
  Rounding how;
  float factor;  // takes the loss scale out of the gradient
  bool skip;

  struct Fetched {
    float w[4];
  };

  __device__ __forceinline__ void begin() {
    skip = left_out(overflow);
    lr = learning_rate(lr, rates, cursor, offset);
    factor = unscale(loss_scale);
    how = rounding(how.stochastic, how.seed, how.stream, cursor, offset, clock);
  }

  __device__ __forceinline__ bool whole() const {
    return n % 4 == 0 && vector_aligned<4>(w, ldw) && vector_aligned<4>(copy, ldcopy);
  }

  template <bool WHOLE>
  __device__ __forceinline__ Fetched fetch(int row, int column) const {
    Fetched found{};
    const int count = row < m ? n - column : 0;
    if (WHOLE && count <= 0) return found;
    load_part<4>(found.w, at(w, ldw, row, column), WHOLE, count);
    return found;
  }

  template <bool WHOLE>
  __device__ __forceinline__ void store(int row, int column, const float (&sums)[4],
                                        const Fetched& found) const {
    const int count = row < m ? n - column : 0;
    if (skip || (WHOLE && count <= 0)) return;
    float values[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[i] = found.w[i] - lr * (factor * sums[i] + decay * found.w[i]);
    }
    if (copy != nullptr) {
      float scaled[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) scaled[i] = values[i] * copy_scale;
      store_part<4>(at(copy, ldcopy, row, column), scaled, WHOLE, count);
    }
    if constexpr (RoundsByChance<TW>::kPossible) {
      if (how.stochastic) round_by_chance<WHOLE>(values, row, column);
    }
    store_part<4>(at(w, ldw, row, column), values, WHOLE, count);
  }

  __device__ __forceinline__ void store_bias(int row, float sum) const {
    if (row >= m || skip) return;
    bias[row] -= lr * (factor * sum + decay * bias[row]);
  }

 private:
  // Values become bfloat16s, still kept as floats. Elements count row by row without padding.
  template <bool WHOLE>
  __device__ __forceinline__ void round_by_chance(float (&values)[4], int row, int column) const {
    const unsigned int element = static_cast<unsigned int>(row) * static_cast<unsigned int>(n) +
                                 static_cast<unsigned int>(column);
    if (WHOLE || element % 4u == 0u) {  // whole quads: rows are multiples of 4 long
      const Words words = rounding_group(how.seed, how.stream, how.step, element / 8u);
      const unsigned int low = element % 8u == 0u ? words.word[0] : words.word[2];
      const unsigned int high = element % 8u == 0u ? words.word[1] : words.word[3];
      values[0] = to_float(stochastic_round_bf16(values[0], low & 0xffffu));
      values[1] = to_float(stochastic_round_bf16(values[1], low >> 16));
      values[2] = to_float(stochastic_round_bf16(values[2], high & 0xffffu));
      values[3] = to_float(stochastic_round_bf16(values[3], high >> 16));
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const unsigned int bits =
            rounding_bits(how.seed, how.stream, how.step, element + static_cast<unsigned int>(i));
        values[i] = to_float(stochastic_round_bf16(values[i], bits));
      }
    }
  }
};
