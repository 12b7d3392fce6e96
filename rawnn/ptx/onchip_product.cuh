// Matrix products of operands in shared memory, by the warps of one block on tensor cores.
//
// sum[m][n] = sum over k of a[m][k] b[k][n], in tiles of 16 x 8, k in eights. An operand is `deep`
// where neighbours along k lie side by side, else wide; LDA, LDB are floats from one row to the
// next. All are float32; what a product makes of them says SHAPE::kNumbers:
//   kFloat32   each factor is cut into two tf32 numbers, and of their four products the smallest is
//              left out: the error is that of float32 sums
//   kTf32      factors are rounded to tf32;   kBfloat16, kFloat16   to these, as two steps of 8 are
//              packed; what a float16 cannot hold becomes infinity
// A task is MT x NT tiles over one of SPLIT parts of k. Tasks go round the warps from warp FIRST on.
// k beyond the operands must hold zeros in one of them and finite numbers in the other; rows and
// columns beyond them may hold anything: finish leaves them out.
// With SUMS further tasks add up the rows of b, on the tensor cores too.
// Limit: dependent loads and splitting: some 84 cycles a step of a tile in float32 (H200).
#pragma once
#include "onchip_device.cuh"

// What is done with the tiles of a product: `early(mt, nt)` is called ahead of the product, for
// loads that are to come in beside it, store() behind it, sums() for two columns' sums.
template <typename F>
struct Finish {
  struct Early {};
  F body;
  __device__ __forceinline__ Early early(int, int) const { return {}; }
  __device__ __forceinline__ void store(int part, int mt, int nt, const float (&sum)[4],
                                        const Early&) const {
    body(part, mt, nt, sum);
  }
  __device__ __forceinline__ void sums(int, float, float) const {}
};

template <typename F>
__device__ __forceinline__ Finish<F> finish(F body) {
  return {body};
}

// Two numbers of a tile of 16 x 8 in each half: body(row, column, value, value of the next column).
template <typename F>
__device__ __forceinline__ auto pairs(F body) {
  return finish([=](int, int mt, int nt, const float (&sum)[4]) {
    const int lane = lane_index();
    const int row = mt * 16 + lane / 4;
    const int column = nt * 8 + lane % 4 * 2;
    body(row, column, sum[0], sum[1]);
    body(row + 8, column, sum[2], sum[3]);
  });
}

// Four numbers: lanes give their neighbour half of what they have. body(row, column, four values).
template <typename F>
__device__ __forceinline__ auto quads(F body) {
  return finish([=](int, int mt, int nt, const float (&sum)[4]) {
    const int lane = lane_index();
    const bool odd = lane % 2 != 0;
    const float x = __shfl_xor_sync(kFullWarp, odd ? sum[0] : sum[2], 1);
    const float y = __shfl_xor_sync(kFullWarp, odd ? sum[1] : sum[3], 1);
    body(mt * 16 + lane / 4 + (odd ? 8 : 0), nt * 8 + lane % 4 / 2 * 4,
         odd ? make_float4(x, y, sum[2], sum[3]) : make_float4(sum[0], sum[1], x, y));
  });
}

// A body that takes four numbers, of one that takes two.
template <typename F>
__device__ __forceinline__ auto by_pairs(F body) {
  return [=](int row, int column, float4 v) {
    body(row, column, v.x, v.y);
    body(row, column + 2, v.z, v.w);
  };
}

template <typename SHAPE, bool DEEP_A, bool DEEP_B, int M16, int N8, int K8, int SPLIT, int MT,
          int NT, int LDA, int LDB, bool SUMS = false>
struct Product {
  static constexpr int kWarps = SHAPE::kThreads / 32;
  static constexpr int kDown = (M16 + MT - 1) / MT;
  static constexpr int kAcross = (N8 + NT - 1) / NT;
  static constexpr int kTasks = kDown * kAcross * SPLIT;
  static constexpr int kAllTasks = kTasks + (SUMS ? kAcross : 0);
  static constexpr int kSteps = (K8 + SPLIT - 1) / SPLIT;
  static constexpr bool kHalves = SHAPE::kNumbers == kBfloat16 || SHAPE::kNumbers == kFloat16;
  static constexpr bool kPaired = DEEP_A || DEEP_B;  // a lane takes k = 2t, 2t + 1, not t, t + 4
  static constexpr int kUnrolled = 6;
  static constexpr int kTiles = MT * NT;
  // Sums that do not wait for one another.
  static constexpr int kChains = SHAPE::kNumbers == kFloat32 ? (kTiles <= 2 ? 3 : kTiles <= 4 ? 2 : 1)
                                 : SHAPE::kNumbers == kTf32 && kTiles <= 2 ? 2 : 1;

