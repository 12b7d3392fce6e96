// wgmma_nt, wgmma_nn, wgmma_tn, wgmma_update: products on Hopper's tensor cores (sm_90a), each
// computed by warpgroups from tiles in shared memory.
//
//   The products, operands and scalars of mma.cu, for operands of float16 or bfloat16 (both of one
//   type), or, in nt, of 8-bit floats. Sums are in float, in one order: results repeat bit for bit.
//
// template <TA, TB, TC, BIAS, ACTIVATION, SLOPE, TS, tile>, wgmma_update <TD, TX, TW, TC, BIAS,
// tile>, where `tile` are the parameters of Tile (mma_copy.cuh) without BYTES. A warpgroup computes
// 64 rows by BN / WN columns (64, 128 or 256), so WM is BM / 16 and WK 1. With 8-bit operands the
// tensor cores keep about 14 bits of the sums.
//
// Used by `mma` on Hopper. Launch: as mma.cu, with grid.x times CLUSTER and clusters of CLUSTER
// blocks along x (1 in wgmma_update); a stage is 128 bytes of the inner dimension, at least 3
// stages, and 1,024 bytes more than they take.
// Limit: small products, latency; large ones, shared memory, then the instructions of cp.async.
#include "device/fences.cuh"
#include "mma_copy.cuh"
#include "mma_epilogue.cuh"
#include "mma_sums.cuh"
#include "mma_warpgroup.cuh"
#include "pdl.cuh"

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "wgmma.cu needs the instructions of one architecture: compile it for sm_90a"
#endif

// Where a warpgroup's part of the tile begins, and its sums: `value` as mma.sync's blocks of 8
// columns side by side, `bias` the rows of a added up.
template <typename TILE, bool DEEP_A, bool DEEP_B, typename TA, typename TB>
struct Warpgroup {
  static constexpr int kDepth = TILE::kBytes / static_cast<int>(sizeof(TA));
  static constexpr int kSteps = TILE::kBytes / 32;
  using PanelA = Panel<TA, TILE::kM, DEEP_A, kDepth>;
  using PanelB = Panel<TB, TILE::kN, DEEP_B, kDepth>;
  using LoaderA = Loader<PanelA, TILE::kThreads, TILE::kAligned>;
  using LoaderB = Loader<PanelB, TILE::kThreads, TILE::kAligned>;
  static constexpr int kColumns = TILE::kN / TILE::kWarpsN;
  static constexpr int kStages = TILE::kStages;
  static constexpr int kAhead = kStages - 2;  // a slot is free once all waited for its products
  static constexpr int kTile = PanelA::kBytes + PanelB::kBytes;
  static_assert(sizeof(TA) == sizeof(TB), "both operands have the same size");
  static_assert(TILE::kWarpsM * 16 == TILE::kM && TILE::kWarpsK == 1,
                "a warpgroup computes 64 rows");
  static_assert(kAhead >= 1, "at least three stages");

  int row0, column0;
  float value[kColumns / 2];
  float bias[4];

  // All stages of the product, the first of which are on their way. Where BIAS, the block behind
  // the stages holds ones.
  template <bool BIAS>
  __device__ __forceinline__ void run(LoaderA& load_a, LoaderB& load_b, unsigned int shared,
                                      int stages) {
    if (TILE::kCluster > 1 && stages == 0) {  // more blocks than stages
#pragma unroll
      for (float& sum : value) sum = 0.0f;
#pragma unroll
      for (float& sum : bias) sum = 0.0f;
    }
    int slot = 0;
    for (int stage = 0; stage < stages; ++stage) {
      wait_for_copies<kAhead - 1>();
      ptx::fence_proxy_async();
      __syncthreads();  // this stage is there, and the products of the one before the last are done
      const unsigned int tile = shared + slot * kTile;
      ptx::fence_products();
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const unsigned long long left = operand<PanelA>(tile, row0, step);
        ptx::multiply_async<kColumns, TA, TB, !DEEP_A, !DEEP_B>(
            value, left, operand<PanelB>(tile + PanelA::kBytes, column0, step), stage + step);
        if constexpr (BIAS) {
          ptx::multiply_async<8, TA, TB, !DEEP_A, false>(
              bias, left, ptx::descriptor(shared + kStages * kTile, 128, 256, false), stage + step);
        }
      }
      ptx::commit_products();
      if (stage + kAhead < stages) {
        const int ahead = slot + kAhead < kStages ? slot + kAhead : slot + kAhead - kStages;
        load_a.load(shared + ahead * kTile);
        load_b.load(shared + ahead * kTile + PanelA::kBytes);
      }
      commit_copies();
      ptx::wait_for_products<1>();
      slot = slot == kStages - 1 ? 0 : slot + 1;
    }
    ptx::wait_for_products<0>();
  }
};

template <typename TILE, bool DEEP_A, bool DEEP_B, bool BIAS, typename TA, typename TB,
          typename EPILOGUE>
