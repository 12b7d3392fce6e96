// product_updates: the steps of an optimizer on the weights and biases of several layers in one
// launch, each with the gradient of its own, as product_update and its kin do for one:
//
//   w_i[rows_i, cols_i], copy_i, bias_i: RULE's step with dz_i[batch, rows_i]^T x_i[batch, cols_i]
//
// template <LOOP, TD, TX, TW, TC, RULE, BIAS, LAYERS, SUM, tile>: LAYERS, at most kMostUpdated, have
// operands, and all have the same types. RULE (rules.cuh) is Sgd, which keeps nothing, Momentum, v_i
// and bias_v_i, or QuickAdam, m_i, v_i, bias_m_i, bias_v_i; all else is null. first_i is the first
// of layer i's tiles among those of all, ceil(rows_i / BM) * ceil(cols_i / BN) of it row by row.
//
// Used by `fuse` (updates). Launch: grid (tiles * CLUSTER) of the blocks of the main loop. All tiles
// take the same number of stages, that of the batch, so that they may come in any order; a tile's
// numbers are those of product_update in the same tile, bit for bit.
// Limit: as product_update, whose launches leave multiprocessors idle where layers are small: each
// has a last round of its own, and a beginning.
#pragma once
#include "mma_copy.cuh"
#include "mma_update.cuh"

constexpr int kMostUpdated = 8;

// A layer, with what rules keep at most.
template <typename TD, typename TX, typename TW, typename TC>
struct Updated {
  const TD* dz;
  int lddz;
  const TX* x;
  int ldx;
  TW* w;
  int ldw;
  float* kept[2];  // m, v
  int ldkept[2];
  float* bias;
  float* bias_kept[2];
  TC* copy;
  int ldcopy;
  int rows, cols, first;
  float copy_scale;
  unsigned int stream;

  // The last N of what is kept.
  template <int N>
  __device__ __forceinline__ States<N> states() const {
    States<N> found{};
    if constexpr (N > 0) {
#pragma unroll
      for (int s = 0; s < N; ++s) {
        found.of_weights[s] = kept[2 - N + s];
        found.ld[s] = ldkept[2 - N + s];
        found.of_bias[s] = bias_kept[2 - N + s];
      }
    }
    return found;
  }

  // Where the tile with this number among those of all layers begins.
  template <typename TILE>
  __device__ __forceinline__ Place place(int tile) const {
    const int across = (cols + TILE::kN - 1) / TILE::kN;
    const int down = (tile - first) / across;
    return {down * TILE::kM, (tile - first - down * across) * TILE::kN};
  }
};

template <typename LOOP, typename TD, typename TX, typename TW, typename TC, typename RULE,
          bool BIAS, int LAYERS, typename SUM, int BM, int BN, int WM, int WN, int WK, int STAGES,
          int CLUSTER, int BYTES, bool ALIGNED, bool EARLY = false>
