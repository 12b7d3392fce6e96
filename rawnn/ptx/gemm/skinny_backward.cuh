// The backward pass of a layer over one reading of its weights: the input gradient, the update, or
// both. Used by skinny.cu.
#pragma once
#include "elementwise/activations.cuh"
#include "primitives/common.cuh"
#include "primitives/pdl.cuh"
#include "gemm/skinny_parts.cuh"
#include "gemm/skinny_weights.cuh"
#include "optimizers/updates.cuh"

namespace skinny {

// A block's work: columns 64 * blockIdx.y and up of w [rows, cols], and of its rows `share` rounds from
// share * blockIdx.x on. A round is kRows rows. Tiles of weights, with the matching ones of dz, come
// through a ring of `depth` slots, and new weights are stored from where the old ones were. Each warp
// of a round has 16 rows of 8 * V columns, which it reads as fragments of their transpose: lane (g, t) =
// (lane / 4, lane % 4) holds V columns of the rows 2t, 2t + 1, 2t + 8 and 2t + 9. The permuted chunks of
// a tile avoid bank conflicts.
template <typename T, typename TW, typename SLOPE, bool GRADIENT, bool UPDATE, bool STOCHASTIC,
          bool DECAY, bool RAGGED, int TILES, int V>
struct Backward {
  static constexpr bool kMaster = sizeof(TW) == 4;
  static constexpr int kColumns = 64;
  static constexpr int kWarps = 8;
  static constexpr int kThreads = 32 * (kWarps + 1);  // one warp issues the copies of tiles
  static constexpr int kAcross = kColumns / (8 * V);  // warps side by side
  static constexpr int kDown = kWarps / kAcross;
  static constexpr int kRows = 16 * kDown;
  static constexpr int kBatch = 8 * TILES;
  static constexpr int kDeep = TILES / 2;  // products of 16 rows of the batch
  static constexpr int kTile = kRows * 128;
  static constexpr int kTiles = kMaster ? 2 : 1;  // tiles of weights side by side
  static constexpr int kCopy = kTiles * kTile;    // offset in a slot of the new copy of masters
  static constexpr int kDz = kCopy + (kMaster && UPDATE ? kTile : 0);
  static constexpr int kDzTile = kBatch * 128;    // 64 rows of the weights
  static constexpr int kXTile = kBatch * 128;
  static constexpr int kDzTiles = kRows / 64;
  static constexpr int kSlot = kDz + kDzTiles * kDzTile;
  static constexpr int kLoaded = kTiles * kTile + kDzTiles * kDzTile;  // bytes loaded in a round
  static constexpr int kSumPitch = kColumns + 4;
  static constexpr int kLag = UPDATE ? 2 : 0;  // rounds whose stores may be in flight
  static_assert(kMaster ? V == 4 : V == 4 || V == 8, "8 or 16 bytes of 16 bits, 16 of floats");

  float* bias;
  T* copy;
  T* dx;
  int lddx;
  const T* saved;
  int ldsaved;
  int* overflow;  // read by an update, written by an input gradient
  const float* rates;
  const int* cursor;
  const int* clock;
  const float* loss_scale;
  int batch, rows, cols;
  float lr, decay;
  int offset;
  unsigned long long seed;
  unsigned int stream;
  int share, depth;

  using Ring = bulk::Ring;
  using Weights = LaneWeights<T, TW, STOCHASTIC, DECAY, RAGGED, TILES, V>;
  using Piece = typename Weights::Piece;
  using Step = typename Weights::Step;

