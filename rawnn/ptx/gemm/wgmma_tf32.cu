// WgmmaTf32: the main loop of float32 GEMMs on Hopper's tensor cores (sm_90a). Two warpgroups compute a
// tile; the kernels are those of gemm_kernels.cuh.
//
// Operands are float. SUM is float, which rounds them to tf32, or tf32x3, which splits each into two tf32
// and computes three products for one (mma_fragments.cuh).
//
// wgmma reads one operand from registers, the other from shared memory, where tf32 must be contiguous
// along the inner dimension. nn's b is not, so nn computes the transposed result with b in registers.
// While the tensor cores work on a stage, the other operand of the next stage is prepared: rounded or
// split, and transposed for tn. If it need not be transposed, a thread prepares what it has copied
// itself, and a stage has one barrier only; rounded words then replace those that were copied, which leaves
// shared memory for another stage. Copies are requested after the fence; in the widest tile one warpgroup
// copies and the other prepares. With tf32x3 the sums of two steps begin at zero and the float units add
// them to the others, as in mma.cu. Every sum has a fixed order. The operand in registers has 128 rows of
// the tile, the other 64, 128 or 256; a stage is 128 BYTES.
//
// Used by `mma` on Hopper. Launch: as mma.cu, 256 threads; in addition to the stages two prepared operands,
// of two parts each with tf32x3, and none where rounded words replace what was copied. A cluster's receive
// buffer overlaps them.
// Limit: for large GEMMs the tensor cores, and the preparation that overlaps with them.
#include "device/fences.cuh"
#include "gemm/mma_copy.cuh"
#include "gemm/mma_finish.cuh"
#include "gemm/mma_sums.cuh"
#include "gemm/mma_warpgroup.cuh"
#include "primitives/pdl.cuh"
#define GEMM_BOUNDS __launch_bounds__(256, BM * BN > 8192 ? 1 : 2)
#include "gemm/gemm_kernels.cuh"

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "wgmma_tf32.cu needs the instructions of one architecture: compile it for sm_90a"
#endif

constexpr int kStageDepth = 32;  // floats

// What a warp reads of the operand in registers: the words of its 16 rows at a step. For a wide tile they
// are read in pairs of neighboring rows, an even and an odd one, which are one of the instruction's first
// and one of its second eight.
template <typename PANEL>
struct Rows {
  static constexpr bool kPaired = !PANEL::kDeep;
  int base;

  __device__ __forceinline__ Rows(int first, int lane) {
    if constexpr (kPaired) {
      const int place = first + lane / 4 * 2;
      base = place / 32 * PANEL::kPanelBytes + PANEL::offset(lane % 4, place % 32 / 4) +
             place % 4 * 4;
    } else {
      base = Fragments<PANEL, true>(first, 0, lane).base;
    }
  }

  __device__ __forceinline__ void load(unsigned int (&words)[4], unsigned int tile,
                                       int step) const {
    if constexpr (kPaired) {
      static_assert(PANEL::kChunks == 8, "four rows down keep the key");
      const unsigned int from = tile + base + step * (8 * PANEL::kRowBytes);
      unsigned int pair[2];
      ptx::load_shared(pair, from);
      words[0] = pair[0];
      words[1] = pair[1];
      ptx::load_shared(pair, from + 4 * PANEL::kRowBytes);
      words[2] = pair[0];
      words[3] = pair[1];
    } else {
      ptx::load_matrices<false>(words, tile + (base ^ (step * 32)));
    }
  }

  // A lane's first row (half 0), or its second.
  static __device__ __forceinline__ int row(int lane, int half) {
    return kPaired ? lane / 4 * 2 + half : lane / 4 + 8 * half;
  }
};

// Writes an operand's stage for wgmma: contiguous along the inner dimension, in the 128-byte swizzle,
// with the low parts behind the rounded or high ones. For a deep operand a thread processes what it has
// copied itself, `own` bytes from the tile's start on, so that it need not wait for others.
template <typename PANEL, typename READY, typename SUM, int THREADS>
__device__ __forceinline__ void prepare(unsigned int raw, unsigned int ready, int thread,
                                        unsigned int own) {
  constexpr int kChunks = READY::kBytes / kChunkBytes;
  static_assert(kChunks % THREADS == 0, "as many chunks for every thread");
#pragma unroll
  for (int pass = 0; pass < kChunks / THREADS; ++pass) {
    const int index = thread + pass * THREADS;
    Factor<float, SUM> chunk;
    unsigned int to;
    if constexpr (PANEL::kDeep) {
      to = own + pass * (THREADS * kChunkBytes);
      ptx::load_shared(chunk.word, raw + to);
    } else {
      const int place = index % READY::kRows;
      const int four = index / READY::kRows;
      const unsigned int from = raw + place / 32 * PANEL::kPanelBytes + place % 4 * 4;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        chunk.word[i] = ptx::load_shared(from + PANEL::offset(4 * four + i, place % 32 / 4));
      }
      to = READY::offset(place, four);
    }
    chunk.take(chunk.word);
    ptx::store_shared(ready + to, chunk.word);
    if constexpr (Same<SUM, tf32x3>::kValue) {
      ptx::store_shared(ready + READY::kBytes + to, chunk.low);
    }
  }
}

