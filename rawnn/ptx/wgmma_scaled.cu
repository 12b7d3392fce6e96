// WgmmaScaled: the main loop of products of float32 on Hopper's tensor cores as three products of
// float16 (sm_90a), each computed by two warpgroups; the kernels are those of product_kernels.cuh.
//
// x times a power of two is high + low, both float16 with 11 bits of significand, and the product
// high * high + high * low + low * high: the same 22 bits as three products of tf32 (wgmma_tf32.cu)
// in half the tensor cores' time. float16 has little range, so that every row of op(a) and every
// column of op(b) has a scale of its own, which puts the largest of what has come of it so far between
// 2^13 and 2^16. Where a number comes that is too large, its row's or column's scale and all sums
// that have it become smaller; the sums are divided by both scales at the end. So a number is off by
// 2^-23 of itself or 2^-38 of the largest of its row, whichever is more. What is not finite makes NaN.
//
// op(a) comes from registers. While the tensor cores work on a stage, the next stage of op(b) is
// scaled, split and stored: along the inner dimension where it lies so, else along its columns,
// which wgmma reads as well. The sums of a stage begin at zero and are added to the others by the
// float units, which round: the tensor cores cut sums off. Every sum has one order.
//
// Used by `mma` on Hopper. Launch: as mma.cu, 256 threads; besides the stages two prepared operands
// of two parts each, and three floats a column: its scale, and how it has changed in two stages.
// Limit: large products, what threads issue to scale and to split.
#include "device/fences.cuh"
#include "mma_copy.cuh"
#include "mma_sums.cuh"
#include "mma_warpgroup.cuh"
#include "pdl.cuh"
#define PRODUCT_BOUNDS __launch_bounds__(256, BM * BN > 8192 ? 1 : 2)
#include "product_kernels.cuh"

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "wgmma_scaled.cu needs the instructions of one architecture: compile it for sm_90a"
#endif

struct f16x3 {};  // a SUM: kept as floats

constexpr int kStageDepth = 32;  // floats
constexpr int kSteps = 2;        // of 16 a stage
constexpr float kFirstScale = 8.507059173023462e37f;  // 2^126: the first number but a tiny one is too large
constexpr float kTooLarge = 65520.0f;                 // from here on a float16 is infinite

// The scale of numbers up to `largest`, the bits of a float that is not negative.
__device__ __forceinline__ float scale_of(float scale, unsigned int largest) {
  const bool fits = !(__uint_as_float(largest) * scale >= kTooLarge);
  return fits ? scale : __uint_as_float((267u - (largest >> 23)) << 23);
}

// By how much sums change with a scale: a power of two, or 0 beyond the range of float.
__device__ __forceinline__ float change_of(float scale, float before) {
  return scale * __uint_as_float((254u << 23) - __float_as_uint(before));
}

__device__ __forceinline__ unsigned int magnitude(float value) {
  return __float_as_uint(value) & 0x7fffffffu;
}

// Two scaled numbers as pairs of float16, high parts alone or with what they leave. `beyond` becomes
// other than zero where one is too large.
template <bool LOW>
__device__ __forceinline__ void split(unsigned int& high, unsigned int& low, unsigned int& beyond,
                                      float first, float second) {
  high = pack_pair<float16>(first, second);
  if constexpr (LOW) {
    const float2 rounded = unpack_pair<float16>(high);
    low = pack_pair<float16>(first - rounded.x, second - rounded.y);
  }
  beyond = ptx::fma_f16_pair(high, 0u, beyond);  // infinity times zero
}

// What a lane reads of op(a), a warp's 16 rows at a step: four pairs of neighbours along the inner
// dimension, in the order of a fragment's words. Of a deep tile rows are read in the order 0, 2, 4,
// 6, 1, ..., of a wide one in pairs of an even and an odd row, which take the places of the
// instruction's first and second eight; and there t + 4 i stands for the instruction's 2 t, 2 t + 1,
// 2 t + 8, 2 t + 9: so lanes read different banks.
template <typename PANEL>
struct Rows {
  static constexpr bool kDeep = PANEL::kDeep;
  int base;

