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
  static constexpr int kChains = SHAPE::kPrecision == kFloat32 ? (kTiles == 1 ? 3 : kTiles <= 4 ? 2 : 1)
                                 : SHAPE::kPrecision == kTf32 && kTiles <= 2 ? 2 : 1;
  // Whether a tensor core sums the large products of two steps, which take half the additions. A second chain
  // has the small ones. One tile has chains that do not wait for each other.
  static constexpr bool kPairs = SHAPE::kPrecision == kFloat32 && kTiles > 1;

  struct Step {
    float a[MT][4];
    float b[NT][2];
  };

  const float* a[MT];
  const float* b[NT];
  float sum[kChains][MT][NT][4];
  float pair[kPairs ? MT : 1][kPairs ? NT : 1][4];  // of large products

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
  // (tests/persistent/arithmetic.py models it). Here a tensor core sums one step, or two (kPairs), and the sum
  // of these is rounded.
  static __device__ __forceinline__ void add_rounded(float (&to)[4], const unsigned int (&x)[4],
                                                     const unsigned int (&y)[2]) {
    ptx::add_product(to, x, y[0], y[1]);
  }

  // A factor of a tf32 product, from an operand of type T.
  template <typename T>
  static __device__ __forceinline__ unsigned int operand(float value) {
    return kSame<T, Tf32> ? __float_as_uint(value) : ptx::near_tf32(value);
  }

  static __device__ __forceinline__ void add_four(float (&to)[4], const float (&values)[4]) {
#pragma unroll
    for (int q = 0; q < 4; ++q) to[q] += values[q];
  }

  // One step of kPairs. With one chain, the small products join the large ones of their pair. With two, the
  // large ones of the pair that ENDS a sum join the small ones, so that one addition has both.
  template <bool ODD, bool BEGINS, bool ENDS, bool LAST>
  __device__ __forceinline__ void add_of_pair(const Step& step) {
    unsigned int high_a[MT][4], high_b[NT][2], low_a[MT][4], low_b[NT][2];
#pragma unroll
    for (int i = 0; i < MT; ++i) ptx::split_tf32(step.a[i], high_a[i], low_a[i]);
#pragma unroll
    for (int j = 0; j < NT; ++j) ptx::split_tf32(step.b[j], high_b[j], low_b[j]);
    constexpr bool one = kChains == 1;
    constexpr bool joins = ENDS && !one && !BEGINS;
    constexpr int second = one ? 0 : 1;
#pragma unroll
    for (int i = 0; i < MT; ++i) {
#pragma unroll
      for (int j = 0; j < NT; ++j) {
        float(&small)[4] = one && !BEGINS ? pair[i][j] : sum[second][i][j];
        add_to<(one || BEGINS) && !ODD>(small, low_a[i], high_b[j]);
      }
    }
#pragma unroll
    for (int i = 0; i < MT; ++i) {
#pragma unroll
      for (int j = 0; j < NT; ++j) {
        float(&small)[4] = one && !BEGINS ? pair[i][j] : sum[second][i][j];
        mma(small, high_a[i], low_b[j]);
      }
    }
#pragma unroll
    for (int i = 0; i < MT; ++i) {
#pragma unroll
      for (int j = 0; j < NT; ++j) {
        float(&large)[4] = joins ? sum[second][i][j] : BEGINS ? sum[0][i][j] : pair[i][j];
        add_to<!one && !joins && !ODD>(large, high_a[i], high_b[j]);
        if constexpr (!BEGINS && !joins && (ODD || LAST)) add_four(sum[0][i][j], large);
        if constexpr (LAST && !one) add_four(sum[0][i][j], sum[second][i][j]);
      }
    }
  }

  // One step of 8 in tf32. ODD steps of kTf32 use another chain. Chains that the first step or pair BEGINS
  // need not be cleared; a sum ENDS with a pair, or the one step that is left, and its LAST step.
  template <bool ODD, bool BEGINS = false, bool ENDS = false, bool LAST = false>
  __device__ __forceinline__ void add(const Step& step) {
    if constexpr (kPairs) {
      add_of_pair<ODD, BEGINS, ENDS, LAST>(step);
      return;
    }
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
      add<false, false, true>(first);
      add<true, false, true, true>(second);
    } else {
      add<false, false, true, true>(first);
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
    add<false, false, true, COUNT % 2 != 0>(first);
    if constexpr (COUNT % 2 == 0) add<true, false, true, true>(second);
  }

  template <int K = 0>
  __device__ __forceinline__ void add_from(Step (&steps)[2]) {
    constexpr bool begins = kPairs ? K < 2 : kChains > 1 && K < 1;
    if constexpr (K + 1 < K8) load(K + 1, steps[(K + 1) % 2]);
    add<K % 2 != 0, begins, (K / 2 == (K8 - 1) / 2), (K == K8 - 1)>(steps[K % 2]);
    if constexpr (K + 1 < K8) add_from<K + 1>(steps);
  }

  __device__ __forceinline__ void add_all() {
    Step steps[2];
    load(0, steps[0]);
    add_from(steps);
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
