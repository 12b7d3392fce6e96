// What one lane of skinny_backward.cuh computes from its weights of a tile: their contribution to the
// input gradient, and the update.
#pragma once
#include "device/products.cuh"
#include "device/shared.cuh"
#include "gemm/skinny_parts.cuh"
#include "optimizers/updates.cuh"

namespace skinny {

// A lane's V columns of four rows; template parameters are those of Backward.
template <typename T, typename TW, bool STOCHASTIC, bool DECAY, bool RAGGED, int TILES, int V>
struct LaneWeights {
  static constexpr bool kMaster = sizeof(TW) == 4;
  static constexpr int kDeep = TILES / 2;  // products of 16 rows of the batch
  static constexpr int kWords = V * static_cast<int>(sizeof(TW)) / 4;  // a lane's part of a row
  using Piece = unsigned int[4][kWords];

  struct Step {
    bool skip;
    float factor;  // for the gradient
    float shrink;  // for the weight
    Rounding how;
  };

  // The same element of two rows in one register.
  static __device__ __forceinline__ unsigned int pair(const unsigned int (&low)[kWords],
                                                      const unsigned int (&high)[kWords], int i) {
    if constexpr (kMaster) {
      return pack_pair<T>(__uint_as_float(low[i]), __uint_as_float(high[i]));
    } else {
      return __byte_perm(low[i / 2], high[i / 2], i % 2 == 0 ? 0x5410 : 0x7632);
    }
  }

  // x^T, the first factor of the weight gradient, for this lane's V columns.
  static __device__ __forceinline__ void load_x(unsigned int (&xt)[kDeep][V / 2][4],
                                                unsigned int x_tile, int g, int t, int across) {
    const int chunk = V == 8 ? g : across * 4 + g / 2;
#pragma unroll
    for (int deep = 0; deep < kDeep; ++deep) {
      unsigned int piece[4][V / 2];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        load_shared(piece[r], x_tile + deep * 2048 + r / 2 * 1024 +
                                  bulk::place(2 * t + r % 2, chunk) + (V == 4 ? g % 2 * 8 : 0));
      }
#pragma unroll
      for (int i = 0; i < V / 2; ++i) {
        xt[deep][i][0] = __byte_perm(piece[0][i], piece[1][i], 0x5410);
        xt[deep][i][1] = __byte_perm(piece[0][i], piece[1][i], 0x7632);
        xt[deep][i][2] = __byte_perm(piece[2][i], piece[3][i], 0x5410);
        xt[deep][i][3] = __byte_perm(piece[2][i], piece[3][i], 0x7632);
      }
    }
  }

  // sums += w^T dz^T over the tile's 16 rows and this warp's part of the batch.
  static __device__ __forceinline__ void accumulate(float (&sums)[V / 2][2 * kDeep][4],
                                                    const Piece& piece, unsigned int dz_tiles) {
    unsigned int wt[V / 2][4];
#pragma unroll
    for (int i = 0; i < V / 2; ++i) {
      wt[i][0] = pair(piece[0], piece[1], 2 * i);
      wt[i][1] = pair(piece[0], piece[1], 2 * i + 1);
      wt[i][2] = pair(piece[2], piece[3], 2 * i);
      wt[i][3] = pair(piece[2], piece[3], 2 * i + 1);
    }
#pragma unroll
    for (int deep = 0; deep < kDeep; ++deep) {
      unsigned int d[4];
      ptx::load_matrices<false>(d, dz_tiles + deep * 16 * 128);
#pragma unroll
      for (int i = 0; i < V / 2; ++i) {
        multiply<T>(sums[i][2 * deep], wt[i], d[0], d[1]);
        multiply<T>(sums[i][2 * deep + 1], wt[i], d[2], d[3]);
      }
    }
  }