  __device__ __forceinline__ Rows(int first, int lane) {
    const int place = first + row(lane, 0);
    const int t = lane % 4;
    if constexpr (kDeep) {
      base = PANEL::offset(place, t / 2) + t % 2 * 8;
    } else {
      base = place / 32 * PANEL::kPanelBytes + PANEL::offset(t, place % 32 / 4) + place % 4 * 4;
    }
  }

  __device__ __forceinline__ void load(float (&pairs)[4][2], unsigned int tile, int step) const {
    static_assert(PANEL::kChunks == 8, "rows of 128 bytes");
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      unsigned int two[2];
      if constexpr (kDeep) {
        ptx::load_shared(two, tile + (base ^ (step * 64 + i / 2 * 32)) + i % 2 * 8 * PANEL::kRowBytes);
        pairs[i][0] = __uint_as_float(two[0]);
        pairs[i][1] = __uint_as_float(two[1]);
      } else {
        ptx::load_shared(two, tile + base + (step * 16 + i * 4) * PANEL::kRowBytes);
        pairs[i / 2 * 2][i % 2] = __uint_as_float(two[0]);
        pairs[i / 2 * 2 + 1][i % 2] = __uint_as_float(two[1]);
      }
    }
  }

  // A lane's first row (half 0), or its second.
  static __device__ __forceinline__ int row(int lane, int half) {
    const int g = lane / 4;
    return kDeep ? g % 4 * 2 + g / 4 + 8 * half : g * 2 + half;
  }
  // Where along the inner dimension the instruction finds what lies at `k`.
  static __device__ __forceinline__ int place(int k) {
    return kDeep ? k : (k & 24) | (k & 3) << 1 | (k >> 2 & 1);
  }
};

// op(b)'s stage as wgmma takes it, in the 128-byte swizzle. Of a deep operand a thread takes what it
// has copied itself, and a row of the result has the high parts in its first 64 bytes and the low ones
// behind; of a wide one a warp takes eight columns and a lane one row of them, and the low parts
// lie behind all high ones.
template <typename LEFT, typename PANEL, int COLUMNS, bool LOW>
struct Right {
  static constexpr bool kDeep = PANEL::kDeep;
  using Ready = Panel<float16, COLUMNS, kDeep, kDeep ? 2 * kStageDepth : kStageDepth>;
  static constexpr int kBytes = (kDeep || !LOW ? 1 : 2) * Ready::kBytes;
  static constexpr int kPasses = COLUMNS / (kDeep ? 32 : 64);
  static constexpr int kCount = kDeep ? 4 : 8;  // numbers of a thread at a pass

  // In shared memory: [COLUMNS] of scales, [2, COLUMNS] of what they have changed by in a stage.
  float* const scales;
  int thread, lane;
  unsigned int own;

  __device__ __forceinline__ int column(int pass) const {
    return kDeep ? thread / 8 + 32 * pass : thread / 32 * 8 + 64 * pass;
  }
  __device__ __forceinline__ bool writes() const { return kDeep ? lane % 8 == 0 : lane < 8; }
  __device__ __forceinline__ float* own_place(float* from, int pass) const {
    return from + column(pass) + (kDeep ? 0 : lane % 8);
  }

