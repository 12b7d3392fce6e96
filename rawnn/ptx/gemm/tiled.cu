// Tiled: the main loop of GEMMs tiled through shared memory and registers, with float arithmetic, for
// operands of any types; the kernels are those of gemm_kernels.cuh.
//
// SUM is float, CLUSTER 1, and BYTES 0: a stage is 32 elements of the inner dimension for all types. The
// lanes of a warp form 4 rows of 8, so a thread has BM / WM / 4 by BN / WN / 8 elements, in groups of 4
// by 4.
//
// Used by `tiled`. Launch: as mma.cu; dynamic shared memory is
// STAGES * 32 * (BM * sizeof(TA) + BN * sizeof(TB)) bytes, or WK * BM * (BN + 8) * 4 if WK > 1 and
// that is more.
// Limit: shared-memory reads at 4 x 4 elements a thread, multiply-adds at 8 x 8.
#include "gemm/mma_copy.cuh"
#include "gemm/mma_finish.cuh"
#include "gemm/mma_sums.cuh"
#include "primitives/pdl.cuh"
#include "gemm/gemm_kernels.cuh"

constexpr int kTiledDepth = 32;

// What a thread reads of an operand's tile: `GROUPS` times four rows (or columns), SPAN apart.
template <typename PANEL, int GROUPS, int SPAN>
struct Quads {
  using T = typename PANEL::Element;
  static constexpr int kPerChunk = kChunkBytes / PANEL::kSize;

  const unsigned char* tile;
  int first;  // the thread's first row or column

  // values[i][j]: row i, inner element `at` + j; `at` is a multiple of 4.
  __device__ __forceinline__ void load(float (&values)[4 * GROUPS][4], int at) const {
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) {
      const int place = first + group * SPAN;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float four[4];
        if constexpr (PANEL::kDeep) {
          read(four, PANEL::offset(place + i, at / kPerChunk), at % kPerChunk);
#pragma unroll
          for (int j = 0; j < 4; ++j) values[4 * group + i][j] = four[j];
        } else {
          const int chunk = place / kPerChunk;
          read(four, chunk / PANEL::kChunks * PANEL::kPanelBytes +
                         PANEL::offset(at + i, chunk % PANEL::kChunks),
               place % kPerChunk);
#pragma unroll
          for (int j = 0; j < 4; ++j) values[4 * group + j][i] = four[j];
        }
      }
    }
  }

 private:
  __device__ __forceinline__ void read(float (&four)[4], int chunk, int element) const {
    load_values<4>(four, reinterpret_cast<const T*>(tile + chunk) + element);
  }
};

struct Tiled {
  template <typename TILE, typename SUM, bool DEEP_A, bool DEEP_B, bool BIAS, typename TA,
            typename TB, typename EPILOGUE>
  static __device__ __forceinline__ void gemm(const TA* a, int lda, const TB* b, int ldb, int m,
                                                 int n, int k, EPILOGUE epilogue) {
    constexpr int kRows = TILE::kM / TILE::kWarpsM / 4;   // rows of a thread
    constexpr int kColumns = TILE::kN / TILE::kWarpsN / 8;
    constexpr int kStages = TILE::kStages;
    using PanelA = Panel<TA, TILE::kM, DEEP_A, kTiledDepth, 4>;
    using PanelB = Panel<TB, TILE::kN, DEEP_B, kTiledDepth, 4>;
    constexpr int kTile = PanelA::kBytes + PanelB::kBytes;
    static_assert(kRows % 4 == 0 && kColumns % 4 == 0, "a thread takes groups of 4 by 4");
    static_assert(TILE::kCluster == 1, "no clusters");

    const int thread = static_cast<int>(threadIdx.x);
    const int lane = thread % 32;
    const int warp = thread / 32;
    const int across = warp % TILE::kWarpsN * 8 + lane % 8;
    const int down = warp / TILE::kWarpsN % TILE::kWarpsM * 4 + lane / 8;
    const int warp_k = warp / (TILE::kWarpsN * TILE::kWarpsM);
    const int m0 = static_cast<int>(blockIdx.y) * TILE::kM;
    const int n0 = static_cast<int>(blockIdx.x) * TILE::kN;
    constexpr int kSpanM = TILE::kWarpsM * 16;
    constexpr int kSpanN = TILE::kWarpsN * 32;

    Loader<PanelA, TILE::kThreads, TILE::kAligned> load_a(a, lda, m0, m, 0, k, thread);
    Loader<PanelB, TILE::kThreads, TILE::kAligned> load_b(b, ldb, n0, n, 0, k, thread);
    const int stages = (k + kTiledDepth - 1) / kTiledDepth;
    const unsigned int shared = ptx::shared_address(dynamic_shared());

    pdl_wait();
    pdl_trigger();
#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) {
      if (stage < stages) {
        load_a.load(shared + stage * kTile);
        load_b.load(shared + stage * kTile + PanelA::kBytes);
      }
      commit_copies();
    }