  __device__ __forceinline__ void run(const TensorMap& w_map, const TensorMap& dz_map,
                                      const TensorMap& copy_map, const TensorMap& x_map) const {
    unsigned char* const shared = ptx::dynamic_shared();
    __shared__ unsigned long long counter;
    __shared__ unsigned long long barriers[2 * kDeepestRing];
    __shared__ unsigned long long x_barrier;
    const int thread = static_cast<int>(threadIdx.x);
    const int lane = thread & 31;
    const int warp = thread / 32;
    const int splits = static_cast<int>(gridDim.x);
    const int rank = static_cast<int>(blockIdx.x);
    const int column0 = static_cast<int>(blockIdx.y) * kColumns;
    const int first = rank * share;
    const int rounds = max(min(share, (rows + kRows - 1) / kRows - first), 0);
    const Ring ring{(shared_address(shared) + 1023u) & ~1023u, shared_address(barriers), kSlot,
                    depth};
    Mailbox mailbox;
    if constexpr (GRADIENT) {
      if (splits > 1) mailbox.open(&counter, kBatch * kColumns * 4);
    }

    const bool mover = thread == 32 * kWarps;
    const auto fetch_w = [&](const Ring::Turn& turn, int round) {
      ptx::arrive_expecting(ring.full(turn), kLoaded);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        ptx::load_tile(ring.at(turn) + i * kTile, w_map, (first + round) * kRows,
                   column0 + i * (kColumns / kTiles), ring.full(turn));
      }
    };
    const auto fetch_dz = [&](const Ring::Turn& turn, int round) {
#pragma unroll
      for (int i = 0; i < kDzTiles; ++i) {
        ptx::load_tile(ring.at(turn) + kDz + i * kDzTile, dz_map, 0,
                   (first + round) * kRows + 64 * i, ring.full(turn));
      }
    };
    const int ahead = min(rounds, depth);
    const unsigned int x_tile = ring.slots + static_cast<unsigned int>(depth * kSlot);
    if (mover) {
      ring.open(kWarps);
      if constexpr (UPDATE) {  // before all weights: behind them it would arrive 5 us later
        ptx::init_barrier(shared_address(&x_barrier), 1);
        ptx::publish_barriers();
        ptx::arrive_expecting(shared_address(&x_barrier), kXTile);
        ptx::load_tile(x_tile, x_map, 0, column0, shared_address(&x_barrier));
      }
      Ring::Turn turn;
      for (int round = 0; round < ahead; ++round, ring.next(turn)) fetch_w(turn, round);
    }
    pdl_wait();
    pdl_trigger();
    if (mover) {
      Ring::Turn turn;
      for (int round = 0; round < ahead; ++round, ring.next(turn)) fetch_dz(turn, round);
    }
    __syncwarp();
    __syncthreads();  // the ring's barriers are initialized

    const bool skip = UPDATE && left_out(overflow);
    float sums[GRADIENT ? V / 2 : 1][2 * kDeep][4];
    if (warp < kWarps) {
      compute(ring, sums, x_tile, shared_address(&x_barrier), warp, lane, first, rounds, column0,
              skip);
    } else if (mover) {
      Ring::Turn turn, free;
      for (int round = 0; round < rounds; ++round, ring.next(turn)) {
        ptx::wait_for(ring.done(turn), turn.parity);
        if (UPDATE && !skip) {
          ptx::fence_proxy_async();
          const int row = (first + round) * kRows;
#pragma unroll
          for (int i = 0; i < kTiles; ++i) {
            ptx::store_tile(w_map, row, column0 + i * (kColumns / kTiles), ring.at(turn) + i * kTile);
          }
          if (kMaster && copy != nullptr) {
            ptx::store_tile(copy_map, row, column0, ring.at(turn) + kCopy);
          }
          ptx::commit_stores();
        }
        const int next = round - kLag + depth;
        if (round >= kLag && next < rounds) {
          if constexpr (UPDATE) ptx::wait_for_reads<kLag>();
          fetch_w(free, next);
          fetch_dz(free, next);
          ring.next(free);
        }
      }
      if constexpr (UPDATE) ptx::wait_for_reads<0>();
    }
    __syncwarp();
    if constexpr (GRADIENT) {
      __syncthreads();  // nobody uses the ring any more: the sums overwrite it
      float* const parts = reinterpret_cast<float*>(shared);
      if (warp < kWarps) put_sums(parts, sums, warp, lane);
      finish(parts, mailbox, splits, rank, column0);
    }
    if constexpr (UPDATE) {
      if (mover) ptx::wait_for_stores<0>();
    }
  }