// One block's GEMM. `left` is read from registers and is op(a), or with SWAPPED op(b)^T; `right` is read
// from shared memory. DEEP_L and DEEP_R say that they are contiguous along the inner dimension.
template <typename TILE, typename SUM, bool DEEP_L, bool DEEP_R, bool SWAPPED, bool BIAS,
          typename SL, typename SR, typename EPILOGUE>
__device__ __forceinline__ void block_gemm(const SL* left, int ldleft, const SR* right,
                                              int ldright, int m, int n, int k,
                                              EPILOGUE epilogue) {
  constexpr bool kThree = Same<SUM, tf32x3>::kValue;
  constexpr int kRows = SWAPPED ? TILE::kN : TILE::kM;
  constexpr int kColumns = SWAPPED ? TILE::kM : TILE::kN;
  constexpr int kStages = TILE::kStages;
  constexpr int kThreads = TILE::kThreads;
  using PanelL = Panel<float, kRows, DEEP_L, kStageDepth>;
  using PanelR = Panel<float, kColumns, DEEP_R, kStageDepth>;
  using Ready = Panel<float, kColumns, true, kStageDepth>;
  constexpr bool kInPlace = !kThree && DEEP_R;  // Ready is then the layout of PanelR
  // A thread's fence waits for the copies that it has in flight. In the widest tile, where that takes
  // longer than the products, the first warpgroup copies and the second prepares.
  constexpr bool kRoles = !kThree && kColumns > 128;
  constexpr int kCopiers = kRoles ? TILE::kThreads / 2 : TILE::kThreads;
  constexpr int kTile = PanelL::kBytes + PanelR::kBytes;
  constexpr int kReady = (kThree ? 2 : 1) * Ready::kBytes;
  using Parts = Sums<TILE, 0>;  // the receive buffer overlaps the operands, so that two blocks fit
  static_assert(kRows == 128 && kThreads == 256, "two warpgroups of 64 rows");
  // Steps that the tensor cores sum before the float units add: the fewer, the less is truncated.
  constexpr int kAtOnce = kThree ? 2 : 4;
  static_assert(kStages >= 3, "stages ahead");

  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int m0 = static_cast<int>(blockIdx.y) * TILE::kM;
  const int n0 = static_cast<int>(blockIdx.x) / TILE::kCluster * TILE::kN;
  const Share<TILE> share((k + kStageDepth - 1) / kStageDepth);
  const int stages = share.stages;
  const int begin = share.begin * kStageDepth;
  const int member = thread % kCopiers;
  const bool copies = !kRoles || thread < kCopiers;
  const bool prepares = !kRoles || thread >= kCopiers;
  Loader<PanelL, kCopiers, TILE::kAligned, SL> load_left(left, ldleft, SWAPPED ? n0 : m0,
                                                         SWAPPED ? n : m, begin, k, member);
  Loader<PanelR, kCopiers, TILE::kAligned, SR> load_right(right, ldright, SWAPPED ? m0 : n0,
                                                          SWAPPED ? m : n, begin, k, member);
  const Rows<PanelL> fragments(warp * 16, lane);
  const unsigned int shared = ptx::shared_address(dynamic_shared());
  const unsigned int prepared = shared + kStages * kTile;

  if constexpr (TILE::kEarly && SWAPPED) {
    if (copies) load_ahead<kStages - 1>(load_left, shared, kTile, stages);
  } else if constexpr (TILE::kEarly) {
    if (copies) load_ahead<kStages - 1>(load_right, shared + PanelL::kBytes, kTile, stages);
  }
  pdl_wait();
#pragma unroll 1
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (copies && stage < stages) {
      if constexpr (!TILE::kEarly || !SWAPPED) load_left.load(shared + stage * kTile);
      if constexpr (!TILE::kEarly || SWAPPED) {
        load_right.load(shared + stage * kTile + PanelL::kBytes);
      }
    }
    commit_copies();
  }
  epilogue.ahead();  // not earlier: Adam's numbers would occupy registers that are needed
  epilogue.begin();
  wait_for_copies<kStages - 2>();
  if constexpr (kRoles || !DEEP_R) __syncthreads();
  if (prepares) {
    prepare<PanelR, Ready, SUM, kCopiers>(shared + PanelL::kBytes,
                                          kInPlace ? shared + PanelL::kBytes : prepared, member,
                                          load_right.to);
    ptx::fence_proxy_async();
  }
  __syncthreads();

  float sums[kColumns / 2] = {};
  float all[kThree ? kColumns / 2 : 1] = {};
  float bias[2] = {};
  const bool sums_bias = BIAS && n0 == 0;
  int slot = 0;
