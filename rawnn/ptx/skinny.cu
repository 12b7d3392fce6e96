// skinny_nt, skinny_nn, skinny_update: a layer's products with a small batch (up to 128 rows),
// where the weights stream from memory and everything else is small.
//
//   skinny_nt: c[m, n] = act(a[m, k] b[n, k]^T + bias[n]); b are the weights, m is the batch
//   skinny_nn: c[m, n] = (a[m, k] b[k, n]) * slope(saved[m, n]); likewise
//   skinny_update: w[rows, cols] -= lr * (dz^T x / loss_scale + decay * w), copy = round(w),
//       bias -= lr * (column sums of dz / loss_scale + decay * bias); dz [batch, rows],
//       x [batch, cols]
//
// T: float16 or bfloat16; sums in float; weights to update: T, or float with a copy in T.
// STOCHASTIC: T is bfloat16 and is rounded by chance (updates.cuh). DECAY: decay is not 0. RAGGED:
// a row of weights is not whole 16-byte pieces. TILES: 8 rows of the batch each. EARLY: weights are
// asked for ahead of pdl_wait, which is right only where no kernel directly before writes them.
// Rows must begin at multiples of 16 bytes; bias is float; overflow, bias, copy, rates, cursor,
// clock and loss_scale may be null. Sums have one order: results repeat bit for bit.
//
// Launch: grid (splits, ceil(long side / M)), the long side being n of nt and nn, cols of the
// others; blocks of WM * WK or WC * WR * WB warps; `share` units a block of what the splits divide
// (64 columns of the weights for nt, 16 rows for the others). M is 16 * MT * WM for nt, 8 * V * WC
// for the others. splits is, except for an update, a power of two and the cluster's size (more than
// 1: sm_90), with M >= 4 * splits. Shared memory: kWork bytes, in a cluster 32 * TILES * M more.
// Limit: memory traffic; of small layers, the latency of a launch and of the exchange in a cluster.
//
// Measured on an H200 while this was made: batch 32, bfloat16, weights not in the L2 cache, 16
// launches in a graph with programmatic edges; us for square layers of 1024, 2048, 4096, 8192:
//   nt 3.1, 6.1, 14.4, 44.7 (3.0 TB/s); nn 3.7, 6.6, 14.8, 43.5 (3.1 TB/s); update of bfloat16
//   weights by chance 21.5, 76.7 at 4096 and 8192 (3.5 TB/s), of float ones 47.4, 180.6 (3.7 TB/s).
// What mattered:
//   - Loads into registers share a warp's few scoreboards: waiting for the oldest of four waited
//     for the newest, too. nt at 4096 in 64 blocks: 45 us; with asynchronous copies, waited for in
//     order, 25.
//   - Asynchronous copies coalesce within 8 lanes only. 8 lanes in whole lines, read back through a
//     permuted tile, instead of in 2 rows: nt at 8192 from 61 to 50 us.
//   - One block a multiprocessor: nt at 8192 takes 45 us in 128 blocks, 53 in 256.
//   - Blocks that begin at different places of a: nt at 8192 from 48 to 45 us. Updates lose by it.
//   - A bulk copy takes its warp about 64 cycles: rows of 128 bytes stream at 0.9 TB/s.
#include "activations.cuh"
#include "common.cuh"
#include "pdl.cuh"
#include "skinny_backward.cuh"
#include "skinny_parts.cuh"

template <typename T, typename TC, typename ACTIVATION, int TILES, int MT, int WM, int WK,
          int DEPTH, int RESIDENT, bool EARLY>
