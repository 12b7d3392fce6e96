// What becomes of a product's sums: shared by mma.cu, wgmma.cu and tiled.cu.
//
//   ProductEpilogue: c = act(alpha * sum + beta * c + bias) * slope(saved)
//   UpdateEpilogue:  w -= lr * (sum / loss_scale + decay * w), a 16-bit copy of it, and the bias
//
// The sums come four neighbouring columns at a time, in an order in which the threads of a warp
// touch whole rows. An epilogue is asked first to `fetch` what it reads from memory, so that these
// reads can be under way during the product, and then to `store`.
#pragma once
#include "activations.cuh"
#include "common.cuh"
#include "random.cuh"
#include "types.cuh"

// Four neighbouring elements of a row, of which `count` exist; the rest read as 0.
template <typename T>
__device__ __forceinline__ void load_four(float (&values)[4], const T* from, int count,
                                          bool vector) {
  if (vector && count >= 4) {
    load_values<4>(values, from);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = i < count ? to_float(from[i]) : 0.0f;
  }
}

template <typename T>
__device__ __forceinline__ void store_four(T* to, const float (&values)[4], int count,
                                           bool vector) {
  if (vector && count >= 4) {
    store_values<4>(to, values);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < count) to[i] = from_float<T>(values[i]);
    }
  }
}

template <typename T>
__device__ __forceinline__ bool four_aligned(const T* pointer, int ld) {
  return aligned(pointer, ld, 4 * static_cast<int>(sizeof(T)));
}

// c is TC, bias TBIAS, saved TSAVED; any of bias and saved may be null, c is read where beta != 0.
template <typename TC, typename TBIAS, typename TSAVED, typename ACTIVATION, typename SLOPE>
struct ProductEpilogue {
  TC* c;
  int ldc;
  const TBIAS* bias;
  const TSAVED* saved;
  int ldsaved;
  int m, n;
  float alpha, beta;

  struct Fetched {
    float c[4];
    float bias[4];
    float saved[4];
  };

  __device__ __forceinline__ Fetched fetch(int row, int column) const {
    Fetched found{};
    const int count = row < m ? n - column : 0;
    if (beta != 0.0f) {
      load_four(found.c, c + static_cast<long long>(row) * ldc + column, count,
                four_aligned(c, ldc));
    }
    if (bias != nullptr) load_four(found.bias, bias + column, count, four_aligned(bias, 0));
    if constexpr (!SLOPE::kIdentity) {
      load_four(found.saved, saved + static_cast<long long>(row) * ldsaved + column, count,
                four_aligned(saved, ldsaved));
    }
    return found;
  }

  __device__ __forceinline__ void store(int row, int column, const float (&sums)[4],
                                        const Fetched& found) const {
    float values[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[i] = alpha * sums[i] + found.bias[i];
      if (beta != 0.0f) values[i] += beta * found.c[i];
      values[i] = ACTIVATION::apply(values[i]);
      values[i] = SLOPE::backward(values[i], found.saved[i]);
    }
    store_four(c + static_cast<long long>(row) * ldc + column, values, row < m ? n - column : 0,
               four_aligned(c, ldc));
  }
};

// How far a step of SGD goes: the factor of the product, the factor of the weight itself, and
// whether the step is left out.
struct StepSize {
  float rate;    // lr, or of this step
  float factor;  // of the sums: lr / loss_scale
  int step;      // steps of the whole run before this one, for stochastic rounding
  bool skip;     // the gradient overflowed
};

__device__ __forceinline__ StepSize step_size(const float* rates, const int* cursor,
                                              const int* clock, const float* loss_scale,
                                              const int* overflow, float lr, int offset) {
  const int step = cursor != nullptr ? current_step(cursor, offset) : 0;
  StepSize size;
  size.rate = rates != nullptr ? rates[step] : lr;
  size.factor = loss_scale != nullptr ? size.rate / loss_scale[0] : size.rate;
  size.step = (clock != nullptr ? clock[1] : 0) + step;
  size.skip = overflow != nullptr && overflow[0] != 0;
  return size;
}

// w [m, n] is TW, its copy TCOPY (null where there is none), bias [m] TBIAS.
template <typename TW, typename TCOPY, typename TBIAS, bool STOCHASTIC>
struct UpdateEpilogue {
  TW* w;
  int ldw;
  TCOPY* copy;
  int ldcopy;
  TBIAS* bias;
  int m, n;
  StepSize size;
  float decay;
  unsigned long long seed;
  unsigned int stream;

  struct Fetched {
    float w[4];
  };

  __device__ __forceinline__ Fetched fetch(int row, int column) const {
    Fetched found{};
    load_four(found.w, w + static_cast<long long>(row) * ldw + column, row < m ? n - column : 0,
              four_aligned(w, ldw));
    return found;
  }

  __device__ __forceinline__ void store(int row, int column, const float (&sums)[4],
                                        const Fetched& found) const {
    if (size.skip) return;
    const int count = row < m ? n - column : 0;
    float values[4];
    const float shrink = size.rate * decay;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[i] = found.w[i] - (size.factor * sums[i] + shrink * found.w[i]);
    }
    TW* const to = w + static_cast<long long>(row) * ldw + column;
    if constexpr (STOCHASTIC) round_by_chance(values, row, column);
    store_four(to, values, count, four_aligned(w, ldw));
    if (copy != nullptr) {
      store_four(copy + static_cast<long long>(row) * ldcopy + column, values, count,
                 four_aligned(copy, ldcopy));
    }
  }

  __device__ __forceinline__ void store_bias(int row, float sum) const {
    if (row >= m || size.skip) return;
    const float before = to_float(bias[row]);
    bias[row] = from_float<TBIAS>(before - size.factor * sum);
  }

 private:
  // Values become bfloat16s, still kept as floats. Elements count row by row without padding.
  __device__ __forceinline__ void round_by_chance(float (&values)[4], int row, int column) const {
    const unsigned int element =
        static_cast<unsigned int>(row) * static_cast<unsigned int>(n) +
        static_cast<unsigned int>(column);
    if (element % 4u == 0u) {
      const Words words = rounding_group(seed, stream, size.step, element / 8u);
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
            rounding_bits(seed, stream, size.step, element + static_cast<unsigned int>(i));
        values[i] = to_float(stochastic_round_bf16(values[i], bits));
      }
    }
  }
};
