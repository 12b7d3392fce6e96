// A task of a GEMM (gemm.cuh) in float32 or tf32. It loads fragments of its operands from shared
// memory, converts them to tf32, and accumulates its tiles. A tile has several chains of sums, so that
// consecutive mma instructions are independent.
#pragma once
#include "persistent/values.cuh"

// MT x NT tiles of 16 x 8 over STEPS eights of K8. Operands are floats, or Tf32: rounded when they were stored.
template <typename SHAPE, typename TA, typename TB, bool DEEP_A, bool DEEP_B, int K8, int STEPS, int MT, int NT,
          int LDA, int LDB>
struct Fragments {
  static constexpr bool kPaired = DEEP_A || DEEP_B;  // a lane takes k = 2t, 2t + 1, not t, t + 4
  static constexpr int kTiles = MT * NT;
  static constexpr int kUnrolled = 6;
  // Independent sums of a tile.
  static constexpr int kChains = SHAPE::kPrecision == kFloat32 ? (kTiles <= 2 ? 3 : kTiles <= 4 ? 2 : 1)
                                 : SHAPE::kPrecision == kTf32 && kTiles <= 2 ? 2 : 1;

  struct Step {
    float a[MT][4];
    float b[NT][2];
  };

  const float* a[MT];
  const float* b[NT];
  float sum[kChains][MT][NT][4];

  // The task's tiles: the i-th from above is down(i), the j-th from the left across(j).
  template <typename F, typename G>
  __device__ __forceinline__ void aim(const TA* first, const TB* second, F down, G across) {
    const float* const left = reinterpret_cast<const float*>(first);
    const float* const right = reinterpret_cast<const float*>(second);
    const int g = lane_index() / 4;
    const int t = lane_index() % 4;
#pragma unroll
    for (int i = 0; i < MT; ++i) {
      a[i] = DEEP_A ? left + (down(i) * 16 + g) * LDA + 2 * t
                    : left + (kPaired ? 2 * t : t) * LDA + down(i) * 16 + g;
    }
#pragma unroll
    for (int j = 0; j < NT; ++j) {
      b[j] = DEEP_B ? right + (across(j) * 8 + g) * LDB + 2 * t
                    : right + (kPaired ? 2 * t : t) * LDB + across(j) * 8 + g;
    }
  }

  __device__ __forceinline__ void load(int k, Step& to) const {
#pragma unroll
    for (int i = 0; i < MT; ++i) {
      if constexpr (DEEP_A) {
        const float2 upper = *reinterpret_cast<const float2*>(a[i] + k * 8);
        const float2 lower = *reinterpret_cast<const float2*>(a[i] + 8 * LDA + k * 8);
        to.a[i][0] = upper.x, to.a[i][2] = upper.y, to.a[i][1] = lower.x, to.a[i][3] = lower.y;
      } else {
        const float* p = a[i] + k * 8 * LDA;
        constexpr int next = (kPaired ? 1 : 4) * LDA;
        to.a[i][0] = p[0], to.a[i][1] = p[8], to.a[i][2] = p[next], to.a[i][3] = p[next + 8];
      }
    }
#pragma unroll
    for (int j = 0; j < NT; ++j) {
      if constexpr (DEEP_B) {
        const float2 both = *reinterpret_cast<const float2*>(b[j] + k * 8);
        to.b[j][0] = both.x, to.b[j][1] = both.y;
      } else {
        const float* p = b[j] + k * 8 * LDB;
        to.b[j][0] = p[0], to.b[j][1] = p[(kPaired ? 1 : 4) * LDB];
      }
    }
  }

  static __device__ __forceinline__ void mma(float (&to)[4], const unsigned int (&x)[4],
                                             const unsigned int (&y)[2]) {
    ptx::multiply<float>(to, x, y[0], y[1]);
  }

  // The same for tf32 factors, for a sum that begins (BEGINS) or continues.
  template <bool BEGINS>
  static __device__ __forceinline__ void add_to(float (&to)[4], const unsigned int (&x)[4],
                                                const unsigned int (&y)[2]) {
    if constexpr (BEGINS) {
      ptx::multiply_from_zero(to, x, y[0], y[1]);
    } else {
      mma(to, x, y);
    }
  }

  // to += x y in float32. A tensor core truncates its sums, so a sum over many steps drifts
  // (tests/persistent/arithmetic.py models it). Here a tensor core sums one step, and the sum of the steps is
  // rounded.
  static __device__ __forceinline__ void add_rounded(float (&to)[4], const unsigned int (&x)[4],
                                                     const unsigned int (&y)[2]) {
    ptx::add_product(to, x, y[0], y[1]);
  }

  // A factor of a tf32 product, from an operand of type T.
  template <typename T>
  static __device__ __forceinline__ unsigned int operand(float value) {
    return kSame<T, Tf32> ? __float_as_uint(value) : ptx::near_tf32(value);
  }