  __device__ __forceinline__ void begin() const {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      if (writes()) *own_place(scales, pass) = kFirstScale;
    }
    __syncwarp();
  }

  // Says whether a scale has changed.
  __device__ __forceinline__ bool prepare(unsigned int raw, unsigned int ready, int parity) const {
    float* const changes = scales + (1 + parity) * COLUMNS;
    bool changed = false;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int first = column(pass);
      unsigned int high[kCount / 2], low[kCount / 2];
      if (writes()) *own_place(changes, pass) = 1.0f;
      if (__any_sync(kFullWarp, parts(high, low, raw, pass))) {
        changed = true;
        rescale(raw, changes, pass);
        parts(high, low, raw, pass);
      }
      if constexpr (kDeep) {
        const int chunk = lane % 8;
        const unsigned int to = ready + Ready::offset(first, chunk / 2) + chunk % 2 * 8;
        ptx::store_shared(to, high);
        if constexpr (LOW) ptx::store_shared(to ^ 64u, low);
      } else {
        const unsigned int to = ready + first / 64 * Ready::kPanelBytes +
                                Ready::offset(LEFT::place(lane), first % 64 / 8);
        ptx::store_shared(to, high);
        if constexpr (LOW) ptx::store_shared(to + Ready::kBytes, low);
      }
    }
    return changed;
  }

  static __device__ __forceinline__ unsigned long long high(unsigned int ready, int step) {
    return operand<Ready>(ready, 0, step);
  }
  static __device__ __forceinline__ unsigned long long low(unsigned int ready, int step) {
    return kDeep ? operand<Ready>(ready, 0, kSteps + step)
                 : operand<Ready>(ready + Ready::kBytes, 0, step);
  }

 private:
  // Four of a thread's numbers at a pass.
  __device__ __forceinline__ void load(float (&values)[4], unsigned int raw, int pass,
                                       int four) const {
    unsigned int words[4];
    if constexpr (kDeep) {
      ptx::load_shared(words, raw + own + pass * (32 * PANEL::kRowBytes));
    } else {
      const int first = column(pass);
      ptx::load_shared(words, raw + first / 32 * PANEL::kPanelBytes +
                                  PANEL::offset(lane, first % 32 / 4 + four));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = __uint_as_float(words[i]);
  }

  __device__ __forceinline__ bool parts(unsigned int (&high)[kCount / 2],
                                        unsigned int (&low)[kCount / 2], unsigned int raw,
                                        int pass) const {
    unsigned int beyond = 0u;
#pragma unroll
    for (int four = 0; four < kCount / 4; ++four) {
      float values[4];
      load(values, raw, pass, four);
      float scale[4];
      if constexpr (kDeep) {
        scale[0] = scale[1] = scale[2] = scale[3] = scales[column(pass)];
      } else {
        load_values<4>(scale, scales + column(pass) + 4 * four);
      }
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const int at = (4 * four + i) / 2;
        split<LOW>(high[at], low[at], beyond, values[i] * scale[i], values[i + 1] * scale[i + 1]);
      }
    }
    return beyond != 0u;
  }

  __device__ __forceinline__ void rescale(unsigned int raw, float* changes, int pass) const {
    unsigned int own_largest = 0u;  // of the lane's row, or of the column that it writes
#pragma unroll
    for (int four = 0; four < kCount / 4; ++four) {
      float values[4];
      load(values, raw, pass, four);
      if constexpr (kDeep) {
#pragma unroll
        for (int i = 0; i < 4; ++i) own_largest = max(own_largest, magnitude(values[i]));
#pragma unroll
        for (int apart = 1; apart < 8; apart *= 2) {
          own_largest = max(own_largest, __shfl_xor_sync(kFullWarp, own_largest, apart));
        }
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          unsigned int largest = magnitude(values[i]);
#pragma unroll
          for (int apart = 1; apart < 32; apart *= 2) {
            largest = max(largest, __shfl_xor_sync(kFullWarp, largest, apart));
          }
          if (lane == 4 * four + i) own_largest = largest;
        }
      }
    }
    if (writes()) {
      float& scale = *own_place(scales, pass);
      const float before = scale;
      scale = scale_of(before, own_largest);
      *own_place(changes, pass) = change_of(scale, before);
    }
    __syncwarp();
  }
};