__global__ void __launch_bounds__(32 * WM * WK, RESIDENT)
    skinny_nt(const T* __restrict__ a, int lda, const T* __restrict__ b, int ldb,
              const float* __restrict__ bias, TC* __restrict__ c, int ldc, int* overflow, int m,
              int n, int k, int share) {
  using namespace skinny;
  constexpr int kBatch = 8 * TILES;
  constexpr int kRows = 16 * MT * WM;
  constexpr int kThreads = 32 * WM * WK;
  constexpr int kWide = 64;  // columns of a unit: 128 bytes
  constexpr int kTile = MT * 16 * 128;
  constexpr int kTiles = WM * WK * kTile;
  constexpr int kPitch = WK * 128 + 64;  // bytes of a row of `a` in a slot
  constexpr int kSlot = kTiles + kBatch * kPitch;
  constexpr int kSumPitch = kRows + 4;
  constexpr int kSums = WK * kBatch * kSumPitch * 4;
  constexpr int kWork = DEPTH * kSlot > kSums ? DEPTH * kSlot : kSums;
  extern __shared__ uint4 shared[];
  __shared__ unsigned long long counter;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31;
  const int warp = thread / 32;
  const int wm = warp % WM;
  const int wk = warp / WM;
  const int g = lane / 4;
  const int t = lane % 4;
  const int splits = static_cast<int>(gridDim.x);
  const int rank = static_cast<int>(blockIdx.x);
  const int row0 = static_cast<int>(blockIdx.y) * kRows;
  Mailbox mailbox;
  if (splits > 1) mailbox.open(&counter, kBatch * kRows * 4);

  const int first = rank * share;
  const int count = max(min(share, (k + kWide - 1) / kWide - first), 0);
  const int rounds = (count + WK - 1) / WK;
  const int end = min((first + count) * kWide, k);
  const unsigned int ring = shared_address(shared);
  const unsigned int tile = static_cast<unsigned int>(warp * kTile);

  // A tile is copied a line of 128 bytes by 8 lanes, and read as fragments: lane (g, t) takes 16
  // bytes of row g, at column 8t of either half. That gives it the inner indices 8t .. 8t + 7
  // instead of 2t, 2t + 1, 2t + 8, 2t + 9 of two products; so do the fragments of a. Chunks of odd
  // rows are permuted, so that neither way meets a bank twice.
  const int copied = lane / 8 * 128 + ((lane % 8) ^ (lane / 8 % 2 * 4)) * 16;
  const int part = g * 128 + (t ^ (g % 2 * 4)) * 16;
  const int copy_row = row0 + wm * MT * 16 + lane / 8;
  int copy_column = (first + wk) * kWide + 8 * (lane % 8);
  const T* next = b + static_cast<long long>(copy_row) * ldb + copy_column;
  // Blocks begin at different rounds, so that they do not all ask for the same lines of a at once.
  int ahead = rounds > 0 ? static_cast<int>(blockIdx.y) * 5 % rounds : 0;
  next += ahead * (WK * kWide);
  copy_column += ahead * (WK * kWide);
  const auto turn = [&] {
    next += WK * kWide;
    copy_column += WK * kWide;
    if (++ahead == rounds) {
      ahead = 0;
      next -= rounds * (WK * kWide);
      copy_column -= rounds * (WK * kWide);
    }
  };
  const auto fetch_b = [&](unsigned int slot) {
#pragma unroll
    for (int i = 0; i < 4 * MT; ++i) {
      copy_async(slot + tile + copied + i * 512, next + static_cast<long long>(4 * i) * ldb,
                 copy_row + 4 * i < n ? end - copy_column : 0);
    }
  };
  const auto fetch_a = [&](unsigned int slot, int round) {
    copy_slice<kBatch, 8 * WK, kThreads>(slot + kTiles, kPitch, a, lda, m, end,
                                         (first + round * WK) * kWide, thread);
  };

  if constexpr (!EARLY) pdl_wait();
  int ahead_a = ahead;
#pragma unroll 1
  for (int d = 0; d < DEPTH - 1; ++d) {
    if (d < rounds) fetch_b(ring + d * kSlot);
    turn();
  }
  commit();
  if constexpr (EARLY) pdl_wait();
  pdl_trigger();
#pragma unroll 1
  for (int d = 0; d < DEPTH - 1; ++d) {
    if (d < rounds) fetch_a(ring + d * kSlot, ahead_a);
    ahead_a = ahead_a + 1 == rounds ? 0 : ahead_a + 1;
    commit();
  }

  float sums[MT][TILES][4];
#pragma unroll
  for (int i = 0; i < MT * TILES * 4; ++i) sums[i / (4 * TILES)][i / 4 % TILES][i % 4] = 0.0f;

  int slot = 0;
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {
    arrived<DEPTH - 2>();
    __syncthreads();  // this round's slot is there, and nobody reads the one before
    const int free = slot == 0 ? DEPTH - 1 : slot - 1;
    if (round + DEPTH - 1 < rounds) {
      fetch_b(ring + free * kSlot);
      fetch_a(ring + free * kSlot, ahead);
      turn();
    }
    commit();
    const unsigned int from = ring + slot * kSlot;
    const unsigned int x_at = from + kTiles + wk * 128 + 16 * t + g * kPitch;
    slot = slot == DEPTH - 1 ? 0 : slot + 1;
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      unsigned int w[2 * MT][4];
#pragma unroll
      for (int i = 0; i < 2 * MT; ++i) {
        load_shared(w[i], from + tile + (part ^ (u * 64)) + i * 1024);
      }
#pragma unroll
      for (int j = 0; j < TILES; ++j) {
        unsigned int x[4];
        load_shared(x, x_at + j * 8 * kPitch + u * 64);
#pragma unroll
        for (int i = 0; i < MT; ++i) {
          const unsigned int low[4] = {w[2 * i][0], w[2 * i + 1][0], w[2 * i][1], w[2 * i + 1][1]};
          const unsigned int high[4] = {w[2 * i][2], w[2 * i + 1][2], w[2 * i][3], w[2 * i + 1][3]};
          multiply<T>(sums[i][j], low, x[0], x[1]);
          multiply<T>(sums[i][j], high, x[2], x[3]);
        }
      }
    }
  }

  arrived<0>();
  __syncthreads();  // the ring is done with: its place takes the sums
  float* const parts = reinterpret_cast<float*>(shared);
  float* const inbox = parts + kWork / 4;
