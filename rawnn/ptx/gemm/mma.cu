// Mma: the main loop of GEMMs on the tensor cores by mma.sync; the kernels are those of
// gemm_kernels.cuh.
//
// Operands: float, float16, bfloat16, or any two 8-bit floats (sm_89). SUM is float, which rounds
// float operands to tf32; float16 for float16 operands; or tf32x3 for float operands. tf32x3 splits each
// into two tf32 and computes three products, which are no less exact than products and sums in float32
// (mma_fragments.cuh). Sums have a fixed order, so results repeat bit for bit.
//
// Used by `mma`. Launch: grid (ceil(n / BN) * CLUSTER, ceil(m / BM)) of 32 * WM * WN * WK threads
// in clusters of CLUSTER blocks along x, and
// max(STAGES * (BM + BN) * BYTES, WK * BM * (BN + 8) * 4) bytes of dynamic shared memory. A cluster
// adds the bytes of a block's receive buffer: CLUSTER * ceil(BM / CLUSTER) * (BN + 8) * 4 + 16
// (mma_sums.cuh).
// Limit: for small GEMMs (64 x 784 x 784) latency: of the L2 cache, the launch, and summing the partial
// sums; for large ones the rate of ldmatrix and mma.sync.
#include "gemm/mma_copy.cuh"
#include "gemm/mma_fragments.cuh"
#include "gemm/mma_finish.cuh"
#include "gemm/mma_sums.cuh"
#include "primitives/pdl.cuh"
#include "gemm/gemm_kernels.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "mma.cu needs cp.async and mma.sync of 16 x 8 x 16: compute capability 8.0"
#endif

