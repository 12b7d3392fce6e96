// GEMMs of operands in shared memory, by the warps of one block on tensor cores.
//
// sum[m][n] = sum over k of a[m][k] b[k][n], in tiles of 16 x 8, k in eights. An operand is `deep` if
// neighbours along k are contiguous, else wide; LDA and LDB are floats from one row to the next.
// SHAPE::kPrecision is the precision. An operand may be stored as Half (values.cuh):
//   kFloat32   each factor is split into two tf32 numbers, and the smallest of their four products is
//              left out: the error is that of float32 sums
//   kTf32      factors are rounded to tf32;   kBfloat16, kFloat16   to these; what overflows float16
//              becomes infinity
// A task is MT x NT tiles over one of SPLIT parts of k. Tasks are assigned to warps round-robin, from warp
// `first` on. Beyond the operands' extent along k, one of them must hold zeros and the other finite numbers.
// Rows and columns beyond their extent may hold anything: the epilogue (FINISH) leaves them out. With SUMS,
// further tasks sum the rows of b, on the tensor cores too. Limit: in float32 a step of a tile takes a
// sub-core 40 cycles with four warps, 18 of them its tensor core and 18 the splitting of factors (H200).
#pragma once
#include "persistent/epilogue.cuh"
#include "persistent/fragments.cuh"
#include "persistent/gemm_16bit.cuh"

template <typename SHAPE, typename ACTIVATION, typename T>
constexpr bool kIsLate<Gradients<SHAPE, ACTIVATION, T>> = true;

// The type of a task, for operands of types TA and TB, in 16 bits (HALVES) or not.
template <bool HALVES, typename SHAPE, typename TA, typename TB, bool DEEP_A, bool DEEP_B, int K8, int STEPS,
          int MT, int NT, int LDA, int LDB>
struct TaskOf {
  using Type = HalfFragments<SHAPE, TA, TB, DEEP_A, DEEP_B, K8, STEPS, MT, NT, LDA, LDB>;
};

template <typename SHAPE, typename TA, typename TB, bool DEEP_A, bool DEEP_B, int K8, int STEPS, int MT, int NT,
          int LDA, int LDB>
struct TaskOf<false, SHAPE, TA, TB, DEEP_A, DEEP_B, K8, STEPS, MT, NT, LDA, LDB> {
  using Type = Fragments<SHAPE, TA, TB, DEEP_A, DEEP_B, K8, STEPS, MT, NT, LDA, LDB>;
};

template <typename SHAPE, bool DEEP_A, bool DEEP_B, int M16, int N8, int K8, int SPLIT, int MT,
          int NT, int LDA, int LDB, bool SUMS = false, typename TA = float, typename TB = float>
