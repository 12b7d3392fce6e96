// Operands in shared memory of GEMMs in 16 bits on tensor cores. An operand is stored as bfloat16 or float16,
// as SHAPE::kPrecision says, and a warp loads four 8 x 8 matrices by one instruction (ldmatrix). Or it is
// stored as float32, and rounded after the load.
//
// A step is 16 along k: the elements 2t and 2t + 1 of its first and of its second eight, for both operands. A
// single eight is half a step. An operand is `deep` if neighbours along k are contiguous, else wide. Rows are
// LD elements apart; in 16 bits that is an odd number of eights, so that ldmatrix has no bank conflicts.
#pragma once
#include "persistent/values.cuh"

// TILES tiles of 16 rows of the left operand, EIGHTS eights along k. It loads a step from `eight` on, or half
// of one.
template <typename SHAPE, typename T, bool DEEP, int EIGHTS, int TILES, int LD>
struct Left {
  const float* from[TILES];

  // `tile(i)` is the i-th tile's number.
  template <typename F>
  __device__ __forceinline__ void aim(const float* left, F tile) {
    const int g = lane_index() / 4;
    const int t = lane_index() % 4;
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
      from[i] = left + (DEEP ? (tile(i) * 16 + g) * LD + 2 * t : 2 * t * LD + tile(i) * 16 + g);
    }
  }
  static __device__ __forceinline__ void load_eight(const float* p, unsigned int& upper,
                                                    unsigned int& lower) {
    if constexpr (DEEP) {
      const float2 first = *reinterpret_cast<const float2*>(p);
      const float2 second = *reinterpret_cast<const float2*>(p + 8 * LD);
      upper = pack_halves<SHAPE>(first.x, first.y), lower = pack_halves<SHAPE>(second.x, second.y);
    } else {
      upper = pack_halves<SHAPE>(p[0], p[LD]), lower = pack_halves<SHAPE>(p[8], p[LD + 8]);
    }
  }
  template <int WORDS>
  __device__ __forceinline__ void load(unsigned int (&words)[TILES][WORDS], int eight) const {
    constexpr int ahead = DEEP ? 8 : 8 * LD;
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
      const float* const p = from[i] + eight * ahead;
      load_eight(p, words[i][0], words[i][1]);
      if constexpr (WORDS == 4) load_eight(p + ahead, words[i][2], words[i][3]);
    }
  }
};

template <typename SHAPE, bool DEEP, int EIGHTS, int TILES, int LD>
struct Left<SHAPE, Half, DEEP, EIGHTS, TILES, LD> {
  unsigned int from[TILES];

  template <typename F>
  __device__ __forceinline__ void aim(const Half* left, F tile) {
    const int row = lane_index() % 8;
    const int lower = lane_index() / 8 % 2;
    const int second = EIGHTS > 1 ? lane_index() / 16 : 0;
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
      from[i] = ptx::shared_address(
          left + (DEEP ? (tile(i) * 16 + lower * 8 + row) * LD + second * 8
                       : (second * 8 + row) * LD + tile(i) * 16 + lower * 8));
    }
  }
  template <int WORDS>
  __device__ __forceinline__ void load(unsigned int (&words)[TILES][WORDS], int eight) const {
    constexpr int ahead = DEEP ? 16 : 16 * LD;  // bytes
#pragma unroll
    for (int i = 0; i < TILES; ++i) ptx::load_matrices<!DEEP>(words[i], from[i] + eight * ahead);
  }
};

// TILES tiles of 8 columns of the right operand. It loads STEPS steps and, if HALF, half of one.
template <typename SHAPE, typename T, bool DEEP, int EIGHTS, int TILES, int LD>
struct Right {
  const float* from[TILES];