  // One step of 8 in tf32. ODD steps of kTf32 use another chain. Chains that a step BEGINS need not be
  // cleared.
  template <bool ODD, bool BEGINS = false>
  __device__ __forceinline__ void add(const Step& step) {
    if constexpr (kTiles == 1 && kChains == 3) {
      ptx::add_float_product<BEGINS>(sum[0][0][0], sum[1][0][0], sum[2][0][0], step.a[0], step.b[0]);
      return;
    }
    unsigned int high_a[MT][4], high_b[NT][2];
    if constexpr (SHAPE::kPrecision == kFloat32) {
      unsigned int low_a[MT][4], low_b[NT][2];
#pragma unroll
      for (int i = 0; i < MT; ++i) ptx::split_tf32(step.a[i], high_a[i], low_a[i]);
#pragma unroll
      for (int j = 0; j < NT; ++j) ptx::split_tf32(step.b[j], high_b[j], low_b[j]);
      constexpr int second = kChains > 1 ? 1 : 0;
      constexpr int third = kChains > 2 ? 2 : second;
#pragma unroll
      for (int i = 0; i < MT; ++i) {
#pragma unroll
        for (int j = 0; j < NT; ++j) add_to<BEGINS>(sum[second][i][j], low_a[i], high_b[j]);
      }
#pragma unroll
      for (int i = 0; i < MT; ++i) {
#pragma unroll
        for (int j = 0; j < NT; ++j) {
          add_to<BEGINS && third != second>(sum[third][i][j], high_a[i], low_b[j]);
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < MT; ++i) {
#pragma unroll
        for (int q = 0; q < 4; ++q) high_a[i][q] = operand<TA>(step.a[i][q]);
      }
#pragma unroll
      for (int j = 0; j < NT; ++j) {
#pragma unroll
        for (int q = 0; q < 2; ++q) high_b[j][q] = operand<TB>(step.b[j][q]);
      }
    }
    constexpr int chain = SHAPE::kPrecision == kTf32 && ODD && kChains > 1 ? 1 : 0;
#pragma unroll
    for (int i = 0; i < MT; ++i) {
#pragma unroll
      for (int j = 0; j < NT; ++j) {
        if constexpr (SHAPE::kPrecision == kFloat32 && !(BEGINS && kChains > 1)) {
          add_rounded(sum[chain][i][j], high_a[i], high_b[j]);
        } else {
          add_to<BEGINS>(sum[chain][i][j], high_a[i], high_b[j]);
        }
      }
    }
  }

  static __device__ __forceinline__ void clear(float (&values)[4]) {
#pragma unroll
    for (int q = 0; q < 4; ++q) values[q] = 0.0f;
  }

  // The steps from `k` to `end`. Loads are issued a step ahead.
  __device__ __forceinline__ void add_steps(int k, int end) {
    if (k >= end) return;
    Step first, second;
    load(k, first);
#pragma unroll 1
    for (; k + 2 < end; k += 2) {
      load(k + 1, second);
      add<false>(first);
      load(k + 2, first);
      add<true>(second);
    }
    if (k + 1 < end) {
      load(k + 1, second);
      add<false>(first);
      add<true>(second);
    } else {
      add<false>(first);
    }
  }

  // The COUNT steps from `k` on. The compiler does not find out itself how many there are at the end.
  template <int COUNT>
  __device__ __forceinline__ void add_many(int k) {
    constexpr int in_loop = (COUNT - 1) / 2 * 2;
    Step first, second;
    load(k, first);
    if constexpr (in_loop > 0) {
      const int end = k + in_loop;
#pragma unroll 1
      for (; k < end; k += 2) {
        load(k + 1, second);
        add<false>(first);
        load(k + 2, first);
        add<true>(second);
      }
    }
    if constexpr (COUNT % 2 == 0) load(k + 1, second);
    add<false>(first);
    if constexpr (COUNT % 2 == 0) add<true>(second);
  }

  __device__ __forceinline__ void add_all() {
    Step steps[2];
    load(0, steps[0]);
#pragma unroll
    for (int k = 0; k < K8; k += 2) {
      if (k + 1 < K8) load(k + 1, steps[1]);
      if (k == 0) {
        add<false, (kChains > 1)>(steps[0]);
      } else {
        add<false>(steps[0]);
      }
      if (k + 2 < K8) load(k + 2, steps[0]);
      if (k + 1 < K8) add<true>(steps[1]);
    }
  }

  // One of several parts of k, of STEPS steps each; the last may have fewer, unless it is WHOLE too.
  template <bool WHOLE>
  __device__ __forceinline__ void add_part(int part) {
    if constexpr (STEPS == K8 && K8 <= kUnrolled) {
      add_all();
    } else if constexpr (WHOLE) {
      add_many<STEPS>(part * STEPS);
    } else {
      add_steps(part * STEPS, min(part * STEPS + STEPS, K8));
    }
  }
};