 private:
  __device__ __forceinline__ void compute(const Ring& ring,
                                          float (&sums)[GRADIENT ? V / 2 : 1][2 * kDeep][4],
                                          unsigned int x_tile, unsigned int x_barrier, int warp,
                                          int lane, int first, int rounds, int column0,
                                          bool skip) const {
    const int g = lane / 4;
    const int t = lane % 4;
    const int across = warp % kAcross;
    const int unit = warp / kAcross;  // index of its 16 rows
    const int column = column0 + across * 8 * V + V * g;
    unsigned int xt[UPDATE ? kDeep : 1][V / 2][4];
    Step step{};
    if constexpr (UPDATE) {
      ptx::wait_for(x_barrier, 0);
      Weights::load_x(xt, x_tile, g, t, across);
      const float rate = learning_rate(lr, rates, cursor, offset);
      step = {skip, rate * unscale(loss_scale), rate * decay,
              rounding(STOCHASTIC, seed, stream, cursor, offset, clock)};
    }
    if constexpr (GRADIENT) {
#pragma unroll
      for (int i = 0; i < V / 2 * 2 * kDeep * 4; ++i) {
        sums[i / (8 * kDeep)][i / 4 % (2 * kDeep)][i % 4] = 0.0f;
      }
    }
    // Offsets in a slot of this lane's part of its rows 2t and 2t + 1, and of a row of an 8 x 8 dz tile.
    const int chunk = kMaster || V == 8 ? g : across * 4 + g / 2;
    const int tile = unit * 16 * 128 + (kMaster ? across * kTile : 0);
    const int part[2] = {tile + bulk::place(2 * t, chunk) + (V * sizeof(TW) == 8 ? g % 2 * 8 : 0),
                         tile + bulk::place(2 * t + 1, chunk) +
                             (V * sizeof(TW) == 8 ? g % 2 * 8 : 0)};
    const int narrow = unit * 16 * 128 + g % 2 * 8;  // in a row of the copy
    const int dz_row = kDz + unit / 4 * kDzTile +
                       bulk::place(lane % 8 + lane / 16 * 8, unit % 4 * 2 + lane / 8 % 2);
    const int dz_column = kDz + unit / 4 * kDzTile + bulk::place(lane % kBatch, unit % 4 * 2);
    Ring::Turn turn;
#pragma unroll 1
    for (int round = 0; round < rounds; ++round, ring.next(turn)) {
      ptx::wait_for(ring.full(turn), turn.parity);
      const unsigned int from = ring.at(turn);
      Piece piece;
#pragma unroll
      for (int r = 0; r < 4; ++r) load_shared(piece[r], from + part[r % 2] + r / 2 * 1024);
      if constexpr (GRADIENT) Weights::accumulate(sums, piece, from + dz_row);
      if constexpr (UPDATE) {
        if (!step.skip) {
          const int row = (first + round) * kRows + unit * 16 + 2 * t;
          Weights::update(piece, from + dz_column, xt, row, column, cols, step);
#pragma unroll
          for (int r = 0; r < 4; ++r) {
            store_shared(from + part[r % 2] + r / 2 * 1024, piece[r]);
            if constexpr (kMaster) {
              const unsigned int both[2] = {
                  pack_pair<T>(__uint_as_float(piece[r][0]), __uint_as_float(piece[r][1])),
                  pack_pair<T>(__uint_as_float(piece[r][2]), __uint_as_float(piece[r][3]))};
              store_shared(from + kCopy + narrow + r / 2 * 1024 +
                               bulk::place(2 * t + r % 2, across * 4 + g / 2),
                           both);
            }
          }
          if (bias != nullptr && column0 + across == 0) {
            Weights::update_bias(bias, rows, from + dz_column, row, g, step);
          }
        }
      }
      __syncwarp();
      if (lane == 0) ptx::arrive(ring.done(turn));
    }
  }

  // Writes a warp's sums; all warps' are [kDown][kBatch][kSumPitch].
  static __device__ __forceinline__ void put_sums(float* parts, const float (&sums)[V / 2][2 * kDeep][4],
                                                  int warp, int lane) {
    const int g = lane / 4;
    const int t = lane % 4;
#pragma unroll
    for (int i = 0; i < 2 * kDeep; ++i) {
      float* const to = parts + (warp / kAcross * kBatch + i * 8 + 2 * t) * kSumPitch +
                        warp % kAcross * 8 * V + V * g;
#pragma unroll
      for (int j = 0; j < V / 2; j += 2) {
        *reinterpret_cast<float4*>(to + 2 * j) =
            make_float4(sums[j][i][0], sums[j][i][2], sums[j + 1][i][0], sums[j + 1][i][2]);
        *reinterpret_cast<float4*>(to + 2 * j + kSumPitch) =
            make_float4(sums[j][i][1], sums[j][i][3], sums[j + 1][i][1], sums[j + 1][i][3]);
      }
    }
  }

  // The input gradient from the sums of all warps and of all blocks of the cluster.
  __device__ __forceinline__ void finish(float* parts, const Mailbox& mailbox, int splits,
                                         int rank, int column0) const {
    float* const inbox = parts + kWork(depth) / 4;
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
    const auto store = [&](int row, int down, float4 sum, const Fetched& found) {
      const int left = row < batch ? cols - column0 - down : 0;
      float values[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] = SLOPE::backward(values[i], found.values[i]);
      store_part<4>(at(dx, lddx, row, column0 + down), values, left >= 4, left);
      if (!UPDATE && overflow != nullptr && left > 0) report_overflow(overflow, poison<T>(values));
    };
    add_up<kColumns, kBatch, kDown, kThreads>(parts, inbox, splits, rank, mailbox, fetch_saved,
                                              store);
  }

  // Bytes from the start of shared memory that only this block writes.
  static __device__ __forceinline__ int kWork(int depth) {
    constexpr int sums = GRADIENT ? kDown * kBatch * kSumPitch * 4 : 0;
    return max(depth * kSlot + 1024 + (UPDATE ? kXTile : 0), sums);
  }
};

}  // namespace skinny
