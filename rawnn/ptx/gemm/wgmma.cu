// Wgmma: the main loop of GEMMs on Hopper's tensor cores (sm_90a), computed by warpgroups from tiles in
// shared memory; the kernels are those of gemm_kernels.cuh.
//
// Operands: float16 or bfloat16 (both of one type), or, in nt, 8-bit floats. SUM is float, in a fixed
// order: results repeat bit for bit. A warpgroup computes 64 rows by BN columns (64, 128 or 256), so WM
// is BM / 16, WN and WK 1; a stage is 128 BYTES. With 8-bit operands the tensor cores keep about 14 bits
// of the sums.
//
// Used by `mma` on Hopper. Launch: as mma.cu, with at least 3 stages and 1,024 bytes besides the stages.
// Limit: for small GEMMs latency; for large ones shared memory, then the instructions of cp.async.
#include "device/fences.cuh"
#include "gemm/mma_copy.cuh"
#include "gemm/mma_finish.cuh"
#include "gemm/mma_sums.cuh"
#include "gemm/mma_warpgroup.cuh"
#include "primitives/pdl.cuh"
#include "gemm/gemm_kernels.cuh"

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "wgmma.cu needs the instructions of one architecture: compile it for sm_90a"
#endif

// A warpgroup's first row of the tile, and its sums: `value` as mma.sync's blocks of 8 columns side by
// side, `bias` the sums of a's rows.
template <typename TILE, bool DEEP_A, bool DEEP_B, typename SA, typename SB>
struct Warpgroup {
  using TA = ElementOf<SA>;
  using TB = ElementOf<SB>;
  static constexpr int kDepth = TILE::kBytes / static_cast<int>(sizeof(TA));
  static constexpr int kSteps = TILE::kBytes / 32;
  using PanelA = Panel<TA, TILE::kM, DEEP_A, kDepth>;
  using PanelB = Panel<TB, TILE::kN, DEEP_B, kDepth>;
  using LoaderA = Loader<PanelA, TILE::kThreads, TILE::kAligned, SA>;
  using LoaderB = Loader<PanelB, TILE::kThreads, TILE::kAligned, SB>;
  static constexpr int kColumns = TILE::kN;
  static constexpr int kStages = TILE::kStages;
  static constexpr int kAhead = kStages - 2;  // a slot is free once all have waited for its products
  static constexpr int kTile = PanelA::kBytes + PanelB::kBytes;
  static constexpr int kOperands = kStages * kTile + 1024;  // including the ones
  static_assert(sizeof(TA) == sizeof(TB), "both operands have the same size");
  static_assert(TILE::kWarpsM * 16 == TILE::kM && TILE::kWarpsN == 1 && TILE::kWarpsK == 1,
                "a warpgroup computes 64 rows");
  static_assert(kAhead >= 1, "at least three stages");

  int row0;
  float value[kColumns / 2];
  float bias[4];

  // All stages of the GEMM, the first of which are in flight. If BIAS, the block behind the stages holds
  // ones.
  template <bool BIAS>
  __device__ __forceinline__ void run(LoaderA& load_a, LoaderB& load_b, unsigned int shared,
                                      int stages) {
    if (TILE::kCluster > 1 && stages == 0) {  // there are more blocks than stages
#pragma unroll
      for (float& sum : value) sum = 0.0f;
#pragma unroll
      for (float& sum : bias) sum = 0.0f;
    }
    int slot = 0;
    for (int stage = 0; stage < stages; ++stage) {
      wait_for_copies<kAhead - 1>();
      ptx::fence_proxy_async();
      __syncthreads();  // this stage has arrived, and the products of the last but one are complete
      const unsigned int tile = shared + slot * kTile;
      ptx::fence_products();
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const unsigned long long left = operand<PanelA>(tile, row0, step);
        ptx::multiply_async<kColumns, TA, TB, !DEEP_A, !DEEP_B>(
            value, left, operand<PanelB>(tile + PanelA::kBytes, 0, step), stage + step);
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

struct Wgmma {
  template <typename TILE, typename SUM, bool DEEP_A, bool DEEP_B, bool BIAS, typename SA,
            typename SB, typename EPILOGUE>
  static __device__ __forceinline__ void gemm(const SA* a, int lda, const SB* b, int ldb, int m,
                                                 int n, int k, EPILOGUE epilogue) {
    using Group = Warpgroup<TILE, DEEP_A, DEEP_B, SA, SB>;
    using Parts = Sums<TILE, Group::kOperands>;
    const int thread = static_cast<int>(threadIdx.x);
    const int lane = thread % 32;
    const int warp = thread / 32;
    const int m0 = static_cast<int>(blockIdx.y) * TILE::kM;
    const int n0 = static_cast<int>(blockIdx.x) / TILE::kCluster * TILE::kN;
    Group group;
    group.row0 = warp / 4 * 64;
    constexpr int kDepth = Group::kDepth;
    const Share<TILE> share((k + kDepth - 1) / kDepth);
    const int stages = share.stages;
    const bool biased = BIAS && n0 == 0;
    Parts().template open<BIAS>(biased, thread);
    typename Group::LoaderA load_a(a, lda, m0, m, share.begin * kDepth, k, thread);
    typename Group::LoaderB load_b(b, ldb, n0, n, share.begin * kDepth, k, thread);
    const unsigned int shared = ptx::shared_address(dynamic_shared());

    if constexpr (TILE::kEarly) {
      load_ahead<Group::kAhead>(load_b, shared + Group::PanelA::kBytes, Group::kTile, stages);
    }
    epilogue.ahead();
    pdl_wait();
    pdl_trigger();
#pragma unroll
    for (int stage = 0; stage < Group::kAhead; ++stage) {
      if (stage < stages) {
        load_a.load(shared + stage * Group::kTile);
        if constexpr (!TILE::kEarly) {
          load_b.load(shared + stage * Group::kTile + Group::PanelA::kBytes);
        }
      }
      commit_copies();
    }
    epilogue.begin();
    Finish<TILE, EPILOGUE, Parts, 16> finish(epilogue, m0, n0, thread);
    if (biased) {
      if (thread < 64) {
        reinterpret_cast<unsigned int*>(dynamic_shared() + Group::kStages * Group::kTile)[thread] =
            ones<ElementOf<SB>>();
      }
      group.template run<BIAS>(load_a, load_b, shared, stages);
    } else {
      group.template run<false>(load_a, load_b, shared, stages);
    }
    __syncthreads();  // all copies have arrived and nobody reads them: the sums overwrite them

    float* const parts = reinterpret_cast<float*>(dynamic_shared());
    constexpr int kPitch = Parts::kPitch;
    const int g = lane / 4;
    const int q = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* const row = parts + (group.row0 + warp % 4 * 16 + g + 8 * half) * kPitch;
#pragma unroll
      for (int j = 0; j < Group::kColumns / 8; ++j) {
        *reinterpret_cast<float2*>(row + 8 * j + 2 * q) =
            make_float2(group.value[4 * j + 2 * half], group.value[4 * j + 2 * half + 1]);
      }
      if (biased && q == 0) row[TILE::kN] = group.bias[2 * half];
    }
    finish.template run<BIAS>(biased);
  }
};
