// float operands as float16 times powers of two, for wgmma: how warps read, scale and split them.
// mma_scales.cuh defines the scales.
#pragma once
#include "gemm/mma_scales.cuh"

// A warp's 16 rows of a stage as fragments.
struct ScaledRows {
  unsigned int high[kSteps][4];
  unsigned int low[kSteps][4];
};

// A warp's 16 rows of op(a), read from a stage's tile into fragments of wgmma, whose words are pairs of
// neighbors along the inner dimension. A permutation lets lanes read different banks. Rows of a deep tile
// are read in the order 0, 2, 4, 6, 1, ... Rows of a wide tile are read in pairs of an even and an odd
// one, which are one of the instruction's first and one of its second eight; and there t + 4 i stands
// for the instruction's 2 t, 2 t + 1, 2 t + 8, 2 t + 9.
template <typename PANEL>
struct Left {
  static constexpr bool kDeep = PANEL::kDeep;

  int base;
  float scale[2];   // of a lane's two rows
  float change[2];  // the factor by which the sums of either have to be reduced

  __device__ __forceinline__ Left(int first, int lane) {
    const int place = first + row(lane, 0);
    const int t = lane % 4;
    if constexpr (kDeep) {
      base = PANEL::offset(place, t / 2) + t % 2 * 8;
    } else {
      base = place / 32 * PANEL::kPanelBytes + PANEL::offset(t, place % 32 / 4) + place % 4 * 4;
    }
    scale[0] = scale[1] = kFirstScale;
  }

  // Chooses scales with which a stage's numbers fit into float16.
  __device__ __forceinline__ void fit(unsigned int tile) {
    unsigned int largest[2] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      float pairs[4][2];
      load(pairs, tile, step);
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
      change[half] = change_of(scale[half], before);
    }
  }

  // Returns whether a scale of the warp has changed, so that sums with the old scale must be adjusted.
  __device__ __forceinline__ bool take(ScaledRows& parts, unsigned int tile) {
    if (!__any_sync(kFullWarp, split_all(parts, tile))) return false;
    fit(tile);
    split_all(parts, tile);
    return true;
  }

  __device__ __forceinline__ void add_up(float (&rows)[2], unsigned int tile) const {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      float pairs[4][2];
      load(pairs, tile, step);
#pragma unroll
      for (int i = 0; i < 8; ++i) rows[i / 2 % 2] += pairs[i / 2][i % 2];
    }
  }

  // A lane's first row (half 0), or its second.
  static __device__ __forceinline__ int row(int lane, int half) {
    const int g = lane / 4;
    return kDeep ? g % 4 * 2 + g / 4 + 8 * half : g * 2 + half;
  }
  // The instruction's index along the inner dimension of the element at `k`.
  static __device__ __forceinline__ int place(int k) {
    return kDeep ? k : (k & 24) | (k & 3) << 1 | (k >> 2 & 1);
  }

 private:
  // Loads four pairs at a step, in the order of a fragment's words.
  __device__ __forceinline__ void load(float (&pairs)[4][2], unsigned int tile, int step) const {
    static_assert(PANEL::kChunks == 8, "rows of 128 bytes");
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      unsigned int two[2];
      if constexpr (kDeep) {
        ptx::load_shared(two, tile + (base ^ (step * 64 + i / 2 * 32)) +
                                  i % 2 * 8 * PANEL::kRowBytes);
        pairs[i][0] = __uint_as_float(two[0]);
        pairs[i][1] = __uint_as_float(two[1]);
      } else {
        ptx::load_shared(two, tile + base + (step * 16 + i * 4) * PANEL::kRowBytes);
        pairs[i / 2 * 2][i % 2] = __uint_as_float(two[0]);
        pairs[i / 2 * 2 + 1][i % 2] = __uint_as_float(two[1]);
      }
    }
  }

  __device__ __forceinline__ bool split_all(ScaledRows& parts, unsigned int tile) const {
    unsigned int beyond = 0u;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      float pairs[4][2];
      load(pairs, tile, step);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float first = pairs[i][0] * scale[i % 2];
        const float second = pairs[i][1] * scale[i % 2];
        parts.high[step][i] = high_parts(beyond, first, second);
        parts.low[step][i] = low_parts(parts.high[step][i], first, second);
      }
    }
    return beyond != 0u;
  }
};

// Prepares a stage of op(b) for wgmma, in the 128-byte swizzle. For a deep operand a thread processes
// what it has copied itself, `own` bytes from the tile's start on; a row of 128 bytes has the high parts
// in its first half and the low ones in its second. For a wide one a warp processes eight columns, a
// lane one row of them, and the low parts are behind all high ones.
template <typename LEFT, typename PANEL, int COLUMNS>
struct Right {
  static constexpr bool kDeep = PANEL::kDeep;
  using Ready = Panel<float16, COLUMNS, kDeep, kDeep ? 2 * kStageDepth : kStageDepth>;
  static constexpr int kBytes = (kDeep ? 1 : 2) * Ready::kBytes;
  static constexpr int kPasses = COLUMNS / (kDeep ? 32 : 64);
  static constexpr int kCount = kDeep ? 4 : 8;  // numbers of a thread in a pass

