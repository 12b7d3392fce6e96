// WgmmaScaled: the main loop of float32 GEMMs on Hopper's tensor cores by three products of float16,
// which take half the time of three of tf32 (sm_90a). Two warpgroups compute a tile; the kernels are
// those of gemm_kernels.cuh.
//
// Rows and columns have powers of two as scales (mma_scales.cuh). A number is the sum of two float16, and
// a product is high * high + high * low + low * high: the same 22 bits as three products of tf32. Tensor
// cores truncate sums. So each stage's sums begin at zero, and the float units, which round, add them to
// the others; the truncation is that of two steps of tf32. At the end sums are divided by both scales.
// Every sum has a fixed order.
//
// op(a) is read from registers and op(b) from shared memory, along its columns if it is stored so, so
// that neither is transposed. While the tensor cores work on a stage, the next stage of op(b) is scaled
// and split. In a tile of 128 columns, of which a multiprocessor holds one, so are the next rows of
// op(a), for which there are registers.
//
// Used by `mma` on Hopper. Launch: as mma.cu, 256 threads; in addition to the stages two prepared operands,
// and three floats for each column: its scale, and its changes at two stages.
// Limit: for large GEMMs the instructions that scale and split.
#include "device/fences.cuh"
#include "gemm/mma_scaled.cuh"
#include "gemm/mma_finish.cuh"
#include "gemm/mma_sums.cuh"
#include "primitives/pdl.cuh"
#define GEMM_BOUNDS __launch_bounds__(256, BM * BN > 8192 ? 1 : 2)
#include "gemm/gemm_kernels.cuh"

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "wgmma_scaled.cu needs the instructions of one architecture: compile it for sm_90a"
#endif

template <typename TILE, typename SUM, bool DEEP_A, bool DEEP_B, bool BIAS, typename SA,
          typename SB, typename EPILOGUE>
__device__ __forceinline__ void block_gemm(const SA* a, int lda, const SB* b, int ldb, int m,
                                              int n, int k, EPILOGUE epilogue) {
  constexpr int kColumns = TILE::kN;
  constexpr int kStages = TILE::kStages;
  constexpr int kThreads = TILE::kThreads;
  constexpr bool kAhead = kColumns == 128;  // op(a) is split a stage early: its tile is free sooner
  constexpr int kInFlight = kAhead ? kStages : kStages - 1;
  using PanelA = Panel<float, TILE::kM, DEEP_A, kStageDepth>;
  using PanelB = Panel<float, kColumns, DEEP_B, kStageDepth>;
  using First = Left<PanelA>;
  using Second = Right<First, PanelB, kColumns>;
  constexpr int kTile = PanelA::kBytes + PanelB::kBytes;
  using Parts = Sums<TILE, 0>;  // the receive buffer overlaps the operands, so that two blocks fit
  static_assert(Same<SUM, f16x3>::kValue, "three products for one");
  static_assert(TILE::kM == 128 && kThreads == 256, "two warpgroups of 64 rows");
  static_assert(DEEP_A || !DEEP_B, "the order along the inner dimension is that of a");
  static_assert(kStages >= 3, "stages ahead");
  constexpr int kOperands = kStages * kTile + 2 * Second::kBytes;
  constexpr int kInbox =
      TILE::kCluster > 1 ? TILE::kCluster * Parts::kRows * Parts::kPitch * 4 + 16 : 0;
  constexpr int kScales =
      kOperands > Parts::kInbox + kInbox ? kOperands : Parts::kInbox + kInbox;

  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int m0 = static_cast<int>(blockIdx.y) * TILE::kM;
  const int n0 = static_cast<int>(blockIdx.x) / TILE::kCluster * kColumns;
  const Share<TILE> share((k + kStageDepth - 1) / kStageDepth);
  const int stages = share.stages;
  const int begin = share.begin * kStageDepth;
  Loader<PanelA, kThreads, TILE::kAligned, SA> load_a(a, lda, m0, m, begin, k, thread);
  Loader<PanelB, kThreads, TILE::kAligned, SB> load_b(b, ldb, n0, n, begin, k, thread);
  First rows(warp * 16, lane);
  const unsigned int shared = ptx::shared_address(dynamic_shared());
  const unsigned int prepared = shared + kStages * kTile;
  Second columns(reinterpret_cast<float*>(dynamic_shared() + kScales), thread, load_b.to);

  if constexpr (TILE::kEarly) {
    load_ahead<kInFlight>(load_b, shared + PanelA::kBytes, kTile, stages);
  }
  pdl_wait();
#pragma unroll 1
  for (int stage = 0; stage < kInFlight; ++stage) {
    if (stage < stages) {
      load_a.load(shared + stage * kTile);
      if constexpr (!TILE::kEarly) load_b.load(shared + stage * kTile + PanelA::kBytes);
    }
    commit_copies();
  }
  epilogue.ahead();  // not earlier: Adam's numbers would occupy registers that are needed
  epilogue.begin();
  wait_for_copies<kStages - 2>();  // the first stage has arrived, and with kAhead the second
  if constexpr (kAhead || !DEEP_B) __syncthreads();
  columns.template prepare<true>(shared + PanelA::kBytes, prepared, 0);
  ptx::fence_proxy_async();

  float sums[kColumns / 2] = {};
  float all[kColumns / 2] = {};
  float bias[2] = {};
  const bool biased = BIAS && n0 == 0;
  ScaledRows fragments;
  // Loads rows of the tile as fragments; returns whether sums must be adjusted.
  const auto take = [&](ScaledRows& parts, unsigned int tile) {
    const bool due = rows.take(parts, tile);
    if (biased && stages > 0) rows.add_up(bias, tile);
    return due;
  };
  const auto change_rows = [&]() {
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) all[i] *= rows.change[i / 2 % 2];
  };
  if constexpr (kAhead) {
    rows.fit(shared);  // without a stage this has no effect
    take(fragments, shared);
  }
  __syncthreads();
  if constexpr (!kAhead) {
    if (stages > 0) rows.fit(shared);
  }

  int changed = 0;  // whether scales of columns change at this stage
  int slot = 0;
