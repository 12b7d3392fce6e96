// The backward pass of a layer over one reading of its weights: the input gradient, or the update.
// Used by skinny.cu.
#pragma once
#include "activations.cuh"
#include "common.cuh"
#include "pdl.cuh"
#include "skinny_parts.cuh"
#include "updates.cuh"

namespace skinny {

// 16 random bits for each of N elements from `element` on, as `rounding_group` gives them.
template <int N>
__device__ __forceinline__ Words rounding_window(const Rounding& how, unsigned int element) {
  Words found = rounding_group(how.seed, how.stream, how.step, element / 8u);
  const unsigned int skip = element % 8u;
  if (skip == 0u) return found;
  Words next = found;
  if (skip + N > 8u) next = rounding_group(how.seed, how.stream, how.step, element / 8u + 1u);
  unsigned int all[8];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    all[i] = found.word[i];
    all[4 + i] = next.word[i];
  }
#pragma unroll
  for (int i = 0; i < 7; ++i) {
    if ((skip & 1u) != 0u) all[i] = all[i] >> 16 | all[i + 1] << 16;
  }
#pragma unroll
  for (int i = 0; i < 6; ++i) {
    if ((skip & 2u) != 0u) all[i] = all[i + 1];
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) found.word[i] = (skip & 4u) != 0u ? all[i + 2] : all[i];
  return found;
}

// N floats rounded by chance to bfloat16, two a word.
template <int N>
__device__ __forceinline__ void round_by_chance(unsigned int (&rounded)[N / 2],
                                                const float (&values)[N], const Words& random) {
  float magnitude = 0.0f;  // one test for all of them: infinite or NaN where any is
#pragma unroll
  for (int i = 0; i < N; ++i) magnitude += fabsf(values[i]);
  if (is_finite(magnitude)) {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      rounded[i] = __byte_perm(__float_as_uint(values[2 * i]) + (random.word[i] & 0xffffu),
                               __float_as_uint(values[2 * i + 1]) + (random.word[i] >> 16), 0x7632);
    }
  } else {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      const unsigned int low = stochastic_round_bf16(values[2 * i], random.word[i] & 0xffffu).bits;
      const unsigned int high = stochastic_round_bf16(values[2 * i + 1], random.word[i] >> 16).bits;
      rounded[i] = low | high << 16;
    }
  }
}

// A warp's tile of weights is 16 rows of 8 * V columns, 128 bytes wide (64 where V is 4 and weights
// have 16 bits). It is copied in whole lines, and read as the tensor cores' fragments of its
// transpose: lane (g, t) = (lane / 4, lane % 4) takes V columns of the rows 2t, 2t + 1, 2t + 8 and
// 2t + 9. The 16-byte chunks of a line are permuted, so that neither way meets a bank twice.
template <typename TW, int V>
struct Tile {
  static constexpr int kWords = V * static_cast<int>(sizeof(TW)) / 4;  // of a lane's part of a row
  static constexpr int kBytes = 16 * 32 * kWords;
  static constexpr int kPerChunk = 16 / static_cast<int>(sizeof(TW));
  static constexpr int kChunks = 8 * V / kPerChunk;  // of a row
  static constexpr int kAtOnce = 32 / kChunks;       // rows of a warp's copy
  static constexpr int kPasses = 16 / kAtOnce;
  static_assert(kChunks == 8 || kChunks == 4, "a row of a tile is 128 or 64 bytes");

