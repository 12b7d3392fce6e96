// skinny_nt, skinny_nn, skinny_update, skinny_backward: a layer's kernels for a small batch (up to 64
// rows), where the weights stream from memory and everything else is small.
//
//   skinny_nt: c[m, n] = act(a[m, k] b[n, k]^T + bias[n]); b are the weights, m is the batch
//   skinny_nn: c[m, n] = (a[m, k] b[k, n]) * slope(saved[m, n]); likewise
//   skinny_update: w[rows, cols] -= lr * (dz^T x / loss_scale + decay * w), copy = round(w),
//       bias -= lr * (column sums of dz / loss_scale + decay * bias); dz [batch, rows],
//       x [batch, cols]
//   skinny_backward: dx[batch, cols] = (dz w) * slope(x), and skinny_update, from one reading of w;
//       16-bit weights are multiplied as they are, masters are rounded first
//
// T: float16 or bfloat16; sums in float; weights to update: T, or float with a copy in T.
// STOCHASTIC: T is bfloat16 and is rounded stochastically (updates.cuh); RAGGED: a row is then no
// multiple of 8. DECAY: decay is not 0. TILES: 8 rows of the batch each. V: columns of a lane, 4 or 8,
// which follows from the weights' type and TILES. Weights are requested before pdl_wait, which is
// correct only if no kernel directly before writes them. Rows must begin at multiples of 16 bytes; bias
// is float; overflow, bias, copy, rates, cursor, clock and loss_scale may be null. Each operand that the
// copy engine moves has a map (bulk.cuh). Sums have a fixed order, so results repeat bit for bit.
//
// Launch: grid (splits, ceil(long side / M)), the long side being n for nt and nn, cols for the others,
// M 16 * WM for nt, 64 for the others; blocks of WM * WK + 1 (8 + 1) warps. The splits divide the
// rounds, `share` rounds for each block. A round is 64 * WK columns of the weights for nt; for the others
// it is 64 rows if V is 4, and 128 if it is 8. splits is, except for skinny_update, a power of two and
// the cluster's size. Shared memory: a ring of `depth` slots (at least 3, or all rounds), 1,024 bytes to
// align it, 1,024 * TILES for x if weights are updated, and in a cluster 32 * TILES * M more.
// Limit: memory traffic; with STOCHASTIC the integer work of the random bits (about 250 of 540
// instructions for 16 x 64 weights); for small layers the latency of a launch and of the exchange in
// a cluster.
//
// What the design follows from (timings are in docs/notes/mma.md):
//   - The copy engine moves tiles of 8 to 16 KB into a ring that fills shared memory, so there is one
//     block on a multiprocessor. Asynchronous copies by every thread are slower.
//   - All clusters must be resident at once: one more than fit doubles the time.
//   - x is requested before the weights: behind 200 KB of them it would arrive 11,000 cycles later.
#include "elementwise/activations.cuh"
#include "primitives/common.cuh"
#include "primitives/pdl.cuh"
#include "gemm/skinny_backward.cuh"
#include "gemm/skinny_parts.cuh"