#pragma unroll
  for (int i = 0; i < MT; ++i) {
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
      float* const to = parts + (wk * kBatch + j * 8 + 2 * t) * kSumPitch + (wm * MT + i) * 16 + g;
      to[0] = sums[i][j][0];
      to[kSumPitch] = sums[i][j][1];
      to[8] = sums[i][j][2];
      to[kSumPitch + 8] = sums[i][j][3];
    }
  }
  struct Fetched {
    float values[4];
  };
  const auto fetch_bias = [&](int, int column) {
    Fetched found{};
    const int there = n - row0 - column;
    if (bias != nullptr) load_part<4>(found.values, bias + row0 + column, there >= 4, there);
    return found;
  };
  const auto finish = [&](int row, int column, float4 sum, const Fetched& found) {
    const int there = row < m ? n - row0 - column : 0;
    float values[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = ACTIVATION::apply(values[i] + found.values[i]);
    store_part<4>(at(c, ldc, row, row0 + column), values, there >= 4, there);
    if (overflow != nullptr && there > 0) report_overflow(overflow, poison<TC>(values));
  };
  add_up<kRows, kBatch, WK, kThreads>(parts, inbox, splits, rank, mailbox, fetch_bias, finish);
}

template <typename T, typename SLOPE, bool RAGGED, int TILES, int V, int WC, int WR, int WB,
          int DEPTH, int RESIDENT, bool EARLY>
__global__ void __launch_bounds__(32 * WC * WR * WB, RESIDENT)
    skinny_nn(const T* __restrict__ a, int lda, const T* __restrict__ b, int ldb,
              const T* __restrict__ saved, int ldsaved, T* __restrict__ c, int ldc, int* overflow,
              int m, int n, int k, int share) {
  skinny::Backward<T, T, SLOPE, true, false, false, false, RAGGED, TILES, V, WC, WR, WB, DEPTH,
                   EARLY>
      work{};
  work.dz = a;
  work.lddz = lda;
  work.w = const_cast<T*>(b);  // read only
  work.ldw = ldb;
  work.saved = saved;
  work.ldsaved = ldsaved;
  work.dx = c;
  work.lddx = ldc;
  work.overflow = overflow;
  work.batch = m;
  work.rows = k;
  work.cols = n;
  work.share = share;
  work.run();
}

template <typename T, typename TW, bool STOCHASTIC, bool DECAY, bool RAGGED, int TILES, int V,
          int WC, int WR, int WB, int DEPTH, int RESIDENT, bool EARLY>
__global__ void __launch_bounds__(32 * WC * WR * WB, RESIDENT)
    skinny_update(const T* __restrict__ dz, int lddz, const T* __restrict__ x, int ldx,
                  TW* __restrict__ w, int ldw, float* __restrict__ bias, T* __restrict__ copy,
                  int ldcopy, const float* __restrict__ rates, const int* __restrict__ cursor,
                  const int* __restrict__ clock, const float* __restrict__ loss_scale,
                  const int* overflow, int batch, int rows, int cols, float lr, float decay, int offset,
                  unsigned long long seed, unsigned int stream, int share) {
  skinny::Backward<T, TW, None, false, true, STOCHASTIC, DECAY, RAGGED, TILES, V, WC, WR, WB, DEPTH,
                   EARLY>
      work{dz,    lddz,   w,      ldw,   copy,       ldcopy, x,     ldx,    bias,  nullptr,
           0,     nullptr, 0,     const_cast<int*>(overflow), batch, rows, cols, share, rates,
           cursor, clock, loss_scale, lr, decay,     offset, seed,  stream};
  work.run();
}