__device__ __forceinline__ void block_product(const TA* a, int lda, const TB* b, int ldb, int m,
                                              int n, int k, EPILOGUE epilogue) {
  using Group = Warpgroup<TILE, DEEP_A, DEEP_B, TA, TB>;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int m0 = static_cast<int>(blockIdx.y) * TILE::kM;
  const int n0 = static_cast<int>(blockIdx.x) / TILE::kCluster * TILE::kN;
  Group group;
  group.row0 = warp / 4 / TILE::kWarpsN * 64;
  group.column0 = warp / 4 % TILE::kWarpsN * Group::kColumns;
  constexpr int kDepth = Group::kDepth;
  const Share<TILE> share((k + kDepth - 1) / kDepth);
  const int stages = share.stages;
  typename Group::LoaderA load_a(a, lda, m0, m, share.begin * kDepth, k, thread);
  typename Group::LoaderB load_b(b, ldb, n0, n, share.begin * kDepth, k, thread);
  const unsigned int shared = ptx::shared_address(dynamic_shared());

  pdl_wait();
  pdl_trigger();
#pragma unroll
  for (int stage = 0; stage < Group::kAhead; ++stage) {
    if (stage < stages) {
      load_a.load(shared + stage * Group::kTile);
      load_b.load(shared + stage * Group::kTile + Group::PanelA::kBytes);
    }
    commit_copies();
  }
  epilogue.begin();
  Finish<TILE, EPILOGUE> finish(epilogue, m0, n0, thread);
  const bool biased = BIAS && n0 == 0;
  if (biased) {
    if (thread < 64) {
      reinterpret_cast<unsigned int*>(dynamic_shared() + Group::kStages * Group::kTile)[thread] =
          ones<TB>();
    }
    group.template run<BIAS>(load_a, load_b, shared, stages);
  } else {
    group.template run<false>(load_a, load_b, shared, stages);
  }
  wait_for_copies<0>();
  __syncthreads();  // the operands are done with: their place takes the sums

  float* const parts = reinterpret_cast<float*>(dynamic_shared());
  constexpr int kPitch = Sums<TILE>::kPitch;
  const int g = lane / 4;
  const int q = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float* const row = parts + (group.row0 + warp % 4 * 16 + g + 8 * half) * kPitch;
#pragma unroll
    for (int j = 0; j < Group::kColumns / 8; ++j) {
      *reinterpret_cast<float2*>(row + group.column0 + 8 * j + 2 * q) =
          make_float2(group.value[4 * j + 2 * half], group.value[4 * j + 2 * half + 1]);
    }
    if (biased && group.column0 == 0 && q == 0) row[TILE::kN] = group.bias[2 * half];
  }
  finish.template run<BIAS>(parts, biased);
}

template <typename TA, typename TB, typename TC, bool BIAS, typename ACTIVATION, typename SLOPE,
          typename TS, int BM, int BN, int WM, int WN, int WK, int STAGES, int CLUSTER,
          bool ALIGNED>
__global__ void __launch_bounds__(32 * WM * WN * WK)
    wgmma_nt(const TA* __restrict__ a, int lda, const TB* __restrict__ b, int ldb,
             const float* __restrict__ bias, const TS* __restrict__ saved, int ldsaved, TS* pre,
             int ldpre, TC* c, int ldc, int* overflow, int m, int n, int k, float alpha,
             float beta) {
  using TILE = Tile<BM, BN, WM, WN, WK, STAGES, CLUSTER, 128, ALIGNED>;
  const ProductEpilogue<TC, TS, ACTIVATION, SLOPE> epilogue{
      c, ldc, BIAS ? bias : nullptr, saved, ldsaved, pre, ldpre, overflow, m, n, alpha, beta};
  block_product<TILE, true, true, false>(a, lda, b, ldb, m, n, k, epilogue);
}

template <typename TA, typename TB, typename TC, bool BIAS, typename ACTIVATION, typename SLOPE,
          typename TS, int BM, int BN, int WM, int WN, int WK, int STAGES, int CLUSTER,
          bool ALIGNED>
__global__ void __launch_bounds__(32 * WM * WN * WK)
    wgmma_nn(const TA* __restrict__ a, int lda, const TB* __restrict__ b, int ldb,
             const float* __restrict__ bias, const TS* __restrict__ saved, int ldsaved, TC* c,
             int ldc, int* overflow, int m, int n, int k, float alpha, float beta) {
  using TILE = Tile<BM, BN, WM, WN, WK, STAGES, CLUSTER, 128, ALIGNED>;
  const ProductEpilogue<TC, TS, ACTIVATION, SLOPE> epilogue{
      c, ldc, BIAS ? bias : nullptr, saved, ldsaved, nullptr, 0, overflow, m, n, alpha, beta};
  block_product<TILE, true, false, false>(a, lda, b, ldb, m, n, k, epilogue);
}

template <typename TA, typename TB, typename TC, bool BIAS, typename ACTIVATION, typename SLOPE,
          typename TS, int BM, int BN, int WM, int WN, int WK, int STAGES, int CLUSTER,
          bool ALIGNED>