  // In shared memory: [COLUMNS] scales, and [2, COLUMNS] factors by which they change at a stage, which
  // are 1 unless a warp has changed one for the next or the current stage.
  float* const scales;
  const int thread, lane;
  const unsigned int own;
  unsigned int said;  // one bit for each of the two: a scale was changed

  __device__ __forceinline__ Right(float* where, int index, unsigned int first)
      : scales(where), thread(index), lane(index % 32), own(first), said(3u) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      if (writes()) *place(scales, pass) = kFirstScale;
    }
    __syncwarp();
  }

  // Returns whether a scale of the warp has changed, so that sums with the old scale must be adjusted at
  // this stage. At the FIRST stage scales always change, and there are no sums yet.
  template <bool FIRST>
  __device__ __forceinline__ bool prepare(unsigned int raw, unsigned int ready, int parity) {
    float* const changes = scales + (1 + parity) * COLUMNS;
    if (!FIRST && (said >> parity & 1u) != 0u) {  // two stages ago
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        if (writes()) *place(changes, pass) = 1.0f;
      }
      said &= ~(1u << parity);
    }
    if (FIRST || __any_sync(kFullWarp, split_all(raw, ready))) {
      said |= 1u << parity;
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) fit(raw, changes, pass);
      __syncwarp();
      split_all(raw, ready);
    }
    return (said >> parity & 1u) != 0u;
  }

  // The descriptor of the high parts at a stage's first step; and the offsets of other parts and steps.
  static __device__ __forceinline__ unsigned long long first(unsigned int ready) {
    return operand<Ready>(ready, 0, 0);
  }
  static __device__ __forceinline__ int on(bool low, int step) {
    return ((low ? (kDeep ? 64 : Ready::kBytes) : 0) +
            step * (kDeep ? 32 : 16 * Ready::kRowBytes)) / 16;
  }

 private:
  __device__ __forceinline__ int column(int pass) const {
    return kDeep ? thread / 8 + 32 * pass : thread / 32 * 8 + 64 * pass;
  }
  __device__ __forceinline__ bool writes() const { return kDeep ? lane % 8 == 0 : lane < 8; }
  __device__ __forceinline__ float* place(float* from, int pass) const {
    return from + column(pass) + (kDeep ? 0 : lane);  // a lane that writes
  }

  // Loads four of a thread's numbers in a pass.
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

  __device__ __forceinline__ bool split_all(unsigned int raw, unsigned int ready) const {
    unsigned int beyond = 0u;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      unsigned int high[kCount / 2], low[kCount / 2];
      split(high, low, beyond, raw, pass);
      const int first = column(pass);
      if constexpr (kDeep) {
        const int chunk = lane % 8;
        const unsigned int to = ready + Ready::offset(first, chunk / 2) + chunk % 2 * 8;
        ptx::store_shared(to, high);
        ptx::store_shared(to ^ 64u, low);
      } else {
        const unsigned int to = ready + first / 64 * Ready::kPanelBytes +
                                Ready::offset(LEFT::place(lane), first % 64 / 8);
        ptx::store_shared(to, high);
        ptx::store_shared(to + Ready::kBytes, low);
      }
    }
    return beyond != 0u;
  }

  __device__ __forceinline__ void split(unsigned int (&high)[kCount / 2],
                                        unsigned int (&low)[kCount / 2], unsigned int& beyond,
                                        unsigned int raw, int pass) const {
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
        const float first = values[i] * scale[i];
        const float second = values[i + 1] * scale[i + 1];
        high[at] = high_parts(beyond, first, second);
        low[at] = low_parts(high[at], first, second);
      }
    }
  }

  // Chooses scales with which a pass's numbers fit into float16.
  __device__ __forceinline__ void fit(unsigned int raw, float* changes, int pass) const {
    unsigned int largest = 0u;  // in the lane's row, or in the column that it writes
#pragma unroll
    for (int four = 0; four < kCount / 4; ++four) {
      float values[4];
      load(values, raw, pass, four);
      if constexpr (kDeep) {
#pragma unroll
        for (int i = 0; i < 4; ++i) largest = max(largest, magnitude(values[i]));
#pragma unroll
        for (int apart = 1; apart < 8; apart *= 2) {
          largest = max(largest, __shfl_xor_sync(kFullWarp, largest, apart));
        }
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const unsigned int of_column = __reduce_max_sync(kFullWarp, magnitude(values[i]));
          if (lane == 4 * four + i) largest = of_column;
        }
      }
    }
    if (writes()) {
      float& scale = *place(scales, pass);
      const float before = scale;
      scale = scale_of(before, largest);
      *place(changes, pass) = change_of(scale, before);
    }
  }
};