__global__ void PRODUCT_BOUNDS
    product_updates(
        const TD* __restrict__ dz1, int lddz1, const TX* __restrict__ x1, int ldx1, TW* w1, int ldw1,
        float* m1, int ldm1, float* v1, int ldv1, float* bias1, float* bias_m1, float* bias_v1,
        TC* copy1, int ldcopy1, int rows1, int cols1, int first1, float copy_scale1,
        unsigned int stream1,
        const TD* __restrict__ dz2, int lddz2, const TX* __restrict__ x2, int ldx2, TW* w2, int ldw2,
        float* m2, int ldm2, float* v2, int ldv2, float* bias2, float* bias_m2, float* bias_v2,
        TC* copy2, int ldcopy2, int rows2, int cols2, int first2, float copy_scale2,
        unsigned int stream2,
        const TD* __restrict__ dz3, int lddz3, const TX* __restrict__ x3, int ldx3, TW* w3, int ldw3,
        float* m3, int ldm3, float* v3, int ldv3, float* bias3, float* bias_m3, float* bias_v3,
        TC* copy3, int ldcopy3, int rows3, int cols3, int first3, float copy_scale3,
        unsigned int stream3,
        const TD* __restrict__ dz4, int lddz4, const TX* __restrict__ x4, int ldx4, TW* w4, int ldw4,
        float* m4, int ldm4, float* v4, int ldv4, float* bias4, float* bias_m4, float* bias_v4,
        TC* copy4, int ldcopy4, int rows4, int cols4, int first4, float copy_scale4,
        unsigned int stream4,
        const TD* __restrict__ dz5, int lddz5, const TX* __restrict__ x5, int ldx5, TW* w5, int ldw5,
        float* m5, int ldm5, float* v5, int ldv5, float* bias5, float* bias_m5, float* bias_v5,
        TC* copy5, int ldcopy5, int rows5, int cols5, int first5, float copy_scale5,
        unsigned int stream5,
        const TD* __restrict__ dz6, int lddz6, const TX* __restrict__ x6, int ldx6, TW* w6, int ldw6,
        float* m6, int ldm6, float* v6, int ldv6, float* bias6, float* bias_m6, float* bias_v6,
        TC* copy6, int ldcopy6, int rows6, int cols6, int first6, float copy_scale6,
        unsigned int stream6,
        const TD* __restrict__ dz7, int lddz7, const TX* __restrict__ x7, int ldx7, TW* w7, int ldw7,
        float* m7, int ldm7, float* v7, int ldv7, float* bias7, float* bias_m7, float* bias_v7,
        TC* copy7, int ldcopy7, int rows7, int cols7, int first7, float copy_scale7,
        unsigned int stream7,
        const TD* __restrict__ dz8, int lddz8, const TX* __restrict__ x8, int ldx8, TW* w8, int ldw8,
        float* m8, int ldm8, float* v8, int ldv8, float* bias8, float* bias_m8, float* bias_v8,
        TC* copy8, int ldcopy8, int rows8, int cols8, int first8, float copy_scale8,
        unsigned int stream8,
        const float* __restrict__ rates, const int* __restrict__ cursor,
        const int* __restrict__ clock, const float* __restrict__ loss_scale,
        const int* __restrict__ overflow, int batch, float lr, float decay, float momentum,
        bool nesterov, double beta1, double beta2, float eps, bool decoupled, int offset,
        bool stochastic, unsigned long long seed) {
  static_assert(LAYERS >= 1 && LAYERS <= kMostUpdated, "no more layers than there are operands");
  using TILE = Tile<BM, BN, WM, WN, WK, STAGES, CLUSTER, BYTES, ALIGNED, EARLY>;
  const int tile = static_cast<int>(blockIdx.x) / CLUSTER;
  Updated<TD, TX, TW, TC> l;
  if (LAYERS == 1 || tile < first2) {
    l = {dz1, lddz1, x1, ldx1, w1, ldw1, {m1, v1}, {ldm1, ldv1}, bias1, {bias_m1, bias_v1},
         copy1, ldcopy1, rows1, cols1, first1, copy_scale1, stream1};
  } else if (LAYERS == 2 || tile < first3) {
    l = {dz2, lddz2, x2, ldx2, w2, ldw2, {m2, v2}, {ldm2, ldv2}, bias2, {bias_m2, bias_v2},
         copy2, ldcopy2, rows2, cols2, first2, copy_scale2, stream2};
  } else if (LAYERS == 3 || tile < first4) {
    l = {dz3, lddz3, x3, ldx3, w3, ldw3, {m3, v3}, {ldm3, ldv3}, bias3, {bias_m3, bias_v3},
         copy3, ldcopy3, rows3, cols3, first3, copy_scale3, stream3};
  } else if (LAYERS == 4 || tile < first5) {
    l = {dz4, lddz4, x4, ldx4, w4, ldw4, {m4, v4}, {ldm4, ldv4}, bias4, {bias_m4, bias_v4},
         copy4, ldcopy4, rows4, cols4, first4, copy_scale4, stream4};
  } else if (LAYERS == 5 || tile < first6) {
    l = {dz5, lddz5, x5, ldx5, w5, ldw5, {m5, v5}, {ldm5, ldv5}, bias5, {bias_m5, bias_v5},
         copy5, ldcopy5, rows5, cols5, first5, copy_scale5, stream5};
  } else if (LAYERS == 6 || tile < first7) {
    l = {dz6, lddz6, x6, ldx6, w6, ldw6, {m6, v6}, {ldm6, ldv6}, bias6, {bias_m6, bias_v6},
         copy6, ldcopy6, rows6, cols6, first6, copy_scale6, stream6};
  } else if (LAYERS == 7 || tile < first8) {
    l = {dz7, lddz7, x7, ldx7, w7, ldw7, {m7, v7}, {ldm7, ldv7}, bias7, {bias_m7, bias_v7},
         copy7, ldcopy7, rows7, cols7, first7, copy_scale7, stream7};
  } else {
    l = {dz8, lddz8, x8, ldx8, w8, ldw8, {m8, v8}, {ldm8, ldv8}, bias8, {bias_m8, bias_v8},
         copy8, ldcopy8, rows8, cols8, first8, copy_scale8, stream8};
  }
  const UpdateEpilogue<TW, TC, RULE> epilogue{
      l.w, l.ldw, l.copy, l.ldcopy, l.bias, l.template states<RULE::kStates>(),
      {rates, cursor, clock, loss_scale, overflow, offset}, l.rows, l.cols, lr,
      settings_of<RULE>(decay, momentum, nesterov, beta1, beta2, eps, decoupled), l.copy_scale,
      {stochastic, seed, l.stream, 0}};
  LOOP::template product<TILE, SUM, false, false, BIAS>(
      l.dz, l.lddz, l.x, l.ldx, l.rows, l.cols, batch, epilogue, l.template place<TILE>(tile));
}