  // Writes new weights over the old ones, for this lane's rows `row`, `row` + 1, + 8 and + 9: the tensor
  // cores leave each gradient in the lane that has its weight.
  static __device__ __forceinline__ void update(Piece& piece, unsigned int dz_tiles,
                                         const unsigned int (&xt)[kDeep][V / 2][4], int row,
                                         int column, int cols, const Step& step) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      unsigned int d[kDeep][2];
      load_dz(d, dz_tiles, half);
      Words random[2];
      if constexpr (STOCHASTIC) draw(random[0], random[1], row + 8 * half, column, cols, step.how);
#pragma unroll
      for (int first = 0; first < V; first += 4) {
        float values[2][4];
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
          float product[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
          for (int deep = 0; deep < kDeep; ++deep) {
            multiply<T>(product, xt[deep][(first + i) / 2], d[deep][0], d[deep][1]);
          }
#pragma unroll
          for (int odd = 0; odd < 2; ++odd) {
            const unsigned int(&words)[kWords] = piece[2 * half + odd];
            float2 old;
            if constexpr (kMaster) {
              old = make_float2(__uint_as_float(words[i]), __uint_as_float(words[i + 1]));
            } else {
              old = unpack_pair<T>(words[(first + i) / 2]);
            }
            values[odd][i] = stepped(old.x, product[odd], step);
            values[odd][i + 1] = stepped(old.y, product[2 + odd], step);
          }
        }
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          unsigned int* const words = piece[2 * half + odd] + (kMaster ? 0 : first / 2);
          if constexpr (STOCHASTIC) {
            round_stochastic(words, values[odd], random[odd].word + first / 2);
          } else if constexpr (kMaster) {
#pragma unroll
            for (int i = 0; i < 4; ++i) words[i] = __float_as_uint(values[odd][i]);
          } else {
            words[0] = pack_pair<T>(values[odd][0], values[odd][1]);
            words[1] = pack_pair<T>(values[odd][2], values[odd][3]);
          }
        }
      }
    }
  }

  // dz of the lower or upper 8 rows of the tile, as the second factor of the weight gradient. Lane l
  // gives the address of row l of the batch.
  static __device__ __forceinline__ void load_dz(unsigned int (&d)[kDeep][2],
                                                 unsigned int dz_tiles, int half) {
#pragma unroll
    for (int deep = 0; deep < kDeep; deep += 2) {
      unsigned int tiles[4];
      ptx::load_matrices<true>(tiles, (dz_tiles ^ (half * 16)) + deep * 16 * 128);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (deep + i < kDeep) {
          d[deep + i][0] = tiles[2 * i];
          d[deep + i][1] = tiles[2 * i + 1];
        }
      }
    }
  }

  static __device__ __forceinline__ float stepped(float old, float gradient, const Step& step) {
    return fmaf(-step.factor, gradient, DECAY ? fmaf(-step.shrink, old, old) : old);
  }

  // Random bits for this lane's columns of rows `row` and `row` + 1. A draw covers 8 columns: lanes with 4
  // of them draw for one row each, and exchange halves.
  static __device__ __forceinline__ void draw(Words& upper, Words& lower, int row, int column,
                                              int cols, const Rounding& how) {
    const unsigned int element = static_cast<unsigned int>(row) * static_cast<unsigned int>(cols) +
                                 static_cast<unsigned int>(column);
    const unsigned int below = element + static_cast<unsigned int>(cols);
    if constexpr (RAGGED) {
      upper = rounding_window<V>(how, element);
      lower = rounding_window<V>(how, below);
    } else if constexpr (V == 8) {
      upper = rounding_group(how.seed, how.stream, how.step, element / 8u);
      lower = rounding_group(how.seed, how.stream, how.step, below / 8u);
    } else {
      const bool second = column % 8 != 0;
      const Words own =
          rounding_group(how.seed, how.stream, how.step, (second ? below : element) / 8u);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const unsigned int low = own.word[i];
        const unsigned int high = own.word[2 + i];
        const unsigned int kept = second ? high : low;
        const unsigned int got = __shfl_xor_sync(0xffffffffu, second ? low : high, 4);
        upper.word[i] = second ? got : kept;
        lower.word[i] = second ? kept : got;
      }
    }
  }

  // bias -= rate * column sums of dz, as a product with ones. Every element has one writer, so that an
  // atomic addition is as reproducible as a store, and nobody waits for the old value.
  static __device__ __forceinline__ void update_bias(float* bias, int rows, unsigned int dz_tiles,
                                                     int row, int g, const Step& step) {
    const unsigned int pair_of_ones = g == 0 ? pack_pair<T>(1.0f, 1.0f) : 0u;
    const unsigned int ones[4] = {pair_of_ones, 0u, pair_of_ones, 0u};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      unsigned int d[kDeep][2];
      load_dz(d, dz_tiles, half);
      float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int deep = 0; deep < kDeep; ++deep) multiply<T>(sum, ones, d[deep][0], d[deep][1]);
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const int at_row = row + 8 * half + odd;
        if (g == 0 && at_row < rows) {
          const float shrink = DECAY ? step.shrink * bias[at_row] : 0.0f;
          atomicAdd(bias + at_row, -(step.factor * sum[odd] + shrink));
        }
      }
    }
  }
};

}  // namespace skinny
