// A task of a GEMM (gemm.cuh) in 16 bits: MT x NT tiles of 16 x 8 over STEPS eights of K8. With few
// tiles, a tile has several chains of sums: the result of an mma is available to the next one after some 30
// cycles.
#pragma once
#include "persistent/pairs_16bit.cuh"

template <typename SHAPE, typename TA, typename TB, bool DEEP_A, bool DEEP_B, int K8, int STEPS, int MT,
          int NT, int LDA, int LDB>
struct HalfFragments {
  static_assert(in_halves<SHAPE>(), "16 bits");
  static constexpr int kTiles = MT * NT;
  static constexpr int kChains = kTiles > 2 || STEPS < 4 ? 1 : kTiles == 2 || STEPS < 8 ? 2 : 4;
  static constexpr bool kPairs = false;
  static constexpr int kOnce = kTiles == 1 ? 8 : 4;  // eights whose loads are under way at once
  static constexpr int kStraight = 2;                // such pieces that are no loop

  Left<SHAPE, TA, DEEP_A, STEPS, MT, LDA> a;
  Right<SHAPE, TB, DEEP_B, STEPS, NT, LDB> b;
  float sum[kChains][MT][NT][4];

  template <typename F, typename G>
  __device__ __forceinline__ void aim(const TA* left, const TB* right, F down, G across) {
    a.aim(left, down);
    b.aim(right, across);
  }

  static __device__ __forceinline__ void mma(float (&to)[4], const unsigned int (&x)[4],
                                             const unsigned int (&y)[2]) {
    if constexpr (SHAPE::kPrecision == kBfloat16) {
      ptx::multiply<bfloat16>(to, x, y[0], y[1]);
    } else {
      ptx::multiply<float16>(to, x, y[0], y[1]);
    }
  }
  // The same for half a step.
  static __device__ __forceinline__ void mma(float (&to)[4], const unsigned int (&x)[2],
                                             const unsigned int (&y)[2]) {
    if constexpr (SHAPE::kPrecision == kBfloat16) {
      ptx::multiply_half<bfloat16>(to, x, y[0]);
    } else {
      ptx::multiply_half<float16>(to, x, y[0]);
    }
  }

  static __device__ __forceinline__ void clear(float (&values)[4]) {
#pragma unroll
    for (int q = 0; q < 4; ++q) values[q] = 0.0f;
  }

  // Operands that are loaded together.
  template <int EIGHTS>
  struct Piece {
    static constexpr int kSteps = EIGHTS / 2;
    static constexpr bool kHalf = EIGHTS % 2 != 0;
    unsigned int left[kSteps > 0 ? kSteps : 1][MT][4], last[MT][2];
    unsigned int right[kSteps + kHalf][NT][2];

    __device__ __forceinline__ void load(const HalfFragments& task, int eight) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) task.a.load(left[s], eight + 2 * s);
      if constexpr (kHalf) task.a.load(last, eight + 2 * kSteps);
      task.b.template load<kSteps, kHalf>(right, eight);
    }
    __device__ __forceinline__ void add_to(HalfFragments& task) const {
#pragma unroll
      for (int s = 0; s < kSteps + kHalf; ++s) {
#pragma unroll
        for (int i = 0; i < MT; ++i) {
#pragma unroll
          for (int j = 0; j < NT; ++j) {
            float(&to)[4] = task.sum[s % kChains][i][j];
            if (s < kSteps) mma(to, left[s < kSteps ? s : 0][i], right[s][j]);
            if (s == kSteps) mma(to, last[i], right[s][j]);
          }
        }
      }
    }
  };

  template <int EIGHTS>
  __device__ __forceinline__ void add(int eight) {
    if constexpr (EIGHTS > 0) {
      Piece<EIGHTS> piece;
      piece.load(*this, eight);
      piece.add_to(*this);
    }
  }

  // EIGHTS eights from `eight` on. In a loop, a piece is loaded ahead of the mma instructions of the piece
  // before.
  template <int EIGHTS>
  __device__ __forceinline__ void add_many(int eight) {
    constexpr int pieces = EIGHTS / kOnce;
    if constexpr (pieces <= kStraight) {
#pragma unroll
      for (int i = 0; i < pieces; ++i) add<kOnce>(eight + i * kOnce);
    } else {
      Piece<kOnce> first, second;
      first.load(*this, eight);
      int i = 1;
#pragma unroll 1
      for (; i + 1 < pieces; i += 2) {
        second.load(*this, eight + i * kOnce);
        first.add_to(*this);
        first.load(*this, eight + (i + 1) * kOnce);
        second.add_to(*this);
      }
      if constexpr (pieces % 2 == 0) second.load(*this, eight + (pieces - 1) * kOnce);
      first.add_to(*this);
      if constexpr (pieces % 2 == 0) second.add_to(*this);
    }
    add<EIGHTS % kOnce>(eight + pieces * kOnce);
  }

  // The eights from `eight` to `end`.
  __device__ __forceinline__ void add_steps(int eight, int end) {
#pragma unroll 1
    for (; eight + kOnce <= end; eight += kOnce) add<kOnce>(eight);
    if (kOnce == 8 && eight + 4 <= end) add<4>(eight), eight += 4;
    if (eight + 2 <= end) add<2>(eight), eight += 2;
    if (eight < end) add<1>(eight);
  }

  // One of several parts of k: STEPS eights, or fewer in the last part, unless that is WHOLE too.
  template <bool WHOLE>
  __device__ __forceinline__ void add_part(int part) {
    if constexpr (WHOLE) {
      add_many<STEPS>(part * STEPS);
    } else {
      add_steps(part * STEPS, min(part * STEPS + STEPS, K8));
    }
  }
};