template <typename T, typename TC, typename ACTIVATION, int TILES, int WM, int WK>
__global__ void __launch_bounds__(32 * (WM * WK + 1), 1)
    skinny_nt(const T* __restrict__ a, int lda, const T* __restrict__ b, int ldb,
              const float* __restrict__ bias, TC* __restrict__ c, int ldc, int* overflow, int m,
              int n, int k, int share, int depth, const __grid_constant__ TensorMap a_map,
              const __grid_constant__ TensorMap b_map) {
  using namespace skinny;
  constexpr int kBatch = 8 * TILES;
  constexpr int kRows = 16 * WM;
  constexpr int kWarps = WM * WK;
  constexpr int kThreads = 32 * (kWarps + 1);  // one warp issues the copies of tiles
  constexpr int kWide = 64 * WK;               // columns in a round
  constexpr int kTile = kRows * 128;
  constexpr int kATile = kBatch * 128;
  constexpr int kSlot = WK * (kTile + kATile);
  constexpr int kSumPitch = kRows + 4;
  constexpr int kSums = WK * kBatch * kSumPitch * 4;
  unsigned char* const shared = ptx::dynamic_shared();
  __shared__ unsigned long long counter;
  __shared__ unsigned long long barriers[2 * kDeepestRing];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31;
  const int warp = thread / 32;
  const int splits = static_cast<int>(gridDim.x);
  const int rank = static_cast<int>(blockIdx.x);
  const int row0 = static_cast<int>(blockIdx.y) * kRows;
  const int first = rank * share;
  const int rounds = max(min(share, (k + kWide - 1) / kWide - first), 0);
  const bulk::Ring ring{(shared_address(shared) + 1023u) & ~1023u, shared_address(barriers), kSlot,
                        depth};
  Mailbox mailbox;
  if (splits > 1) mailbox.open(&counter, kBatch * kRows * 4);

  const bool mover = thread == 32 * kWarps;
  const auto fetch_b = [&](const bulk::Ring::Turn& turn, int round) {
    ptx::arrive_expecting(ring.full(turn), kSlot);
#pragma unroll
    for (int i = 0; i < WK; ++i) {
      ptx::load_tile(ring.at(turn) + i * kTile, b_map, row0, (first + round) * kWide + 64 * i,
                 ring.full(turn));
    }
  };
  const auto fetch_a = [&](const bulk::Ring::Turn& turn, int round) {
#pragma unroll
    for (int i = 0; i < WK; ++i) {
      ptx::load_tile(ring.at(turn) + WK * kTile + i * kATile, a_map, 0,
                 (first + round) * kWide + 64 * i, ring.full(turn));
    }
  };
  const int ahead = min(rounds, depth);
  if (mover) {
    ring.open(kWarps);
    bulk::Ring::Turn turn;
    for (int round = 0; round < ahead; ++round, ring.next(turn)) fetch_b(turn, round);
  }
  pdl_wait();
  pdl_trigger();
  if (mover) {
    bulk::Ring::Turn turn;
    for (int round = 0; round < ahead; ++round, ring.next(turn)) fetch_a(turn, round);
  }
  __syncwarp();
  __syncthreads();  // the ring's barriers are initialized

  const int wm = warp % WM;
  const int wk = warp / WM;
  float sums[TILES][4];
#pragma unroll
  for (int i = 0; i < TILES * 4; ++i) sums[i / 4][i % 4] = 0.0f;
  if (warp < kWarps) {
    // This lane's row of four 8 x 8 tiles: b's rows 0-7 and 8-15 at two chunks, and likewise for a.
    const int b_row = wk * kTile + wm * 16 * 128 + lane % 16 * 128;
    const int a_row = WK * kTile + wk * kATile + (lane % 8 + lane / 16 * 8) * 128;
    bulk::Ring::Turn turn;
#pragma unroll 1
    for (int round = 0; round < rounds; ++round, ring.next(turn)) {
      ptx::wait_for(ring.full(turn), turn.parity);
      const unsigned int from = ring.at(turn);
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        unsigned int w[4];
        ptx::load_matrices<false>(w, from + b_row + ((2 * step + lane / 16) ^ (lane % 8)) * 16);
#pragma unroll
        for (int j = 0; j < TILES / 2; ++j) {
          unsigned int x[4];
          ptx::load_matrices<false>(
              x, from + a_row + j * 16 * 128 + ((2 * step + lane / 8 % 2) ^ (lane % 8)) * 16);
          multiply<T>(sums[2 * j], w, x[0], x[1]);
          multiply<T>(sums[2 * j + 1], w, x[2], x[3]);
        }
      }
      __syncwarp();
      if (lane == 0) ptx::arrive(ring.done(turn));
    }
  } else if (mover) {
    bulk::Ring::Turn turn;
    for (int round = 0; round + depth < rounds; ++round, ring.next(turn)) {
      ptx::wait_for(ring.done(turn), turn.parity);
      fetch_b(turn, round + depth);
      fetch_a(turn, round + depth);
    }
  }

  __syncwarp();
  __syncthreads();  // nobody uses the ring any more: the sums overwrite it
  float* const parts = reinterpret_cast<float*>(shared);
  float* const inbox = parts + max(depth * kSlot + 1024, kSums) / 4;
  if (warp < kWarps) {
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
      float* const to = parts + (wk * kBatch + j * 8 + 2 * (lane % 4)) * kSumPitch + wm * 16 + lane / 4;
      to[0] = sums[j][0];
      to[kSumPitch] = sums[j][1];
      to[8] = sums[j][2];
      to[kSumPitch + 8] = sums[j][3];
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

template <typename T, typename SLOPE, int TILES, int V>
__global__ void __launch_bounds__(288, 1)
    skinny_nn(const T* __restrict__ a, int lda, const T* __restrict__ b, int ldb,
              const T* __restrict__ saved, int ldsaved, T* __restrict__ c, int ldc, int* overflow,
              int m, int n, int k, int share, int depth, const __grid_constant__ TensorMap a_map,
              const __grid_constant__ TensorMap b_map) {
  skinny::Backward<T, T, SLOPE, true, false, false, false, false, TILES, V> work{};
  work.saved = saved;
  work.ldsaved = ldsaved;
  work.dx = c;
  work.lddx = ldc;
  work.overflow = overflow;
  work.batch = m;
  work.rows = k;
  work.cols = n;
  work.share = share;
  work.depth = depth;
  work.run(b_map, a_map, b_map, a_map);
}

template <typename T, typename TW, bool STOCHASTIC, bool DECAY, bool RAGGED, int TILES, int V>
__global__ void __launch_bounds__(288, 1)
    skinny_update(const T* __restrict__ dz, int lddz, const T* __restrict__ x, int ldx,
                  TW* __restrict__ w, int ldw, float* __restrict__ bias, T* __restrict__ copy,
                  int ldcopy, const float* __restrict__ rates, const int* __restrict__ cursor,
                  const int* __restrict__ clock, const float* __restrict__ loss_scale,
                  const int* overflow, int batch, int rows, int cols, float lr, float decay,
                  int offset, unsigned long long seed, unsigned int stream, int share, int depth,
                  const __grid_constant__ TensorMap dz_map,
                  const __grid_constant__ TensorMap x_map,
                  const __grid_constant__ TensorMap w_map,
                  const __grid_constant__ TensorMap copy_map) {
  const skinny::Backward<T, TW, None, false, true, STOCHASTIC, DECAY, RAGGED, TILES, V> work{
      bias,  copy,  nullptr, 0,     nullptr, 0,    const_cast<int*>(overflow),
      rates, cursor, clock,  loss_scale, batch, rows, cols,
      lr,    decay, offset,  seed,  stream,  share, depth};
  work.run(w_map, dz_map, copy_map, x_map);
}

template <typename T, typename TW, typename SLOPE, bool STOCHASTIC, bool DECAY, bool RAGGED,
          int TILES, int V>
__global__ void __launch_bounds__(288, 1)
    skinny_backward(const T* __restrict__ dz, int lddz, const T* __restrict__ x, int ldx,
                    TW* __restrict__ w, int ldw, float* __restrict__ bias, T* __restrict__ copy,
                    int ldcopy, T* __restrict__ dx, int lddx, const float* __restrict__ rates,
                    const int* __restrict__ cursor, const int* __restrict__ clock, int batch,
                    int rows, int cols, float lr, float decay, int offset, unsigned long long seed,
                    unsigned int stream, int share, int depth,
                    const __grid_constant__ TensorMap dz_map,
                    const __grid_constant__ TensorMap x_map,
                    const __grid_constant__ TensorMap w_map,
                    const __grid_constant__ TensorMap copy_map) {
  const skinny::Backward<T, TW, SLOPE, true, true, STOCHASTIC, DECAY, RAGGED, TILES, V> work{
      bias,  copy,  dx,     lddx, x,      ldx,   nullptr,
      rates, cursor, clock, nullptr, batch, rows, cols,
      lr,    decay, offset, seed, stream, share, depth};
  work.run(w_map, dz_map, copy_map, x_map);
}