  // What this lane copies: in pass i the chunk `chunk` of row `row` + i * kAtOnce.
  static __device__ __forceinline__ int row(int lane) { return lane / kChunks; }
  static __device__ __forceinline__ int chunk(int lane) { return lane % kChunks; }
  // Bytes from the tile's start; `first` is copied_first(lane).
  static __device__ __forceinline__ int copied_first(int lane) {
    const int key = kChunks == 8 ? 2 * (lane >> 4) : 2 * (lane >> 3);
    return lane / 8 * 128 + ((lane % 8) ^ key) * 16;
  }
  static __device__ __forceinline__ int copied(int first, int pass) {
    return pass * 512 + (kChunks == 8 && pass % 2 == 1 ? first ^ 64 : first);
  }
  // Of this lane's part of its row 2t or 2t + 1; its other two rows are kHalf further.
  static constexpr int kHalf = kBytes / 2;
  static __device__ __forceinline__ int part_first(int lane) {
    const int g = lane / 4;
    const int t = lane % 4;
    return kChunks == 8 ? 2 * t * 128 + (g ^ (2 * t)) * 16
                        : t * 128 + ((g / 2) ^ (2 * t)) * 16 + g % 2 * 8;
  }
  static __device__ __forceinline__ int part(int first, int odd) {
    if (odd == 0) return first;
    return kChunks == 8 ? first + 128 : first ^ 64;
  }
};

// A block's work: columns 8 * V * WC * blockIdx.y and up of w [rows, cols], and of its rows the
// units of 16 from share * blockIdx.x on. In each round it takes WR units: WC * WR tiles, with WB
// warps each, which have their part of the batch for the input gradient and of the rows for the
// update. Tiles and what belongs to them of dz come through a ring of DEPTH slots.
template <typename T, typename TW, typename SLOPE, bool GRADIENT, bool UPDATE, bool STOCHASTIC,
          bool DECAY, bool RAGGED, int TILES, int V, int WC, int WR, int WB, int DEPTH, bool EARLY>
struct Backward {
  using Layout = Tile<TW, V>;
  static constexpr int kBatch = 8 * TILES;
  static constexpr int kColumns = 8 * V * WC;
  static constexpr int kThreads = 32 * WC * WR * WB;
  static constexpr int kWords = Layout::kWords;
  static constexpr int kDeep = TILES / 2;    // products of 16 rows of the batch
  static constexpr int kOwn = kDeep / WB;    // of which this warp sums the input gradient
  static constexpr int kHalves = 2 / WB;     // of a tile's rows that this warp updates
  static constexpr int kPasses = Layout::kPasses / WB;  // of copies of a tile, by this warp
  static constexpr bool kMaster = sizeof(TW) == 4;
  static constexpr int kTiles = WC * WR * Layout::kBytes;
  static constexpr int kPitch = (WR * 16 + 8) * static_cast<int>(sizeof(T));  // of dz in a slot
  static constexpr int kSlot = kTiles + kBatch * kPitch;
  static constexpr int kOut = UPDATE ? kTiles : 0;  // new weights on their way out
  static constexpr int kSumPitch = kColumns + 4;
  static constexpr int kSums = GRADIENT ? WR * kBatch * kSumPitch * 4 : 0;
  static constexpr int kWork = DEPTH * kSlot + kOut > kSums ? DEPTH * kSlot + kOut : kSums;
  static_assert(kOwn * WB == kDeep && (WB == 1 || WB == 2), "warps of a tile share it evenly");
  static_assert(GRADIENT != UPDATE, "one of the two");

  const T* dz;
  int lddz;
  TW* w;
  int ldw;
  T* copy;
  int ldcopy;
  const T* x;
  int ldx;
  float* bias;
  const T* saved;
  int ldsaved;
  T* dx;
  int lddx;
  int* overflow;  // read by an update, written by an input gradient
  int batch, rows, cols, share;
  const float* rates;
  const int* cursor;
  const int* clock;
  const float* loss_scale;
  float lr, decay;
  int offset;
  unsigned long long seed;
  unsigned int stream;

  using Piece = unsigned int[4][kWords];

  struct Step {
    bool skip;
    float factor;  // of the gradient
    float shrink;  // of the weight
    Rounding how;
  };

