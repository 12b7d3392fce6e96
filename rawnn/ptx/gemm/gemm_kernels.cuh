// gemm_nt, gemm_nn, gemm_tn, gemm_loss, gemm_update, gemm_momentum, gemm_adam:
// the GEMM kernels, for any main loop.
//
//   c[m, n] = act(alpha * op(a) op(b) + beta * c + bias[n]) * slope(saved[m, n])
//   nt: a[m, k], b[n, k];  nn: a[m, k], b[k, n];  tn: a[k, m], b[k, n];  as matmul.cu
//   loss: dz[m, n] = the gradient of a loss of z = alpha * a b^T + bias, and the blocks' partial sums of
//         its metrics (mma_loss.cuh)
//   update: w[rows, cols] -= lr * (dz[batch, rows]^T x[batch, cols] / loss_scale + decay * w),
//           copy, bias: gradient and step in one kernel, as weight_update.cu; momentum and adam
//           with their own rules
//
// Template parameters: <LOOP, TA, TB, TC, BIAS, ACTIVATION, SLOPE, TS, SUM, tile>; of the loss <LOOP, TA, TB,
// TD, TT, BIAS, LOSS, SUM, tile>; of updates <LOOP, TD, TX, TW, TC, BIAS, SUM, tile>. `tile` stands for the
// parameters of Tile (mma_copy.cuh), SUM for how the main loop accumulates. BIAS: bias is not null. saved
// (with SLOPE None), pre, overflow, and what updates.cuh calls optional may be null. TA, TB, TD and TX may be
// IndexedRows where the main loop uses tensor cores.
//
// LOOP is the main loop, which computes the tile of a block: one each in mma.cu, tiled.cu, wgmma.cu,
// wgmma_tf32.cu and wgmma_scaled.cu, which include this file. It has
//   gemm<TILE, SUM, DEEP_A, DEEP_B, BIAS>(a, lda, b, ldb, m, n, k, epilogue)
// and passes the sums of a block to the epilogue. DEEP_A, DEEP_B: op(a), op(b) are contiguous along the inner
// dimension. BIAS: blocks of the first column of tiles also sum the rows of op(a).
//
// GEMM_BOUNDS are the launch bounds. A bound of one block per multiprocessor is not the same as none: ptxas
// uses more registers with it.
#pragma once
#include "gemm/mma_copy.cuh"
#include "gemm/mma_epilogue.cuh"
#include "gemm/mma_loss.cuh"
#include "gemm/mma_update.cuh"

#ifndef GEMM_BOUNDS
#define GEMM_BOUNDS __launch_bounds__(32 * WM * WN * WK)
#endif

template <typename LOOP, typename TA, typename TB, typename TC, bool BIAS, typename ACTIVATION,
          typename SLOPE, typename TS, typename SUM, int BM, int BN, int WM, int WN, int WK,
          int STAGES, int CLUSTER, int BYTES, bool ALIGNED, bool EARLY = false>
__global__ void GEMM_BOUNDS
    gemm_nt(const TA* __restrict__ a, int lda, const TB* __restrict__ b, int ldb,
               const float* __restrict__ bias, const TS* __restrict__ saved, int ldsaved, TS* pre,
               int ldpre, TC* c, int ldc, int* overflow, int m, int n, int k, float alpha,
               float beta) {
  using TILE = Tile<BM, BN, WM, WN, WK, STAGES, CLUSTER, BYTES, ALIGNED, EARLY>;
  const GemmEpilogue<TC, TS, ACTIVATION, SLOPE> epilogue{
      c, ldc, BIAS ? bias : nullptr, saved, ldsaved, pre, ldpre, overflow, m, n, alpha, beta};
  LOOP::template gemm<TILE, SUM, true, true, false>(a, lda, b, ldb, m, n, k, epilogue);
}

template <typename LOOP, typename TA, typename TB, typename TC, bool BIAS, typename ACTIVATION,
          typename SLOPE, typename TS, typename SUM, int BM, int BN, int WM, int WN, int WK,
          int STAGES, int CLUSTER, int BYTES, bool ALIGNED, bool EARLY = false>
