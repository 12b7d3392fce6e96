// A layer's update and the next step's forward GEMM, from one reading of its weights (deferred.cu).
#pragma once
#include "gemm/mma_update.cuh"

namespace deferred {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kMostSteps = 4;

// Rows of weights that a thread processes at once, so that they share what it loads of x and a.
template <typename OPTIMIZER, int BATCH>
constexpr int kRows = BATCH > 2 ? 2 : OPTIMIZER::kStates == 0 ? 4 : 2;

// Blocks of a multiprocessor, at least. At a batch of one a thread has 64 registers: more loads are under
// way than with as many as the compiler likes. Further rows of a batch take registers, for their factors.
template <int BATCH>
constexpr int kBlocks = BATCH == 1 ? 4 : 2;

// What step `back` steps before the launch's own has for the gradient.
template <typename TX>
struct Factors {
  const TX* dz;
  int lddz;
  const TX* x;
  int ldx;
};

// float where the new weights and state are stored, else const float.
template <bool STORES>
struct Stored {
  using Type = float;
};
template <>
struct Stored<false> {
  using Type = const float;
};

// Four neighboring elements that this launch uses once: they do not displace x and a in the L1 cache.
template <typename T>
__device__ __forceinline__ void load_once(float (&values)[4], const T* from, bool whole, int count) {
  if constexpr (sizeof(T) == 4) {
    if (whole) {
      const float4 quad = __ldcs(reinterpret_cast<const float4*>(from));
      values[0] = quad.x;
      values[1] = quad.y;
      values[2] = quad.z;
      values[3] = quad.w;
      return;
    }
  }
  load_part<4>(values, from, whole, count);
}

__device__ __forceinline__ void store_once(float* to, const float (&values)[4], bool whole,
                                           int count) {
  if (whole) {
    __stcs(reinterpret_cast<float4*>(to), make_float4(values[0], values[1], values[2], values[3]));
  } else {
    store_part<4>(to, values, false, count);
  }
}

// TX: type of dz, x and a; TC: of the copy, and of the weights that the forward GEMM multiplies; TY: of c.
// BATCH rows of the batch, STEPS steps whose updates are computed. STORES: the new weights are stored.
// NEXT: c is computed.
template <typename TX, typename TC, typename TY, typename ACTIVATION, typename OPTIMIZER, int BATCH,
          int STEPS, bool STORES, bool NEXT>
struct Layer {
  static constexpr int kStates = OPTIMIZER::kStates;
  static constexpr int kKept = kStates > 0 ? kStates : 1;
  static constexpr int R = kRows<OPTIMIZER, BATCH>;
  static constexpr int kSums = BATCH * R;
  static_assert(kSums <= 32, "a warp finishes the sums of a block's rows");
  using Weight = typename Stored<STORES>::Type;

  Factors<TX> factors[kMostSteps];  // by steps back
  Weight* w;
  int ldw;
  States<kStates, Weight> states;
  Weight* bias;
  TC* copy;
  int ldcopy;
  const TX* a;
  int lda;
  TY* c;
  int ldc;
  Moment when;
  int rows, cols;
  float lr;
  Settings<OPTIMIZER> settings;

  // The optimizer at the step `back` steps before the launch's own. Its number is limited to what exists.
  __device__ __forceinline__ OPTIMIZER at_step(int back) const {
    const int offset = when.offset - min(back, STEPS - 1);
    return settings.optimizer(learning_rate(lr, when.rates, when.cursor, offset),
                              total_step(when.cursor, offset, when.clock) + 1);
  }

  __device__ __forceinline__ bool wide() const {
    bool found = vector_aligned<4>(w, ldw);
    if constexpr (kStates > 0) {
#pragma unroll
      for (int s = 0; s < kStates; ++s) {
        found = found && vector_aligned<4>(states.of_weights[s], states.ld[s]);
      }
    }
    if constexpr (STORES) found = found && vector_aligned<4>(copy, ldcopy);
    if constexpr (NEXT) found = found && vector_aligned<4>(a, lda);
#pragma unroll
    for (int back = 0; back < STEPS; ++back) {
      found = found && vector_aligned<4>(factors[back].x, factors[back].ldx);
    }
    return found;
  }