  struct Step {
    float a[MT][4];
    float b[NT][2];
  };

  const float* a[MT];
  const float* b[NT];
  float sum[kChains][MT][NT][4];

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
    if constexpr (SHAPE::kNumbers == kBfloat16) {
      ptx::multiply<bfloat16>(to, x, y[0], y[1]);
    } else if constexpr (SHAPE::kNumbers == kFloat16) {
      ptx::multiply<float16>(to, x, y[0], y[1]);
    } else {
      ptx::multiply<float>(to, x, y[0], y[1]);
    }
  }

  // The same of tf32 numbers, of a sum that has just begun (BEGINS) or goes on.
  template <bool BEGINS>
  static __device__ __forceinline__ void add_to(float (&to)[4], const unsigned int (&x)[4],
                                                const unsigned int (&y)[2]) {
    if constexpr (BEGINS) {
      ptx::multiply_from_zero(to, x, y[0], y[1]);
    } else {
      mma(to, x, y);
    }
  }

  // to += x y in float32: a tensor core cuts its sums off, and so drifts where it goes on with one
  // for many steps (up to nine times float32's error in tests/onchip/arithmetic.py's model of it);
  // here it adds up one step, and the sum of the steps is rounded.
  static __device__ __forceinline__ void add_rounded(float (&to)[4], const unsigned int (&x)[4],
                                                     const unsigned int (&y)[2]) {
    float fresh[4];
    ptx::multiply_from_zero(fresh, x, y[0], y[1]);
#pragma unroll
    for (int q = 0; q < 4; ++q) to[q] += fresh[q];
  }

  static __device__ __forceinline__ unsigned int pack(float low, float high) {
    if constexpr (SHAPE::kNumbers == kFloat16) return ptx::pack_f16(low, high);
    return ptx::pack_bf16(low, high);
  }

  // One step of 8, in tf32 numbers. ODD steps of kTf32 go to another chain. The chains that a step
  // BEGINS need not be cleared.
  template <bool ODD, bool BEGINS = false>
  __device__ __forceinline__ void add(const Step& step) {
    unsigned int high_a[MT][4], high_b[NT][2];
    if constexpr (SHAPE::kNumbers == kFloat32) {
      unsigned int low_a[MT][4], low_b[NT][2];
#pragma unroll
      for (int i = 0; i < MT; ++i) {
#pragma unroll
        for (int q = 0; q < 4; ++q) ptx::split_tf32(step.a[i][q], high_a[i][q], low_a[i][q]);
      }
#pragma unroll
      for (int j = 0; j < NT; ++j) {
#pragma unroll
        for (int q = 0; q < 2; ++q) ptx::split_tf32(step.b[j][q], high_b[j][q], low_b[j][q]);
      }
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
        for (int q = 0; q < 4; ++q) high_a[i][q] = ptx::near_tf32(step.a[i][q]);
      }
#pragma unroll
      for (int j = 0; j < NT; ++j) {
#pragma unroll
        for (int q = 0; q < 2; ++q) high_b[j][q] = ptx::near_tf32(step.b[j][q]);
      }
    }
    constexpr int chain = SHAPE::kNumbers == kTf32 && ODD && kChains > 1 ? 1 : 0;