__global__ void GEMM_BOUNDS
    gemm_nn(const TA* __restrict__ a, int lda, const TB* __restrict__ b, int ldb,
               const float* __restrict__ bias, const TS* __restrict__ saved, int ldsaved, TC* c,
               int ldc, int* overflow, int m, int n, int k, float alpha, float beta) {
  using TILE = Tile<BM, BN, WM, WN, WK, STAGES, CLUSTER, BYTES, ALIGNED, EARLY>;
  const GemmEpilogue<TC, TS, ACTIVATION, SLOPE> epilogue{
      c, ldc, BIAS ? bias : nullptr, saved, ldsaved, nullptr, 0, overflow, m, n, alpha, beta};
  LOOP::template gemm<TILE, SUM, true, false, false>(a, lda, b, ldb, m, n, k, epilogue);
}

template <typename LOOP, typename TA, typename TB, typename TC, bool BIAS, typename ACTIVATION,
          typename SLOPE, typename TS, typename SUM, int BM, int BN, int WM, int WN, int WK,
          int STAGES, int CLUSTER, int BYTES, bool ALIGNED, bool EARLY = false>
__global__ void GEMM_BOUNDS
    gemm_tn(const TA* __restrict__ a, int lda, const TB* __restrict__ b, int ldb,
               const float* __restrict__ bias, const TS* __restrict__ saved, int ldsaved, TC* c,
               int ldc, int* overflow, int m, int n, int k, float alpha, float beta) {
  using TILE = Tile<BM, BN, WM, WN, WK, STAGES, CLUSTER, BYTES, ALIGNED, EARLY>;
  const GemmEpilogue<TC, TS, ACTIVATION, SLOPE> epilogue{
      c, ldc, BIAS ? bias : nullptr, saved, ldsaved, nullptr, 0, overflow, m, n, alpha, beta};
  LOOP::template gemm<TILE, SUM, false, false, false>(a, lda, b, ldb, m, n, k, epilogue);
}

template <typename LOOP, typename TA, typename TB, typename TD, typename TT, bool BIAS,
          typename LOSS, typename SUM, int BM, int BN, int WM, int WN, int WK, int STAGES,
          int CLUSTER, int BYTES, bool ALIGNED, bool EARLY = false>
__global__ void GEMM_BOUNDS
    gemm_loss(const TA* __restrict__ a, int lda, const TB* __restrict__ b, int ldb,
                 const float* __restrict__ bias, const TT* __restrict__ t, int ldt,
                 const int* __restrict__ y, const int* __restrict__ cursor, TD* dz, int lddz,
                 const float* __restrict__ loss_scale, int* overflow, float* loss_parts,
                 int* correct_parts, int m, int n, int k, float alpha, int parts, int offset) {
  using TILE = Tile<BM, BN, WM, WN, WK, STAGES, CLUSTER, BYTES, ALIGNED, EARLY>;
  const LossEpilogue<TD, TT, LOSS, BN / 4> epilogue{
      dz, lddz, BIAS ? bias : nullptr, t, ldt, y, loss_scale, overflow, cursor, offset,
      {loss_parts, correct_parts, parts},
      static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x), m, n, alpha};
  LOOP::template gemm<TILE, SUM, true, true, false>(a, lda, b, ldb, m, n, k, epilogue);
}

template <typename LOOP, typename TD, typename TX, typename TW, typename TC, bool BIAS,
          typename SUM, int BM, int BN, int WM, int WN, int WK, int STAGES, int CLUSTER, int BYTES,
          bool ALIGNED, bool EARLY = false>