struct Gemm : TaskOf<in_halves<SHAPE>(), SHAPE, TA, TB, DEEP_A, DEEP_B, K8, ceil_div(K8, SPLIT), MT,
                        NT, LDA, LDB>::Type {
  using Base = typename TaskOf<in_halves<SHAPE>(), SHAPE, TA, TB, DEEP_A, DEEP_B, K8, ceil_div(K8, SPLIT),
                               MT, NT, LDA, LDB>::Type;
  using Base::kChains;
  using LeftType = TA;
  using RightType = TB;
  static constexpr int kRows = M16;
  static constexpr int kColumns = N8;
  static constexpr int kTilesDown = MT;
  static constexpr int kTilesAcross = NT;
  static constexpr unsigned int kWarps = SHAPE::kThreads / 32;
  static constexpr unsigned int kDown = (M16 + MT - 1) / MT;
  static constexpr unsigned int kAcross = (N8 + NT - 1) / NT;
  static constexpr unsigned int kTasks = kDown * kAcross * SPLIT;
  static constexpr unsigned int kAllTasks = kTasks + (SUMS ? kAcross : 0);

  static __device__ __forceinline__ unsigned int two_of_row(const Half* from) {
    return *reinterpret_cast<const unsigned int*>(from);
  }
  static __device__ __forceinline__ unsigned int two_of_row(const float* from) {
    const float2 both = *reinterpret_cast<const float2*>(from);
    return pack_halves<SHAPE>(both.x, both.y);
  }

  // The sums of b over k, for NT tiles from `across` on: a GEMM with a row of ones.
  template <typename FINISH>
  static __device__ __forceinline__ void sum_rows(const TB* right, int across,
                                                  const FINISH& finish) {
    static_assert(!SUMS || DEEP_B, "rows of b");
    const int g = lane_index() / 4;
    const int t = lane_index() % 4;
    constexpr unsigned int unit = SHAPE::kPrecision == kBfloat16  ? 0x3f803f80u
                                  : SHAPE::kPrecision == kFloat16 ? 0x3c003c00u
                                                                : 0x3f800000u;
    const unsigned int ones[4] = {unit, unit, unit, unit};
    float high_sum[NT][4], low_sum[NT][4];
    const TB* from[NT];
#pragma unroll
    for (int j = 0; j < NT; ++j) {
      Base::clear(high_sum[j]), Base::clear(low_sum[j]);
      const int tile = N8 % NT ? min(across + j, N8 - 1) : across + j;
      from[j] = right + (tile * 8 + g) * LDB + 2 * t;
    }
    if constexpr (in_halves<SHAPE>()) {
#pragma unroll 1
      for (int k = 0; k < K8; k += 4) {
#pragma unroll
        for (int j = 0; j < NT; ++j) {
          const auto word = [&](int i) { return k + i < K8 ? two_of_row(from[j] + (k + i) * 8) : 0u; };
          const unsigned int first[2] = {word(0), word(1)}, second[2] = {word(2), word(3)};
          Base::mma(high_sum[j], ones, first);
          if constexpr (K8 > 2) Base::mma(low_sum[j], ones, second);
        }
        if constexpr (K8 <= 4) break;
      }
    } else {
#pragma unroll 2
      for (int k = 0; k < K8; ++k) {
#pragma unroll
        for (int j = 0; j < NT; ++j) {
          const float2 both = *reinterpret_cast<const float2*>(from[j] + k * 8);
          const float two[2] = {both.x, both.y};
          unsigned int high[2] = {__float_as_uint(both.x), __float_as_uint(both.y)}, low[2];
          if constexpr (!kSame<TB, Tf32>) ptx::split_tf32(two, high, low);
          Base::add_rounded(high_sum[j], ones, high);
          if constexpr (!kSame<TB, Tf32>) Base::mma(low_sum[j], ones, low);
        }
      }
    }
    // All rows of the product are equal, so that each of the first lanes' rows finishes another tile.
    static_assert(NT <= 8, "rows of a tile's half");
    float first = high_sum[0][0] + low_sum[0][0];
    float second = high_sum[0][1] + low_sum[0][1];
#pragma unroll
    for (int j = 1; j < NT; ++j) {
      if (g == j) first = high_sum[j][0] + low_sum[j][0], second = high_sum[j][1] + low_sum[j][1];
    }
    finish.sums(across + g, first, second, g < NT && (N8 % NT == 0 || across + g < N8));
  }

  // Begins the sums of a task whose first tile is (down, across).
  __device__ __forceinline__ void begin_task(const TA* left, const TB* right, int down, int across) {
    this->aim(left, right, [=](int i) { return M16 % MT ? min(down + i, M16 - 1) : down + i; },
              [=](int j) { return N8 % NT ? min(across + j, N8 - 1) : across + j; });
#pragma unroll
    for (int i = 0; i < MT; ++i) {
#pragma unroll
      for (int j = 0; j < NT; ++j) {
#pragma unroll
        for (int chain = 0; chain < kChains; ++chain) Base::clear(this->sum[chain][i][j]);
      }
    }
  }
  // The sums of tile (i, j), of all chains.
  __device__ __forceinline__ void total_of(float (&total)[4], int i, int j) const {
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      total[q] = this->sum[0][i][j][q];
      if constexpr (Base::kPairs) continue;  // one chain has them all
      if constexpr (kChains == 2) total[q] += this->sum[1][i][j][q];
      if constexpr (kChains == 3) total[q] += this->sum[1][i][j][q] + this->sum[2][i][j][q];
      if constexpr (kChains == 4) {
        total[q] += this->sum[1][i][j][q];
        total[q] += this->sum[2][i][j][q] + this->sum[3][i][j][q];
      }
    }
  }

  template <typename FINISH>
  static __device__ __forceinline__ void run_task(const TA* left, const TB* right, unsigned int task,
                                                  const FINISH& finish) {
    if (SUMS && task >= kTasks) {
      sum_rows(right, static_cast<int>(task - kTasks) * NT, finish);
      return;
    }
    const int part = static_cast<int>(task % SPLIT);
    const int down = static_cast<int>(task / SPLIT % kDown) * MT;
    const int across = static_cast<int>(task / SPLIT / kDown) * NT;
    Gemm p;
    typename FINISH::Early early[MT][NT];
    const auto load_row = [&](int i) {
#pragma unroll
      for (int j = 0; j < NT; ++j) {
        early[i][j] = finish.early(M16 % MT ? min(down + i, M16 - 1) : down + i,
                                   N8 % NT ? min(across + j, N8 - 1) : across + j);
      }
    };
    const auto load = [&]() {
#pragma unroll
      for (int i = 0; i < MT; ++i) load_row(i);
    };
    p.begin_task(left, right, down, across);
    if constexpr (!kIsLate<FINISH> && !kIsByRow<FINISH>) load();
    p.template add_part<K8 % SPLIT == 0>(part);
    if constexpr (kIsLate<FINISH>) load();
#pragma unroll
    for (int i = 0; i < MT; ++i) {
      if constexpr (kIsByRow<FINISH>) load_row(i);
#pragma unroll
      for (int j = 0; j < NT; ++j) {
        float total[4];
        p.total_of(total, i, j);
        if ((M16 % MT == 0 || down + i < M16) && (N8 % NT == 0 || across + j < N8)) {
          finish.store(part, down + i, across + j, total, early[i][j]);
        }
      }
    }
  }

  // Numbers of tasks have no sign: so quotients and remainders are shifts and masks, and the first task of a
  // warp, which there is if all warps have one, is not compared with 0.
  template <typename FINISH>
  static __device__ __forceinline__ void run(const TA* left, const TB* right, unsigned int first,
                                             const FINISH& finish) {
    const unsigned int warp = warp_index();
    unsigned int task = warp < first ? warp - first + kWarps : warp - first;
    if (kAllTasks < kWarps && task >= kAllTasks) return;
    do {
      run_task(left, right, task, finish);
      if constexpr (kAllTasks <= kWarps) break;
      task += kWarps;
    } while (task < kAllTasks);
  }
};