  __device__ __forceinline__ void run() const {
    extern __shared__ uint4 shared[];
    __shared__ unsigned long long counter;
    const int thread = static_cast<int>(threadIdx.x);
    const int lane = thread & 31;
    const int warp = thread / 32;
    const int wb = warp % WB;
    const int wc = warp / WB % WC;
    const int wr = warp / (WB * WC);
    const int g = lane / 4;
    const int t = lane % 4;
    const int splits = static_cast<int>(gridDim.x);
    const int rank = static_cast<int>(blockIdx.x);
    const int column0 = static_cast<int>(blockIdx.y) * kColumns;
    Mailbox mailbox;
    if constexpr (GRADIENT) {
      if (splits > 1) mailbox.open(&counter, kBatch * kColumns * 4);
    }

    const int first = rank * share;
    const int count = max(min(share, (rows + 15) / 16 - first), 0);
    const int rounds = (count + WR - 1) / WR;
    const int end = min((first + count) * 16, rows);
    const unsigned int ring = shared_address(shared);
    const unsigned int tile = static_cast<unsigned int>((wr * WC + wc) * Layout::kBytes);
    const int part = Layout::part_first(lane);
    const int copied = Layout::copied_first(lane);

    // What this lane copies, in and out: rows copy_row + i * kAtOnce, the chunk at copy_column.
    const int copy_row = (first + wr) * 16 + wb * kPasses * Layout::kAtOnce + Layout::row(lane);
    const int copy_column = column0 + wc * 8 * V + Layout::kPerChunk * Layout::chunk(lane);
    const long long stride = static_cast<long long>(16 * WR) * ldw;
    TW* const origin = w + static_cast<long long>(copy_row) * ldw + copy_column;
    // Blocks begin at different rounds, so that they do not all ask for the same lines of dz at
    // once; not where weights are written, as memory takes rows in sequence better.
    const int begin = !UPDATE && rounds > 0 ? static_cast<int>(blockIdx.y) * 5 % rounds : 0;
    const TW* next = origin + begin * stride;
    int ahead = begin;
    const auto turn = [&] {
      next += stride;
      if (++ahead == rounds) {
        ahead = 0;
        next = origin;
      }
    };
    const auto fetch_w = [&](unsigned int slot) {
#pragma unroll
      for (int i = 0; i < kPasses; ++i) {
        const int down = i * Layout::kAtOnce;
        copy_async(slot + tile + Layout::copied(copied, wb * kPasses + i),
                   next + static_cast<long long>(down) * ldw,
                   copy_row + ahead * (16 * WR) + down < end ? cols - copy_column : 0);
      }
    };
    const auto fetch_dz = [&](unsigned int slot, int round) {
      copy_slice<kBatch, 2 * WR, kThreads>(slot + kTiles, kPitch, dz, lddz, batch, end,
                                           (first + round * WR) * 16, thread);
    };

    if constexpr (!EARLY) pdl_wait();
#pragma unroll 1
    for (int d = 0; d < DEPTH - 1; ++d) {
      if (d < rounds) fetch_w(ring + d * kSlot);
      turn();
    }
    commit();
    if constexpr (EARLY) pdl_wait();
    pdl_trigger();
#pragma unroll 1
    for (int d = 0, at_round = begin; d < DEPTH - 1; ++d) {
      if (d < rounds) fetch_dz(ring + d * kSlot, at_round);
      at_round = at_round + 1 == rounds ? 0 : at_round + 1;
      commit();
    }

    const int column = column0 + wc * 8 * V + V * g;
    unsigned int xt[UPDATE ? kDeep : 1][V / 2][4];
    Step step{};
    if constexpr (UPDATE) {
      load_x(xt, t, column);
      const float rate = learning_rate(lr, rates, cursor, offset);
      step = {left_out(overflow), rate * unscale(loss_scale), rate * decay,
              rounding(STOCHASTIC, seed, stream, cursor, offset, clock)};
    }
    float sums[GRADIENT ? V / 2 : 1][2 * kOwn][4];
    if constexpr (GRADIENT) {
#pragma unroll
      for (int i = 0; i < V / 2 * 2 * kOwn * 4; ++i) {
        sums[i / (8 * kOwn)][i / 4 % (2 * kOwn)][i % 4] = 0.0f;
      }
    }

    int current = begin;  // the unit of this round, in rounds
    int slot = 0;
    const unsigned int out = ring + DEPTH * kSlot + tile;
    // The second warp of a tile takes its halves of 8 rows the other way round, as its own is the
    // second: which of them is first makes no difference to the products.
    const int flip = WB == 2 ? wb : 0;
    // Of this lane's row of 8 x 8 tiles of dz: in a slot, for the unit of this warp.
    const unsigned int dz_row = static_cast<unsigned int>(
        kTiles + (lane % 8 + lane / 16 * 8) * kPitch + (wr * 16 + (lane / 8 % 2 ^ flip) * 8) * 2);
#pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
      arrived<DEPTH - 2>();
      __syncthreads();  // this round's slot is there, and nobody reads the one before
      const int free = slot == 0 ? DEPTH - 1 : slot - 1;
      if (round + DEPTH - 1 < rounds) {
        fetch_w(ring + free * kSlot);
        fetch_dz(ring + free * kSlot, ahead);
        turn();
      }
      commit();
      const unsigned int from = ring + slot * kSlot;
      slot = slot == DEPTH - 1 ? 0 : slot + 1;
      Piece piece;
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        if (GRADIENT || r / 2 < kHalves) {
          load_shared(piece[r],
                      from + tile + Layout::part(part, r % 2) + (r / 2 ^ flip) * Layout::kHalf);
        }
      }
      if constexpr (GRADIENT) accumulate(sums, piece, from + dz_row + wb * kOwn * 16 * kPitch);
      if constexpr (UPDATE) {
        if (!step.skip) {
          const int row = (first + wr + current * WR) * 16 + 2 * t;
          TW* const target = origin + current * stride;
          unsigned int d[kDeep][4];
#pragma unroll
          for (int deep = 0; deep < kDeep; ++deep) {
            load_tiles<true>(d[deep], from + dz_row + deep * 16 * kPitch);
          }
          if (bias != nullptr && column0 + wc == 0) update_bias(d, row, end, g, flip, step);
#pragma unroll
          for (int half = 0; half < kHalves; ++half) {
            update(piece, half, d, xt, row + 8 * (half ^ flip), column, step);
#pragma unroll
            for (int odd = 0; odd < 2; ++odd) {
              store_shared(out + Layout::part(part, odd) + (half ^ flip) * Layout::kHalf,
                           piece[2 * half + odd]);
            }
          }
          __syncwarp();
#pragma unroll
          for (int i = 0; i < kPasses; ++i) {
            const int down = i * Layout::kAtOnce;
            unsigned int words[4];
            load_shared(words, out + Layout::copied(copied, wb * kPasses + i));
            const int at_row = copy_row + current * (16 * WR) + down;
            if (copy_column < cols && at_row < end) {
              store(words, target + static_cast<long long>(down) * ldw, at_row, copy_column);
            }
          }
          __syncwarp();
        }
        current = current + 1 == rounds ? 0 : current + 1;
      }
    }
    if constexpr (GRADIENT) {
      arrived<0>();
      __syncthreads();  // the ring is done with: its place takes the sums
      float* const parts = reinterpret_cast<float*>(shared);
      float* const inbox = parts + kWork / 4;
#pragma unroll
      for (int i = 0; i < 2 * kOwn; ++i) {
        float* const to = parts +
                          (wr * kBatch + (wb * 2 * kOwn + i) * 8 + 2 * t) * kSumPitch +
                          wc * 8 * V + V * g;
#pragma unroll
        for (int j = 0; j < V / 2; j += 2) {
          *reinterpret_cast<float4*>(to + 2 * j) =
              make_float4(sums[j][i][0], sums[j][i][2], sums[j + 1][i][0], sums[j + 1][i][2]);
          *reinterpret_cast<float4*>(to + 2 * j + kSumPitch) =
              make_float4(sums[j][i][1], sums[j][i][3], sums[j + 1][i][1], sums[j + 1][i][3]);
        }
      }
      struct Fetched {
        float values[4];
      };
      const auto fetch_saved = [&](int row, int down) {
        Fetched found{};
        const int left = row < batch ? cols - column0 - down : 0;
        if constexpr (!SLOPE::kIdentity) {
          load_part<4>(found.values, at(saved, ldsaved, row, column0 + down), left >= 4, left);
        }
        return found;
      };
      const auto finish = [&](int row, int down, float4 sum, const Fetched& found) {
        const int left = row < batch ? cols - column0 - down : 0;
        float values[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) values[i] = SLOPE::backward(values[i], found.values[i]);
        store_part<4>(at(dx, lddx, row, column0 + down), values, left >= 4, left);
        if (overflow != nullptr && left > 0) report_overflow(overflow, poison<T>(values));
      };
      add_up<kColumns, kBatch, WR, kThreads>(parts, inbox, splits, rank, mailbox, fetch_saved,
                                             finish);
    }
  }

 private:
  // The same element of two rows in one register.
  static __device__ __forceinline__ unsigned int pair(const unsigned int (&low)[kWords],
                                                      const unsigned int (&high)[kWords], int i) {
    if constexpr (kMaster) {
      return pack_pair<T>(__uint_as_float(low[i]), __uint_as_float(high[i]));
    } else {
      return __byte_perm(low[i / 2], high[i / 2], i % 2 == 0 ? 0x5410 : 0x7632);
    }
  }

  // x^T, the first factor of the weight gradient, for this lane's V columns.
  __device__ __forceinline__ void load_x(unsigned int (&xt)[kDeep][V / 2][4], int t,
                                         int column) const {
#pragma unroll
    for (int deep = 0; deep < kDeep; ++deep) {
      unsigned int piece[4][V / 2];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int row = deep * 16 + 2 * t + r % 2 + r / 2 * 8;
#pragma unroll
        for (int j = 0; j < V / 2; ++j) piece[r][j] = 0u;
        if (column < cols && row < batch) load_words(piece[r], at(x, ldx, row, column));
      }
#pragma unroll
      for (int i = 0; i < V / 2; ++i) {
        xt[deep][i][0] = __byte_perm(piece[0][i], piece[1][i], 0x5410);
        xt[deep][i][1] = __byte_perm(piece[0][i], piece[1][i], 0x7632);
        xt[deep][i][2] = __byte_perm(piece[2][i], piece[3][i], 0x5410);
        xt[deep][i][3] = __byte_perm(piece[2][i], piece[3][i], 0x7632);
      }
    }
  }

  // sums += w^T dz^T over the tile's 16 rows and this warp's part of the batch.
  static __device__ __forceinline__ void accumulate(float (&sums)[V / 2][2 * kOwn][4],
                                                    const Piece& piece, unsigned int dz_tiles) {
    unsigned int wt[V / 2][4];
#pragma unroll
    for (int i = 0; i < V / 2; ++i) {
      wt[i][0] = pair(piece[0], piece[1], 2 * i);
      wt[i][1] = pair(piece[0], piece[1], 2 * i + 1);
      wt[i][2] = pair(piece[2], piece[3], 2 * i);
      wt[i][3] = pair(piece[2], piece[3], 2 * i + 1);
    }
#pragma unroll
    for (int deep = 0; deep < kOwn; ++deep) {
      unsigned int d[4];
      load_tiles<false>(d, dz_tiles + deep * 16 * kPitch);
#pragma unroll
      for (int i = 0; i < V / 2; ++i) {
        multiply<T>(sums[i][2 * deep], wt[i], d[0], d[1]);
        multiply<T>(sums[i][2 * deep + 1], wt[i], d[2], d[3]);
      }
    }
  }

  // New weights in place of old ones, for this lane's rows `row` and `row` + 1: the tensor cores
  // leave each gradient with the lane that has its weight.
  __device__ __forceinline__ void update(Piece& piece, int half, const unsigned int (&d)[kDeep][4],
                                         const unsigned int (&xt)[kDeep][V / 2][4], int row,
                                         int column, const Step& step) const {
    float product[V / 2][4];
#pragma unroll
    for (int i = 0; i < V / 2; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) product[i][j] = 0.0f;
#pragma unroll
      for (int deep = 0; deep < kDeep; ++deep) {
        multiply<T>(product[i], xt[deep][i], d[deep][half], d[deep][2 + half]);
      }
    }
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      unsigned int(&words)[kWords] = piece[2 * half + odd];
      float values[V];