__global__ void __launch_bounds__(32 * WM * WN * WK)
    wgmma_tn(const TA* __restrict__ a, int lda, const TB* __restrict__ b, int ldb,
             const float* __restrict__ bias, const TS* __restrict__ saved, int ldsaved, TC* c,
             int ldc, int* overflow, int m, int n, int k, float alpha, float beta) {
  using TILE = Tile<BM, BN, WM, WN, WK, STAGES, CLUSTER, 128, ALIGNED>;
  const ProductEpilogue<TC, TS, ACTIVATION, SLOPE> epilogue{
      c, ldc, BIAS ? bias : nullptr, saved, ldsaved, nullptr, 0, overflow, m, n, alpha, beta};
  block_product<TILE, false, false, false>(a, lda, b, ldb, m, n, k, epilogue);
}

template <typename TD, typename TX, typename TW, typename TC, bool BIAS, int BM, int BN, int WM,
          int WN, int WK, int STAGES, int CLUSTER, bool ALIGNED>
__global__ void __launch_bounds__(32 * WM * WN * WK)
    wgmma_update(const TD* __restrict__ dz, int lddz, const TX* __restrict__ x, int ldx, TW* w,
                 int ldw, float* bias, TC* copy, int ldcopy, const float* __restrict__ rates,
                 const int* __restrict__ cursor, const int* __restrict__ clock,
                 const float* __restrict__ loss_scale, const int* __restrict__ overflow, int batch,
                 int rows, int cols, float lr, float decay, float copy_scale, int offset,
                 bool stochastic, unsigned long long seed, unsigned int stream) {
  using TILE = Tile<BM, BN, WM, WN, WK, STAGES, CLUSTER, 128, ALIGNED>;
  const UpdateEpilogue<TW, TC, Sgd> epilogue{
      w, ldw, copy, ldcopy, bias, {}, {rates, cursor, clock, loss_scale, overflow, offset},
      rows, cols, lr, {decay}, copy_scale, {stochastic, seed, stream, 0}};
  block_product<TILE, false, false, BIAS>(dz, lddz, x, ldx, rows, cols, batch, epilogue);
}

template <typename TD, typename TX, typename TW, typename TC, bool BIAS, int BM, int BN, int WM,
          int WN, int WK, int STAGES, int CLUSTER, bool ALIGNED>
__global__ void __launch_bounds__(32 * WM * WN * WK)
    wgmma_momentum(const TD* __restrict__ dz, int lddz, const TX* __restrict__ x, int ldx, TW* w,
                   int ldw, float* v, int ldv, float* bias, float* bias_v, TC* copy, int ldcopy,
                   const float* __restrict__ rates, const int* __restrict__ cursor,
                   const int* __restrict__ clock, const float* __restrict__ loss_scale,
                   const int* __restrict__ overflow, int batch, int rows, int cols, float lr,
                   float decay, float momentum, bool nesterov, float copy_scale, int offset,
                   bool stochastic, unsigned long long seed, unsigned int stream) {
  using TILE = Tile<BM, BN, WM, WN, WK, STAGES, CLUSTER, 128, ALIGNED>;
  const UpdateEpilogue<TW, TC, Momentum> epilogue{
      w, ldw, copy, ldcopy, bias, {{v}, {ldv}, {bias_v}},
      {rates, cursor, clock, loss_scale, overflow, offset}, rows, cols,
      lr, {decay, momentum, nesterov}, copy_scale, {stochastic, seed, stream, 0}};
  block_product<TILE, false, false, BIAS>(dz, lddz, x, ldx, rows, cols, batch, epilogue);
}

template <typename TD, typename TX, typename TW, typename TC, bool BIAS, int BM, int BN, int WM,
          int WN, int WK, int STAGES, int CLUSTER, bool ALIGNED>
__global__ void __launch_bounds__(32 * WM * WN * WK)
    wgmma_adam(const TD* __restrict__ dz, int lddz, const TX* __restrict__ x, int ldx, TW* w,
               int ldw, float* m, int ldm, float* v, int ldv, float* bias, float* bias_m,
               float* bias_v, TC* copy, int ldcopy, const float* __restrict__ rates,
               const int* __restrict__ cursor, const int* __restrict__ clock,
               const float* __restrict__ loss_scale, const int* __restrict__ overflow, int batch,
               int rows, int cols, float lr, float decay, double beta1, double beta2, float eps,
               bool decoupled, float copy_scale, int offset, bool stochastic,
               unsigned long long seed, unsigned int stream) {
  using TILE = Tile<BM, BN, WM, WN, WK, STAGES, CLUSTER, 128, ALIGNED>;
  const UpdateEpilogue<TW, TC, Adam> epilogue{
      w, ldw, copy, ldcopy, bias, {{m, v}, {ldm, ldv}, {bias_m, bias_v}},
      {rates, cursor, clock, loss_scale, overflow, offset}, rows, cols,
      lr, {decay, beta1, beta2, eps, decoupled}, copy_scale, {stochastic, seed, stream, 0}};
  block_product<TILE, false, false, BIAS>(dz, lddz, x, ldx, rows, cols, batch, epilogue);
}