#pragma unroll
    for (int i = 0; i < MT; ++i) {
#pragma unroll
      for (int j = 0; j < NT; ++j) {
        if constexpr (SHAPE::kNumbers == kFloat32 && !(BEGINS && kChains > 1)) {
          add_rounded(sum[chain][i][j], high_a[i], high_b[j]);
        } else {
          add_to<BEGINS>(sum[chain][i][j], high_a[i], high_b[j]);
        }
      }
    }
  }

  // Two steps of 8 in one of 16: the order of k is free as long as a and b agree.
  __device__ __forceinline__ void add_both(const Step& first, const Step& second) {
    unsigned int pa[MT][4], pb[NT][2];
#pragma unroll
    for (int i = 0; i < MT; ++i) {
      pa[i][0] = pack(first.a[i][0], first.a[i][2]);
      pa[i][1] = pack(first.a[i][1], first.a[i][3]);
      pa[i][2] = pack(second.a[i][0], second.a[i][2]);
      pa[i][3] = pack(second.a[i][1], second.a[i][3]);
    }
#pragma unroll
    for (int j = 0; j < NT; ++j) {
      pb[j][0] = pack(first.b[j][0], first.b[j][1]);
      pb[j][1] = pack(second.b[j][0], second.b[j][1]);
    }
#pragma unroll
    for (int i = 0; i < MT; ++i) {
#pragma unroll
      for (int j = 0; j < NT; ++j) mma(sum[0][i][j], pa[i], pb[j]);
    }
  }

  static __device__ __forceinline__ void clear(Step& step) {
#pragma unroll
    for (int i = 0; i < MT; ++i) {
#pragma unroll
      for (int q = 0; q < 4; ++q) step.a[i][q] = 0.0f;
    }
#pragma unroll
    for (int j = 0; j < NT; ++j) step.b[j][0] = step.b[j][1] = 0.0f;
  }

  static __device__ __forceinline__ void clear(float (&values)[4]) {
#pragma unroll
    for (int q = 0; q < 4; ++q) values[q] = 0.0f;
  }

  // The steps from `k` to `end`; loads run ahead of the products.
  __device__ __forceinline__ void add_steps(int k, int end) {
    if constexpr (kHalves) {
      Step first, second, third, fourth;
#pragma unroll 1
      for (; k + 3 < end; k += 4) {
        load(k, first), load(k + 1, second), load(k + 2, third), load(k + 3, fourth);
        add_both(first, second), add_both(third, fourth);
      }
      if (k + 1 < end) {
        load(k, first), load(k + 1, second);
        add_both(first, second);
        k += 2;
      }
      if (k < end) {
        load(k, first), clear(second);
        add_both(first, second);
      }
    } else if (k < end) {
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
  }

  __device__ __forceinline__ void add_all() {
    if constexpr (kHalves) {
      Step steps[K8 + 1];
#pragma unroll
      for (int k = 0; k < K8; ++k) load(k, steps[k]);
      clear(steps[K8]);
#pragma unroll
      for (int k = 0; k < K8; k += 2) add_both(steps[k], steps[k + 1]);
    } else {
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
  }

  // The sums of b over all k, of NT tiles from `across` on: the product with a row of ones.
  template <typename FINISH>
  static __device__ __forceinline__ void sum_rows(const float* right, int across,
                                                  const FINISH& finish) {
    static_assert(!SUMS || DEEP_B, "rows of b");
    const int g = lane_index() / 4;
    const int t = lane_index() % 4;
    constexpr unsigned int unit = SHAPE::kNumbers == kBfloat16  ? 0x3f803f80u
                                  : SHAPE::kNumbers == kFloat16 ? 0x3c003c00u
                                                                : 0x3f800000u;
    const unsigned int ones[4] = {unit, unit, unit, unit};
    float high_sum[NT][4], low_sum[NT][4];
    const float* from[NT];
#pragma unroll
    for (int j = 0; j < NT; ++j) {
      clear(high_sum[j]), clear(low_sum[j]);
      from[j] = right + (min(across + j, N8 - 1) * 8 + g) * LDB + 2 * t;
    }
#pragma unroll 2
    for (int k = 0; k < K8; ++k) {
#pragma unroll
      for (int j = 0; j < NT; ++j) {
        const float2 both = *reinterpret_cast<const float2*>(from[j] + k * 8);
        if constexpr (kHalves) {
          const unsigned int words[2] = {pack(both.x, both.y), 0u};
          mma(high_sum[j], ones, words);
        } else {
          unsigned int high[2], low[2];
          ptx::split_tf32(both.x, high[0], low[0]);
          ptx::split_tf32(both.y, high[1], low[1]);
          add_rounded(high_sum[j], ones, high);
          mma(low_sum[j], ones, low);
        }
      }
    }
    if (g == 0) {
#pragma unroll
      for (int j = 0; j < NT; ++j) {
        if (across + j < N8) {
          finish.sums(across + j, high_sum[j][0] + low_sum[j][0], high_sum[j][1] + low_sum[j][1]);
        }
      }
    }
  }

  template <typename FINISH>
  static __device__ __forceinline__ void run(const float* left, const float* right, int first,
                                             const FINISH& finish) {
    const int warp = warp_index();
    const int g = lane_index() / 4;
    const int t = lane_index() % 4;
    for (int task = warp < first ? warp - first + kWarps : warp - first; task < kAllTasks;
         task += kWarps) {
      if (SUMS && task >= kTasks) {
        sum_rows(right, (task - kTasks) * NT, finish);
        continue;
      }
      const int part = task % SPLIT;
      const int down = task / SPLIT % kDown * MT;
      const int across = task / SPLIT / kDown * NT;
      Product p;
      typename FINISH::Early early[MT][NT];
#pragma unroll
      for (int i = 0; i < MT; ++i) {
        const int mt = M16 % MT ? min(down + i, M16 - 1) : down + i;
        p.a[i] = DEEP_A ? left + (mt * 16 + g) * LDA + 2 * t
                        : left + (kPaired ? 2 * t : t) * LDA + mt * 16 + g;
      }
#pragma unroll
      for (int j = 0; j < NT; ++j) {
        const int nt = N8 % NT ? min(across + j, N8 - 1) : across + j;
        p.b[j] = DEEP_B ? right + (nt * 8 + g) * LDB + 2 * t
                        : right + (kPaired ? 2 * t : t) * LDB + nt * 8 + g;
      }
#pragma unroll
      for (int i = 0; i < MT; ++i) {
#pragma unroll
        for (int j = 0; j < NT; ++j) {
          early[i][j] = finish.early(min(down + i, M16 - 1), min(across + j, N8 - 1));
#pragma unroll
          for (int chain = 0; chain < kChains; ++chain) clear(p.sum[chain][i][j]);
        }
      }
      if constexpr (SPLIT == 1 && K8 <= kUnrolled) {
        p.add_all();
      } else {
        p.add_steps(part * kSteps, min(part * kSteps + kSteps, K8));
      }
#pragma unroll
      for (int i = 0; i < MT; ++i) {
#pragma unroll
        for (int j = 0; j < NT; ++j) {
          float total[4];
#pragma unroll
          for (int q = 0; q < 4; ++q) {
            total[q] = p.sum[0][i][j][q];
            if constexpr (kChains == 2) total[q] += p.sum[1][i][j][q];
            if constexpr (kChains == 3) {
              total[q] += p.sum[1][i][j][q] + p.sum[2][i][j][q];
            }
          }
          if ((M16 % MT == 0 || down + i < M16) && (N8 % NT == 0 || across + j < N8)) {
            finish.store(part, down + i, across + j, total, early[i][j]);
          }
        }
      }
    }
  }
};

// The parts of a product that was split, in scratch memory [SPLIT][ROWS][pitch]: store_parts puts
// them there.
template <typename SHAPE, int ROWS>
__device__ __forceinline__ auto store_parts(float* scratch) {
  return finish([=](int part, int mt, int nt, const float (&sum)[4]) {
    const int lane = lane_index();
    float* p = scratch + (part * ROWS + mt * 16 + lane / 4) * SHAPE::kPitch + nt * 8 + lane % 4 * 2;
    *reinterpret_cast<float2*>(p) = make_float2(sum[0], sum[1]);
    *reinterpret_cast<float2*>(p + 8 * SHAPE::kPitch) = make_float2(sum[2], sum[3]);
  });
}

// The first `count` of ROWS rows of PITCH floats, each the sum of PARTS parts ROWS rows apart, in their
// order: body(row, column, four values).
template <typename SHAPE, int PARTS, int ROWS, int PITCH = SHAPE::kPitch, typename F>
__device__ __forceinline__ void add_parts(const float* parts, int count, F body) {
  constexpr int across = smaller(PITCH, SHAPE::kColumns) / 4;
#pragma unroll 1
  for (int i = thread_index(); i < count * across; i += SHAPE::kThreads) {
    const int row = i / across;
    const int column = i % across * 4;
    const float* p = parts + row * PITCH + column;
    float4 v = *reinterpret_cast<const float4*>(p);
#pragma unroll
    for (int part = 1; part < PARTS; ++part) {
      const float4 u = *reinterpret_cast<const float4*>(p + part * ROWS * PITCH);
      v.x += u.x, v.y += u.y, v.z += u.z, v.w += u.w;
    }
    body(row, column, v);
  }
}