struct Mma {
  // One block's GEMM: from (m0, n0) on, over its part of the inner dimension, then its epilogue. If
  // BIAS, blocks of the first column of tiles also sum the rows of op(a).
  template <typename TILE, typename SUM, bool DEEP_A, bool DEEP_B, bool BIAS, typename SA,
            typename SB, typename EPILOGUE>
  static __device__ __forceinline__ void gemm(const SA* a, int lda, const SB* b, int ldb, int m,
                                                 int n, int k, EPILOGUE epilogue) {
    using TA = ElementOf<SA>;
    using TB = ElementOf<SB>;
    static_assert(sizeof(TA) == sizeof(TB), "both operands have the same size");
    constexpr int kDepth = TILE::kBytes / static_cast<int>(sizeof(TA));
    constexpr int kSteps = TILE::kBytes / 32;
    using PanelA = Panel<TA, TILE::kM, DEEP_A, kDepth>;
    using PanelB = Panel<TB, TILE::kN, DEEP_B, kDepth>;
    constexpr int kBlocksM = TILE::kM / TILE::kWarpsM / 16;
    constexpr int kBlocksN = TILE::kN / TILE::kWarpsN / 16;
    constexpr int kStages = TILE::kStages;
    constexpr int kTile = PanelA::kBytes + PanelB::kBytes;
    constexpr int kOwnSteps = kSteps / TILE::kWarpsK;
    static_assert(kBlocksM >= 1 && kBlocksN >= 1 && kOwnSteps >= 1, "a warp has no work");

    const int thread = static_cast<int>(threadIdx.x);
    const int lane = thread % 32;
    const int warp = thread / 32;
    const int warp_n = warp % TILE::kWarpsN;
    const int warp_m = warp / TILE::kWarpsN % TILE::kWarpsM;
    const int warp_k = warp / (TILE::kWarpsN * TILE::kWarpsM);
    const int m0 = static_cast<int>(blockIdx.y) * TILE::kM;
    const int n0 = static_cast<int>(blockIdx.x) / TILE::kCluster * TILE::kN;

    const Share<TILE> share((k + kDepth - 1) / kDepth);
    const int stages = share.stages;
    const int begin = share.begin * kDepth;
    using Parts = Sums<TILE, kStages * kTile>;
    Parts().template open<BIAS>(n0 == 0, thread);
    Loader<PanelA, TILE::kThreads, TILE::kAligned, SA> load_a(a, lda, m0, m, begin, k, thread);
    Loader<PanelB, TILE::kThreads, TILE::kAligned, SB> load_b(b, ldb, n0, n, begin, k, thread);
    const Fragments<PanelA, true> fragments_a(warp_m * kBlocksM * 16, warp_k * kOwnSteps, lane);
    const Fragments<PanelB, false> fragments_b(warp_n * kBlocksN * 16, warp_k * kOwnSteps, lane);
    const unsigned int shared = ptx::shared_address(dynamic_shared());

    // Fragments are loaded from shared memory while the previous ones are multiplied, which gains 3 to
    // 15 % for bfloat16. Not with tf32x3, whose registers would then leave room for one block of 64 x 64
    // on a multiprocessor instead of two, nor if all floats are loaded word by word: both are slower.
    constexpr bool kAhead = !Same<SUM, tf32x3>::kValue && (sizeof(TA) < 4 || DEEP_A || DEEP_B);
    constexpr int kFirst = kAhead ? kStages : kStages - 1;  // stages requested at the start
    if constexpr (TILE::kEarly) load_ahead<kFirst>(load_b, shared + PanelA::kBytes, kTile, stages);
    epilogue.ahead();
    pdl_wait();
#pragma unroll 1
    for (int stage = 0; stage < kFirst; ++stage) {
      if (stage < stages) {
        load_a.load(shared + stage * kTile);
        if constexpr (!TILE::kEarly) load_b.load(shared + stage * kTile + PanelA::kBytes);
      }
      commit_copies();
    }
    epilogue.begin();
    constexpr int kSpare =  // bytes of registers that a GEMM of this kind leaves free
        Same<SUM, tf32x3>::kValue ? 0 : TILE::kWarpsK > 1 ? 64 : 32;
    Finish<TILE, EPILOGUE, Parts, kSpare> finish(epilogue, m0, n0, thread);

    // With tf32x3, sums over a part of the inner dimension, which are then added to the total: two
    // short chains of additions round less than a long one.
    constexpr bool kInParts = Same<SUM, tf32x3>::kValue && TILE::kWarpsK < 8;
    constexpr int kPartStages = 16 / kOwnSteps;
    Block<SUM> sums[kBlocksM][2 * kBlocksN] = {};
    Block<SUM> all[kInParts ? kBlocksM : 1][2 * kBlocksN] = {};
    Block<float> bias[kBlocksM] = {};
    const bool sums_bias = BIAS && n0 == 0 && warp_n == 0;
    unsigned int next_left[kBlocksM][4];
    unsigned int next_right[kBlocksN][4];
    const auto fetch = [&](unsigned int tile, int step) {
#pragma unroll
      for (int i = 0; i < kBlocksM; ++i) fragments_a.load(next_left[i], tile, i, step);
#pragma unroll
      for (int j = 0; j < kBlocksN; ++j) {
        fragments_b.load(next_right[j], tile + PanelA::kBytes, j, step);
      }
    };
    const auto fill = [&](int place, int stage) {
      if (stage < stages) {
        load_a.load(shared + place * kTile);
        load_b.load(shared + place * kTile + PanelA::kBytes);
      }
      commit_copies();
    };
    if constexpr (kAhead) {
      wait_for_copies<kStages - 1>();
      __syncthreads();  // the first stage has arrived
      if (stages > 0) fetch(shared, 0);
    }
    int slot = 0;
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage) {
      const unsigned int tile = shared + slot * kTile;
      const int before = slot == 0 ? kStages - 1 : slot - 1;
      const int after = slot == kStages - 1 ? 0 : slot + 1;
      if constexpr (!kAhead) {
        wait_for_copies<kStages - 2>();
        __syncthreads();  // this stage has arrived, and no thread reads the previous slot any more
      }
      // After the last copies are issued: blocks of the next kernel occupy shared memory, which this
      // kernel's further blocks and concurrent kernels need (docs/notes/mma.md).
      if (stage == max(stages - kFirst - 1, 0)) pdl_trigger();
#pragma unroll
      for (int step = 0; step < kOwnSteps; ++step) {
        if constexpr (!kAhead) {
          fetch(tile, step);
          if (step == 0) fill(before, stage + kFirst);
        }
        Factor<TA, SUM> left[kBlocksM];
        Factor<TB, SUM> right[kBlocksN];
#pragma unroll
        for (int i = 0; i < kBlocksM; ++i) left[i].take(next_left[i]);
#pragma unroll
        for (int j = 0; j < kBlocksN; ++j) right[j].take(next_right[j]);
        if (kAhead && step < kOwnSteps - 1) {
          fetch(tile, step + 1);
        } else if (kAhead && stage + 1 < stages) {
          wait_for_copies<kStages - 2>();
          __syncthreads();  // the next stage has arrived, and no thread reads this one's slot any more
          fetch(shared + after * kTile, 0);
          fill(slot, stage + kFirst);
        }
#pragma unroll
        for (int i = 0; i < kBlocksM; ++i) {
          multiply_row<TA, TB, SUM, kBlocksN>(sums[i], left[i], right);
          if (sums_bias) add_rows<TA, TB, SUM>(bias[i], left[i]);
        }
      }
      if constexpr (kInParts) {
        if (stage % kPartStages == kPartStages - 1 || stage == stages - 1) {
#pragma unroll
          for (int i = 0; i < kBlocksM; ++i) {
#pragma unroll
            for (int j = 0; j < 2 * kBlocksN; ++j) move_sums(all[i][j], sums[i][j]);
          }
        }
      }
      slot = after;
    }
    __syncthreads();  // all copies have arrived and no thread reads them: the sums overwrite them

    float* const parts = reinterpret_cast<float*>(dynamic_shared());
    float* const part = parts + warp_k * Parts::kPart;
    constexpr int kPitch = Parts::kPitch;
    const int g = lane / 4;
    const int q = lane % 4;
    constexpr bool kPairedA = Fragments<PanelA, true>::kPaired;
    constexpr bool kPairedB = Fragments<PanelB, false>::kPaired;
#pragma unroll
    for (int i = 0; i < kBlocksM; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = (warp_m * kBlocksM + i) * 16 + (kPairedA ? 2 * g + half : g + 8 * half);
        float* const to = part + row * kPitch;
#pragma unroll
        for (int j = 0; j < kBlocksN; ++j) {
          const int column = (warp_n * kBlocksN + j) * 16;
          const Block<SUM>(&found)[2 * kBlocksN] = kInParts ? all[i] : sums[i];
          const float2 first = found[2 * j].row(half);
          const float2 second = found[2 * j + 1].row(half);
          if constexpr (kPairedB) {
            const float values[4] = {first.x, second.x, first.y, second.y};
            store_values<4>(to + column + 4 * q, values);
          } else {
            *reinterpret_cast<float2*>(to + column + 2 * q) = first;
            *reinterpret_cast<float2*>(to + column + 8 + 2 * q) = second;
          }
        }
        if (sums_bias && q == 0) to[TILE::kN] = bias[i].row(half).x;
      }
    }
    finish.template run<BIAS>(n0 == 0);
  }
};