#pragma unroll
      for (int i = 0; i < V; ++i) {
        float old;
        if constexpr (kMaster) {
          old = __uint_as_float(words[i]);
        } else {
          const float2 both = unpack_pair<T>(words[i / 2]);
          old = i % 2 == 0 ? both.x : both.y;
        }
        values[i] = fmaf(-step.factor, product[i / 2][2 * (i % 2) + odd],
                         DECAY ? fmaf(-step.shrink, old, old) : old);
      }
      round(words, values, row + odd, column, step.how);
    }
  }

  // bias -= rate * column sums of dz, by a product with ones. Every element has one writer, so that
  // an addition in memory is as reproducible as a store, and nobody waits for the old value.
  __device__ __forceinline__ void update_bias(const unsigned int (&d)[kDeep][4], int row, int end,
                                              int g, int flip, const Step& step) const {
    const unsigned int pair_of_ones = g == 0 ? pack_pair<T>(1.0f, 1.0f) : 0u;
    const unsigned int ones[4] = {pair_of_ones, 0u, pair_of_ones, 0u};
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int deep = 0; deep < kDeep; ++deep) {
        multiply<T>(sum, ones, d[deep][half], d[deep][2 + half]);
      }
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const int at_row = row + 8 * (half ^ flip) + odd;
        if (g == 0 && at_row < end) {
          const float shrink = DECAY ? step.shrink * bias[at_row] : 0.0f;
          atomicAdd(bias + at_row, -(step.factor * sum[odd] + shrink));
        }
      }
    }
  }

  __device__ __forceinline__ void round(unsigned int (&words)[kWords], const float (&values)[V],
                                        int row, int column, const Rounding& how) const {
    if constexpr (kMaster) {
#pragma unroll
      for (int i = 0; i < V; ++i) words[i] = __float_as_uint(values[i]);
    } else if constexpr (STOCHASTIC) {
      const unsigned int element =
          static_cast<unsigned int>(row) * static_cast<unsigned int>(cols) +
          static_cast<unsigned int>(column);
      if constexpr (RAGGED || V < 8) {
        round_by_chance<V>(words, values, rounding_window<V>(how, element));
      } else {
        round_by_chance<V>(words, values,
                           rounding_group(how.seed, how.stream, how.step, element / 8u));
      }
    } else {
#pragma unroll
      for (int i = 0; i < V / 2; ++i) words[i] = pack_pair<T>(values[2 * i], values[2 * i + 1]);
    }
  }

  // One chunk of new weights, and its copy; padding is left alone.
  __device__ __forceinline__ void store(const unsigned int (&words)[4], TW* to, int row,
                                        int column) const {
    constexpr int N = Layout::kPerChunk;
    if (!RAGGED || column + N <= cols) {
      store_words(to, words);
      if constexpr (kMaster) {
        if (copy != nullptr) {
          const unsigned int narrow[2] = {
              pack_pair<T>(__uint_as_float(words[0]), __uint_as_float(words[1])),
              pack_pair<T>(__uint_as_float(words[2]), __uint_as_float(words[3]))};
          store_words(at(copy, ldcopy, row, column), narrow);
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (column + i < cols) {
          if constexpr (kMaster) {
            to[i] = __uint_as_float(words[i]);
            if (copy != nullptr) *at(copy, ldcopy, row, column + i) = from_float<T>(to[i]);
          } else {
            to[i] = T{static_cast<unsigned short>(words[i / 2] >> (16 * (i % 2)))};
          }
        }
      }
    }
  }
};

}  // namespace skinny