__global__ void GEMM_BOUNDS
    gemm_update(const TD* __restrict__ dz, int lddz, const TX* __restrict__ x, int ldx, TW* w,
                   int ldw, float* bias, TC* copy, int ldcopy, const float* __restrict__ rates,
                   const int* __restrict__ cursor, const int* __restrict__ clock,
                   const float* __restrict__ loss_scale, const int* __restrict__ overflow,
                   int batch, int rows, int cols, float lr, float decay, float copy_scale,
                   int offset, bool stochastic, unsigned long long seed, unsigned int stream) {
  using TILE = Tile<BM, BN, WM, WN, WK, STAGES, CLUSTER, BYTES, ALIGNED, EARLY>;
  const UpdateEpilogue<TW, TC, Sgd> epilogue{
      w, ldw, copy, ldcopy, bias, {}, {rates, cursor, clock, loss_scale, overflow, offset},
      rows, cols, lr, {decay}, copy_scale, {stochastic, seed, stream, 0}};
  LOOP::template gemm<TILE, SUM, false, false, BIAS>(
      dz, lddz, x, ldx, rows, cols, batch, epilogue);
}

template <typename LOOP, typename TD, typename TX, typename TW, typename TC, bool BIAS,
          typename SUM, int BM, int BN, int WM, int WN, int WK, int STAGES, int CLUSTER, int BYTES,
          bool ALIGNED, bool EARLY = false>
__global__ void GEMM_BOUNDS
    gemm_momentum(const TD* __restrict__ dz, int lddz, const TX* __restrict__ x, int ldx, TW* w,
                     int ldw, float* v, int ldv, float* bias, float* bias_v, TC* copy, int ldcopy,
                     const float* __restrict__ rates, const int* __restrict__ cursor,
                     const int* __restrict__ clock, const float* __restrict__ loss_scale,
                     const int* __restrict__ overflow, int batch, int rows, int cols, float lr,
                     float decay, float momentum, bool nesterov, float copy_scale, int offset,
                     bool stochastic, unsigned long long seed, unsigned int stream) {
  using TILE = Tile<BM, BN, WM, WN, WK, STAGES, CLUSTER, BYTES, ALIGNED, EARLY>;
  const UpdateEpilogue<TW, TC, Momentum> epilogue{
      w, ldw, copy, ldcopy, bias, {{v}, {ldv}, {bias_v}},
      {rates, cursor, clock, loss_scale, overflow, offset}, rows, cols,
      lr, {decay, momentum, nesterov}, copy_scale, {stochastic, seed, stream, 0}};
  LOOP::template gemm<TILE, SUM, false, false, BIAS>(
      dz, lddz, x, ldx, rows, cols, batch, epilogue);
}

template <typename LOOP, typename TD, typename TX, typename TW, typename TC, bool BIAS,
          typename SUM, int BM, int BN, int WM, int WN, int WK, int STAGES, int CLUSTER, int BYTES,
          bool ALIGNED, bool EARLY = false>
__global__ void GEMM_BOUNDS
    gemm_adam(const TD* __restrict__ dz, int lddz, const TX* __restrict__ x, int ldx, TW* w,
                 int ldw, float* m, int ldm, float* v, int ldv, float* bias, float* bias_m,
                 float* bias_v, TC* copy, int ldcopy, const float* __restrict__ rates,
                 const int* __restrict__ cursor, const int* __restrict__ clock,
                 const float* __restrict__ loss_scale, const int* __restrict__ overflow, int batch,
                 int rows, int cols, float lr, float decay, double beta1, double beta2, float eps,
                 bool decoupled, float copy_scale, int offset, bool stochastic,
                 unsigned long long seed, unsigned int stream) {
  using TILE = Tile<BM, BN, WM, WN, WK, STAGES, CLUSTER, BYTES, ALIGNED, EARLY>;
  const UpdateEpilogue<TW, TC, ApproximateAdam> epilogue{
      w, ldw, copy, ldcopy, bias, {{m, v}, {ldm, ldv}, {bias_m, bias_v}},
      {rates, cursor, clock, loss_scale, overflow, offset}, rows, cols,
      lr, {decay, beta1, beta2, eps, decoupled}, copy_scale, {stochastic, seed, stream, 0}};
  LOOP::template gemm<TILE, SUM, false, false, BIAS>(
      dz, lddz, x, ldx, rows, cols, batch, epilogue);
}