  __device__ __forceinline__ void run() const {
    __shared__ float parts[kWarps][kSums];
    pdl_wait();
    pdl_trigger();
    const int thread = static_cast<int>(threadIdx.x);
    const int lane = thread & 31;
    const bool aligned_rows = wide();
    const OPTIMIZER steps[kMostSteps] = {at_step(0), at_step(1), at_step(2), at_step(3)};
    const int groups = (rows + R - 1) / R;
#pragma unroll 1
    for (int group = static_cast<int>(blockIdx.x); group < groups;
         group += static_cast<int>(gridDim.x)) {
      const int row0 = group * R;
      const int present = min(R, rows - row0);
      int row[R];  // the last one again where there are fewer
#pragma unroll
      for (int r = 0; r < R; ++r) row[r] = min(row0 + r, rows - 1);
      float d[STEPS][BATCH][R];
#pragma unroll
      for (int back = 0; back < STEPS; ++back) {
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
#pragma unroll
          for (int r = 0; r < R; ++r) {
            d[back][b][r] = to_float(*at(factors[back].dz, factors[back].lddz, b, row[r]));
          }
        }
      }
      float sums[NEXT ? kSums : 1] = {};
#pragma unroll 1
      for (int column = 4 * thread; column < cols; column += 4 * kThreads) {
        const int count = min(4, cols - column);
        const bool whole = aligned_rows && count == 4;
        float weights[R][4];
        float kept[kKept][R][4];
#pragma unroll
        for (int r = 0; r < R; ++r) {
          load_once(weights[r], at(w, ldw, row[r], column), whole, count);
          if constexpr (kStates > 0) {
#pragma unroll
            for (int s = 0; s < kStates; ++s) {
              load_once(kept[s][r], state_of(s, row[r], column), whole, count);
            }
          }
        }
#pragma unroll
        for (int back = STEPS - 1; back >= 0; --back) {
          float gradient[R][4] = {};
#pragma unroll
          for (int b = 0; b < BATCH; ++b) {
            float x[4];
            load_part<4>(x, at(factors[back].x, factors[back].ldx, b, column), whole, count);
#pragma unroll
            for (int r = 0; r < R; ++r) {
#pragma unroll
              for (int i = 0; i < 4; ++i) {
                gradient[r][i] = fmaf(d[back][b][r], x[i], gradient[r][i]);
              }
            }
          }
#pragma unroll
          for (int r = 0; r < R; ++r) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              float state[kKept];
              if constexpr (kStates > 0) {
#pragma unroll
                for (int s = 0; s < kStates; ++s) state[s] = kept[s][r][i];
              }
              weights[r][i] = steps[back](weights[r][i], gradient[r][i], state);
              if constexpr (kStates > 0) {
#pragma unroll
                for (int s = 0; s < kStates; ++s) kept[s][r][i] = state[s];
              }
            }
          }
        }
        if constexpr (STORES) {
#pragma unroll
          for (int r = 0; r < R; ++r) {
            if (r >= present) continue;
            if constexpr (kStates > 0) {
#pragma unroll
              for (int s = 0; s < kStates; ++s) {
                store_once(state_of(s, row[r], column), kept[s][r], whole, count);
              }
            }
            if (copy != nullptr) {
              store_part<4>(at(copy, ldcopy, row[r], column), weights[r], whole, count);
            }
            store_once(at(w, ldw, row[r], column), weights[r], whole, count);
          }
        }
        if constexpr (NEXT) {
#pragma unroll
          for (int b = 0; b < BATCH; ++b) {
            float x[4];
            load_part<4>(x, at(a, lda, b, column), whole, count);
#pragma unroll
            for (int r = 0; r < R; ++r) {
#pragma unroll
              for (int i = 0; i < 4; ++i) {
                sums[b * R + r] = fmaf(rounded_to<TC>(weights[r][i]), x[i], sums[b * R + r]);
              }
            }
          }
        }
      }
      finish(parts, sums, steps, row0, present, lane, thread);
    }
  }

 private:
  // The bias, and c from the sums of all threads. Thread (b, r) has row b of the batch and row r of the
  // weights; the bias of each row is computed for every b, and stored for one.
  __device__ __forceinline__ void finish(float (&parts)[kWarps][kSums],
                                         float (&sums)[NEXT ? kSums : 1],
                                         const OPTIMIZER (&steps)[kMostSteps], int row0,
                                         int present, int lane, int thread) const {
    const int b = thread / R;
    const int r = thread % R;
    const int row = row0 + r;
    const bool mine = thread < kSums && r < present;
    float value = 0.0f;
    float state[kKept];
    if (mine && bias != nullptr) {
      value = bias[row];
      if constexpr (kStates > 0) {
#pragma unroll
        for (int s = 0; s < kStates; ++s) state[s] = states.of_bias[s][row];
      }
#pragma unroll
      for (int back = STEPS - 1; back >= 0; --back) {
        float sum = 0.0f;
#pragma unroll 1
        for (int i = 0; i < BATCH; ++i) {
          sum += to_float(*at(factors[back].dz, factors[back].lddz, i, row));
        }
        value = steps[back](value, sum, state);
      }
    }
    if constexpr (NEXT) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        const float sum = warp_sum(sums[i]);
        if (lane == 0) parts[thread / 32][i] = sum;
      }
    }
    __syncthreads();  // all have read the bias, and the sums are there
    if constexpr (STORES) {
      if (mine && b == 0 && bias != nullptr) {
        bias[row] = value;
        if constexpr (kStates > 0) {
#pragma unroll
          for (int s = 0; s < kStates; ++s) states.of_bias[s][row] = state[s];
        }
      }
    }
    if constexpr (NEXT) {
      if (mine) {
        float sum = 0.0f;
#pragma unroll
        for (int warp = 0; warp < kWarps; ++warp) sum += parts[warp][thread];
        *at(c, ldc, b, row) = from_float<TY>(ACTIVATION::apply(sum + value));
      }
    }
    __syncthreads();  // the next rows' sums take this place
  }

  __device__ __forceinline__ Weight* state_of(int s, int row, int column) const {
    return at(states.of_weights[s], states.ld[s], row, column);
  }
};

}  // namespace deferred