template <typename TILE, typename SUM, bool DEEP_A, bool DEEP_B, bool BIAS, typename EPILOGUE>
__device__ __forceinline__ void block_product(const float* a, int lda, const float* b, int ldb,
                                              int m, int n, int k, EPILOGUE epilogue) {
  constexpr bool kThree = Same<SUM, f16x3>::kValue;
  constexpr int kColumns = TILE::kN;
  constexpr int kStages = TILE::kStages;
  constexpr int kThreads = TILE::kThreads;
  using PanelA = Panel<float, TILE::kM, DEEP_A, kStageDepth>;
  using PanelB = Panel<float, kColumns, DEEP_B, kStageDepth>;
  using Left = Rows<PanelA>;
  using Second = Right<Left, PanelB, kColumns, kThree>;
  constexpr int kTile = PanelA::kBytes + PanelB::kBytes;
  using Parts = Sums<TILE, 0>;  // the inbox lies among the operands: two blocks need their room
  static_assert(TILE::kM == 128 && kThreads == 256, "two warpgroups of 64 rows");
  static_assert(DEEP_A || !DEEP_B, "an operand from shared memory that lies as the other one does");
  static_assert(kStages >= 3, "stages ahead");
  constexpr int kOperands = kStages * kTile + 2 * Second::kBytes;
  constexpr int kInboxEnd =
      Parts::kInbox + (TILE::kCluster > 1 ? TILE::kCluster * Parts::kRows * Parts::kPitch * 4 + 16 : 0);
  constexpr int kScales = kOperands > kInboxEnd ? kOperands : kInboxEnd;

  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int m0 = static_cast<int>(blockIdx.y) * TILE::kM;
  const int n0 = static_cast<int>(blockIdx.x) / TILE::kCluster * kColumns;
  const Share<TILE> share((k + kStageDepth - 1) / kStageDepth);
  const int stages = share.stages;
  const int begin = share.begin * kStageDepth;
  Loader<PanelA, kThreads, TILE::kAligned> load_a(a, lda, m0, m, begin, k, thread);
  Loader<PanelB, kThreads, TILE::kAligned> load_b(b, ldb, n0, n, begin, k, thread);
  const Left rows(warp * 16, lane);
  const unsigned int shared = ptx::shared_address(dynamic_shared());
  const unsigned int prepared = shared + kStages * kTile;
  const Second second{reinterpret_cast<float*>(dynamic_shared() + kScales), thread, lane,
                      load_b.to};

  if constexpr (TILE::kEarly) {
    load_ahead<kStages - 1>(load_b, shared + PanelA::kBytes, kTile, stages);
  }
  second.begin();
  pdl_wait();
#pragma unroll 1
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (stage < stages) {
      load_a.load(shared + stage * kTile);
      if constexpr (!TILE::kEarly) load_b.load(shared + stage * kTile + PanelA::kBytes);
    }
    commit_copies();
  }
  epilogue.ahead();  // not before: Adam's numbers would have to wait in registers that there are not
  epilogue.begin();
  wait_for_copies<kStages - 2>();
  if constexpr (!DEEP_B) __syncthreads();
  second.prepare(shared + PanelA::kBytes, prepared, 0);
  ptx::fence_proxy_async();
  __syncthreads();

  float sums[kColumns / 2] = {};
  float all[kThree ? kColumns / 2 : 1] = {};
  float bias[2] = {};
  float scale[2] = {kFirstScale, kFirstScale};  // of a lane's two rows
  const bool sums_bias = BIAS && n0 == 0;
  int changed = 0;  // the scale of a column, in this stage
  int slot = 0;
#pragma unroll 1
  for (int stage = 0; stage < stages; ++stage) {
    const unsigned int tile = shared + slot * kTile;
    const unsigned int ready = prepared + stage % 2 * Second::kBytes;
    slot = slot == kStages - 1 ? 0 : slot + 1;

    const auto change = [&](int i, float by) {
      if constexpr (kThree) {
        all[i] *= by;
      } else {
        sums[i] *= by;
      }
    };
    if (changed != 0) {
      const float* const by = second.scales + (1 + stage % 2) * kColumns + lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) change(i, by[i / 4 * 8 + i % 2]);
    }
    unsigned int high[kSteps][4], low[kSteps][4];
    const auto split_rows = [&]() {
      unsigned int beyond = 0u;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        float pairs[4][2];
        rows.load(pairs, tile, step);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          split<kThree>(high[step][i], low[step][i], beyond, pairs[i][0] * scale[i % 2],
                pairs[i][1] * scale[i % 2]);
        }
      }
      return beyond != 0u;
    };
    if (__any_sync(kFullWarp, split_rows())) {
      unsigned int largest[2] = {};
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        float pairs[4][2];
        rows.load(pairs, tile, step);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          largest[i / 2 % 2] = max(largest[i / 2 % 2], magnitude(pairs[i / 2][i % 2]));
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        largest[half] = max(largest[half], __shfl_xor_sync(kFullWarp, largest[half], 1));
        largest[half] = max(largest[half], __shfl_xor_sync(kFullWarp, largest[half], 2));
        const float before = scale[half];
        scale[half] = scale_of(before, largest[half]);
        const float by = change_of(scale[half], before);
#pragma unroll
        for (int j = 0; j < kColumns / 8; ++j) {
          change(4 * j + 2 * half, by);
          change(4 * j + 2 * half + 1, by);
        }
      }
      split_rows();
    }
    if (sums_bias) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        float pairs[4][2];
        rows.load(pairs, tile, step);