    epilogue.ahead();
    epilogue.begin();

    float sums[kRows][kColumns] = {};
    float bias[kRows] = {};
    int slot = 0;
    for (int stage = 0; stage < stages; ++stage) {
      wait_for_copies<kStages - 2>();
      __syncthreads();  // this stage has arrived, and nobody reads the slot that is filled next
      const int ahead = slot == 0 ? kStages - 1 : slot - 1;
      if (stage + kStages - 1 < stages) {
        load_a.load(shared + ahead * kTile);
        load_b.load(shared + ahead * kTile + PanelA::kBytes);
      }
      commit_copies();
      const unsigned char* const tile = dynamic_shared() + slot * kTile;
      const Quads<PanelA, kRows / 4, kSpanM> quads_a{tile, down * 4};
      const Quads<PanelB, kColumns / 4, kSpanN> quads_b{tile + PanelA::kBytes, across * 4};
      constexpr int kOwn = kTiledDepth / TILE::kWarpsK;
#pragma unroll 2
      for (int i = 0; i < kOwn; i += 4) {
        float left[kRows][4];
        float right[kColumns][4];
        quads_a.load(left, warp_k * kOwn + i);
        quads_b.load(right, warp_k * kOwn + i);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
          for (int row = 0; row < kRows; ++row) {
#pragma unroll
            for (int column = 0; column < kColumns; ++column) {
              sums[row][column] = fmaf(left[row][j], right[column][j], sums[row][column]);
            }
          }
        }
        if (BIAS && blockIdx.x == 0) {
#pragma unroll
          for (int row = 0; row < kRows; ++row) {
#pragma unroll
            for (int j = 0; j < 4; ++j) bias[row] += left[row][j];
          }
        }
      }
      slot = slot == kStages - 1 ? 0 : slot + 1;
    }

    if constexpr (TILE::kWarpsK == 1) {
      const bool whole = epilogue.whole();
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int row = m0 + i / 4 * kSpanM + down * 4 + i % 4;
#pragma unroll
        for (int group = 0; group < kColumns / 4; ++group) {
          const int column = n0 + group * kSpanN + across * 4;
          float four[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) four[j] = sums[i][4 * group + j];
          if (whole) {
            finish_four(epilogue, row, column, four);
          } else {
            epilogue.elements(row, column, four);
          }
        }
        if constexpr (BIAS) {
          if (blockIdx.x == 0 && across == 0) {
            epilogue.store_bias(row, bias[i], epilogue.fetch_bias(row));
          }
        }
      }
    } else {
      __syncthreads();  // all copies have arrived and nobody reads them: the sums overwrite them
      float* const parts = reinterpret_cast<float*>(dynamic_shared());
      float* const part = parts + warp_k * Sums<TILE, 0>::kPart;
      constexpr int kPitch = Sums<TILE, 0>::kPitch;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        float* const to = part + (i / 4 * kSpanM + down * 4 + i % 4) * kPitch;
#pragma unroll
        for (int group = 0; group < kColumns / 4; ++group) {
          float four[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) four[j] = sums[i][4 * group + j];
          store_values<4>(to + group * kSpanN + across * 4, four);
        }
        if (BIAS && across == 0) to[TILE::kN] = bias[i];
      }
      Finish<TILE, EPILOGUE, Sums<TILE, 0>> finish(epilogue, m0, n0, thread);
      finish.template run<BIAS>(n0 == 0);
    }
  }
};