#pragma unroll 1
  for (int stage = 0; stage < stages; ++stage) {
    const unsigned int tile = shared + slot * kTile;
    const unsigned int ready =
        kInPlace ? tile + PanelL::kBytes : prepared + stage % 2 * kReady;
    slot = slot == kStages - 1 ? 0 : slot + 1;
#pragma unroll
    for (int first = 0; first < 4; first += kAtOnce) {
      Factor<float, SUM> rows[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) fragments.load(rows[i].word, tile, first + i);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (sums_bias) {
#pragma unroll
          for (int j = 0; j < 4; ++j) bias[j % 2] += __uint_as_float(rows[i].word[j]);
        }
        rows[i].take(rows[i].word);
      }
      ptx::settle(sums);
      ptx::fence_products();
      if constexpr (kThree) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          ptx::multiply_async<kColumns>(sums, rows[i].low, operand<Ready>(ready, 0, first + i), i);
          ptx::multiply_async<kColumns>(sums, rows[i].word,
                                   operand<Ready>(ready + Ready::kBytes, 0, first + i), 1);
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        ptx::multiply_async<kColumns>(sums, rows[i].word, operand<Ready>(ready, 0, first + i),
                                 kThree ? 1 : stage + i);
      }
      ptx::commit_products();
      if (first + kAtOnce == 4 && stage + 1 < stages) {
        wait_for_copies<kStages - 3>();
        if constexpr (kRoles || !DEEP_R) __syncthreads();  // the next stage has arrived
        if (prepares) {
          const unsigned int raw = shared + slot * kTile + PanelL::kBytes;
          prepare<PanelR, Ready, SUM, kCopiers>(
              raw, kInPlace ? raw : prepared + (stage + 1) % 2 * kReady, member, load_right.to);
          ptx::fence_proxy_async();
        }
        // After the fence, where as few copies as possible are in flight.
        if (copies && stage + kStages - 1 < stages) {  // into the slot of the previous stage
          const int ahead = slot < 2 ? slot + kStages - 2 : slot - 2;
          load_left.load(shared + ahead * kTile);
          load_right.load(shared + ahead * kTile + PanelL::kBytes);
        }
        commit_copies();
      }
      ptx::wait_for_products<0>();
      ptx::settle(sums);
      if constexpr (kThree) {
#pragma unroll
        for (int i = 0; i < kColumns / 2; ++i) all[i] += sums[i];
      }
    }
    __syncthreads();  // the next stage is prepared, and nobody reads this one's operands
  }
  pdl_trigger();  // not earlier: blocks of the next kernel would displace further ones of this

  // All copies have arrived, and nobody reads them any more: the sums overwrite them.
  float* const parts = reinterpret_cast<float*>(dynamic_shared());
  constexpr int kPitch = Parts::kPitch;
  const int q = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp * 16 + Rows<PanelL>::row(lane, half);
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      const int column = 8 * j + 2 * q;
      const float first = kThree ? all[kThree ? 4 * j + 2 * half : 0] : sums[4 * j + 2 * half];
      const float second =
          kThree ? all[kThree ? 4 * j + 2 * half + 1 : 0] : sums[4 * j + 2 * half + 1];
      if constexpr (SWAPPED) {
        parts[column * kPitch + row] = first;
        parts[(column + 1) * kPitch + row] = second;
      } else {
        *reinterpret_cast<float2*>(parts + row * kPitch + column) = make_float2(first, second);
      }
    }
    if constexpr (BIAS) {
      bias[half] += __shfl_xor_sync(kFullWarp, bias[half], 1);
      bias[half] += __shfl_xor_sync(kFullWarp, bias[half], 2);
      if (sums_bias && q == 0) parts[row * kPitch + TILE::kN] = bias[half];
    }
  }
  Finish<TILE, EPILOGUE, Parts> finish(epilogue, m0, n0, thread);
  finish.template run<BIAS>(n0 == 0);
}

struct WgmmaTf32 {
  template <typename TILE, typename SUM, bool DEEP_A, bool DEEP_B, bool BIAS, typename SA,
            typename SB, typename EPILOGUE>
  static __device__ __forceinline__ void gemm(const SA* a, int lda, const SB* b, int ldb, int m,
                                                 int n, int k, EPILOGUE epilogue) {
    if constexpr (DEEP_A && !DEEP_B) {
      block_gemm<TILE, SUM, false, true, true, BIAS>(b, ldb, a, lda, m, n, k, epilogue);
    } else {
      block_gemm<TILE, SUM, DEEP_A, DEEP_B, false, BIAS>(a, lda, b, ldb, m, n, k, epilogue);
    }
  }
};