#pragma unroll
        for (int i = 0; i < 8; ++i) bias[i / 2 % 2] += pairs[i / 2][i % 2];
      }
    }

    ptx::settle(sums);
    ptx::fence_products();
    if constexpr (kThree) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        ptx::multiply_async_f16<kColumns, !DEEP_B>(sums, low[step], Second::high(ready, step), step);
        ptx::multiply_async_f16<kColumns, !DEEP_B>(sums, high[step], Second::low(ready, step), 1);
      }
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      ptx::multiply_async_f16<kColumns, !DEEP_B>(sums, high[step], Second::high(ready, step),
                                                 kThree ? 1 : stage + step);
    }
    ptx::commit_products();
    bool changes = false;
    if (stage + 1 < stages) {
      wait_for_copies<kStages - 3>();
      if constexpr (!DEEP_B) __syncthreads();  // the next stage is there
      changes = second.prepare(shared + slot * kTile + PanelA::kBytes,
                               prepared + (stage + 1) % 2 * Second::kBytes, (stage + 1) % 2);
      ptx::fence_proxy_async();
      // Behind the fence, with as few copies under way there as can be.
      if (stage + kStages - 1 < stages) {  // into the place of the stage before this one
        const int ahead = slot < 2 ? slot + kStages - 2 : slot - 2;
        load_a.load(shared + ahead * kTile);
        load_b.load(shared + ahead * kTile + PanelA::kBytes);
      }
      commit_copies();
    }
    ptx::wait_for_products<0>();
    ptx::settle(sums);
    if constexpr (kThree) {
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) all[i] += sums[i];
    }
    // It is prepared, and nobody reads what this one took.
    changed = __syncthreads_or(changes ? 1 : 0);
  }
  pdl_trigger();  // not before: blocks of the next kernel would take the place of further ones

  // All copies have come, and nobody reads them any more: the sums take their place.
  float* const parts = reinterpret_cast<float*>(dynamic_shared());
  constexpr int kPitch = Parts::kPitch;
  const int q = lane % 4;
  const auto kept = [&](int i) {
    if constexpr (kThree) {
      return all[i];
    } else {
      return sums[i];
    }
  };
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp * 16 + Left::row(lane, half);
    const int exponent = static_cast<int>(__float_as_uint(scale[half]) >> 23);
    const auto unscaled = [&](float sum, int column) {
      const int both = 254 - exponent -
                       static_cast<int>(__float_as_uint(second.scales[column]) >> 23);
      const int some = both >> 1;  // a float holds either half's power of two
      return sum * __uint_as_float(static_cast<unsigned int>(127 + some) << 23) *
             __uint_as_float(static_cast<unsigned int>(127 + both - some) << 23);
    };
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      const int column = 8 * j + 2 * q;
      *reinterpret_cast<float2*>(parts + row * kPitch + column) =
          make_float2(unscaled(kept(4 * j + 2 * half), column),
                      unscaled(kept(4 * j + 2 * half + 1), column + 1));
    }
    if constexpr (BIAS) {
      bias[half] += __shfl_xor_sync(kFullWarp, bias[half], 1);
      bias[half] += __shfl_xor_sync(kFullWarp, bias[half], 2);
      if (sums_bias && q == 0) parts[row * kPitch + TILE::kN] = bias[half];
    }
  }
  Finish<TILE, EPILOGUE, Parts, 0> finish(epilogue, m0, n0, thread);
  finish.template run<BIAS>(n0 == 0);
}

struct WgmmaScaled {
  template <typename TILE, typename SUM, bool DEEP_A, bool DEEP_B, bool BIAS, typename EPILOGUE>
  static __device__ __forceinline__ void product(const float* a, int lda, const float* b, int ldb,
                                                 int m, int n, int k, EPILOGUE epilogue) {
    block_product<TILE, SUM, DEEP_A, DEEP_B, BIAS>(a, lda, b, ldb, m, n, k, epilogue);
  }
};