#pragma unroll 1
  for (int stage = 0; stage < stages; ++stage) {
    const unsigned int tile = shared + slot * kTile;
    const unsigned int ready = prepared + stage % 2 * Second::kBytes;
    slot = slot == kStages - 1 ? 0 : slot + 1;
    if (changed != 0) {
      const float* const by = columns.scales + (1 + stage % 2) * kColumns + lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) all[i] *= by[i / 4 * 8 + i % 2];
    }
    if constexpr (!kAhead) {
      if (take(fragments, tile)) change_rows();
    }
    ptx::settle(sums);
    ptx::fence_products();
    const unsigned long long first = Second::first(ready);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      ptx::multiply_async_f16<kColumns, !DEEP_B>(sums, fragments.low[step],
                                                 first + Second::on(false, step), step);
      ptx::multiply_async_f16<kColumns, !DEEP_B>(sums, fragments.high[step],
                                                 first + Second::on(true, step), 1);
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      ptx::multiply_async_f16<kColumns, !DEEP_B>(sums, fragments.high[step],
                                                 first + Second::on(false, step), 1);
    }
    ptx::commit_products();
    ScaledRows next;
    bool columns_change = false, rows_change = false;
    if (stage + 1 < stages) {
      const unsigned int next_tile = shared + slot * kTile;
      if constexpr (!kAhead) {
        wait_for_copies<kStages - 3>();
        if constexpr (!DEEP_B) __syncthreads();  // the next stage has arrived
      }
      columns_change = columns.template prepare<false>(next_tile + PanelA::kBytes,
                                                       prepared + (stage + 1) % 2 * Second::kBytes,
                                                       (stage + 1) % 2);
      ptx::fence_proxy_async();
      // After the fence, where as few copies as possible are in flight.
      if (stage + kInFlight < stages) {  // into the slot of this stage, or of the previous one
        const int ahead = slot < 2 ? slot + kStages - 2 : slot - 2;
        const unsigned int to = kAhead ? tile : shared + ahead * kTile;
        load_a.load(to);
        load_b.load(to + PanelA::kBytes);
      }
      commit_copies();
      if constexpr (kAhead) rows_change = take(next, next_tile);
    }
    ptx::wait_for_products<0>();
    ptx::settle(sums);
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) all[i] += sums[i];
    if constexpr (kAhead) {
      if (stage + 1 < stages) {
        if (rows_change) change_rows();
        fragments = next;
      }
      wait_for_copies<kStages - 2>();  // the stage after the next
    }
    // The next stage is prepared, and nobody reads this one's operands.
    changed = __syncthreads_or(columns_change ? 1 : 0);
  }
  pdl_trigger();  // not earlier: blocks of the next kernel would displace further ones of this

  // All copies have arrived, and nobody reads them any more: the sums overwrite them.
  float* const parts = reinterpret_cast<float*>(dynamic_shared());
  constexpr int kPitch = Parts::kPitch;
  const int q = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp * 16 + First::row(lane, half);
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      const int column = 8 * j + 2 * q;
      const float* const scale = columns.scales + column;
      *reinterpret_cast<float2*>(parts + row * kPitch + column) =
          make_float2(unscaled(all[4 * j + 2 * half], rows.scale[half], scale[0]),
                      unscaled(all[4 * j + 2 * half + 1], rows.scale[half], scale[1]));
    }
    if constexpr (BIAS) {
      bias[half] += __shfl_xor_sync(kFullWarp, bias[half], 1);
      bias[half] += __shfl_xor_sync(kFullWarp, bias[half], 2);
      if (biased && q == 0) parts[row * kPitch + TILE::kN] = bias[half];
    }
  }
  Finish<TILE, EPILOGUE, Parts> finish(epilogue, m0, n0, thread);
  finish.template run<BIAS>(biased);
}

struct WgmmaScaled {
  template <typename TILE, typename SUM, bool DEEP_A, bool DEEP_B, bool BIAS, typename SA,
            typename SB, typename EPILOGUE>
  static __device__ __forceinline__ void gemm(const SA* a, int lda, const SB* b, int ldb, int m,
                                                 int n, int k, EPILOGUE epilogue) {
    block_gemm<TILE, SUM, DEEP_A, DEEP_B, BIAS>(a, lda, b, ldb, m, n, k, epilogue);
  }
};