  template <typename F>
  __device__ __forceinline__ void aim(const float* right, F tile) {
    const int g = lane_index() / 4;
    const int t = lane_index() % 4;
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
      from[j] = right + (DEEP ? (tile(j) * 8 + g) * LD + 2 * t : 2 * t * LD + tile(j) * 8 + g);
    }
  }
  static __device__ __forceinline__ unsigned int load_eight(const float* p) {
    if constexpr (DEEP) {
      const float2 both = *reinterpret_cast<const float2*>(p);
      return pack_halves<SHAPE>(both.x, both.y);
    } else {
      return pack_halves<SHAPE>(p[0], p[LD]);
    }
  }
  template <int STEPS, bool HALF>
  __device__ __forceinline__ void load(unsigned int (&words)[STEPS + HALF][TILES][2],
                                       int eight) const {
    constexpr int ahead = DEEP ? 8 : 8 * LD;
#pragma unroll
    for (int s = 0; s < STEPS + HALF; ++s) {
#pragma unroll
      for (int j = 0; j < TILES; ++j) {
        const float* const p = from[j] + (eight + 2 * s) * ahead;
        words[s][j][0] = load_eight(p);
        if (s < STEPS) words[s][j][1] = load_eight(p + ahead);
      }
    }
  }
};

// Four matrices are two steps of one tile, or one step of two tiles.
template <typename SHAPE, bool DEEP, int EIGHTS, int TILES, int LD>
struct Right<SHAPE, Half, DEEP, EIGHTS, TILES, LD> {
  static_assert(TILES == 1 || TILES % 2 == 0, "pairs");
  static constexpr int kPairs = (TILES + 1) / 2;
  static constexpr int kEights = EIGHTS == 1 ? 1 : TILES > 1 || EIGHTS < 4 ? 2 : 4;  // that lanes differ by
  static constexpr int kAhead = DEEP ? 16 : 16 * LD;
  unsigned int from[kPairs];

  template <typename F>
  __device__ __forceinline__ void aim(const Half* right, F tile) {
    const int row = lane_index() % 8;
    const int eight = lane_index() / 8 % kEights;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int nt = TILES == 1 || lane_index() < 16 ? tile(2 * j) : tile(2 * j + 1);
      from[j] = ptx::shared_address(right + (DEEP ? (nt * 8 + row) * LD + eight * 8
                                                  : (eight * 8 + row) * LD + nt * 8));
    }
  }
  template <int STEPS, bool HALF>
  __device__ __forceinline__ void load(unsigned int (&words)[STEPS + HALF][TILES][2],
                                       int eight) const {
    if constexpr (TILES == 1) {
#pragma unroll
      for (int s = 0; s + 1 < STEPS; s += 2) {
        unsigned int four[4];
        ptx::load_matrices<!DEEP>(four, from[0] + (eight + 2 * s) * kAhead);
        words[s][0][0] = four[0], words[s][0][1] = four[1];
        words[s + 1][0][0] = four[2], words[s + 1][0][1] = four[3];
      }
      if constexpr (STEPS % 2 != 0) {
        ptx::load_matrices<!DEEP>(words[STEPS - 1][0], from[0] + (eight + 2 * STEPS - 2) * kAhead);
      }
      if constexpr (HALF) {
        unsigned int one[1];
        ptx::load_matrices<!DEEP>(one, from[0] + (eight + 2 * STEPS) * kAhead);
        words[STEPS][0][0] = one[0];
      }
    } else {
#pragma unroll
      for (int s = 0; s < STEPS + HALF; ++s) {
        // Half a step: its first eight twice.
        const int back = s < STEPS ? 0 : lane_index() / 8 % kEights * kAhead;
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
          unsigned int four[4];
          ptx::load_matrices<!DEEP>(four, from[j] + (eight + 2 * s) * kAhead - back);
          words[s][2 * j][0] = four[0], words[s][2 * j][1] = four[1];
          words[s][2 * j + 1][0] = four[2], words[s][2 * j + 1][1] = four[3];
        }
      }
    }
  }
};
