// softmax_head: the last layer of a network with a softmax cross-entropy, forward and backward with
// its update, in one launch of one cluster of blocks.
//
//   z = a w^T + bias; loss[s], correct[s] and dz as softmax_loss_gradient (loss.cu), s = *cursor +
//   offset; dz is rounded to T
//   dx = (dz w) * slope(a), from the old weights
//   w -= lr * (dz^T a + decay * w), bias -= lr * (column sums of dz + decay * bias)
//   a, dx: [batch, features]; w: [classes, features]; bias: [classes], float; y: [batch], dense
//
// T: float16 or bfloat16; sums in float. TW, the weights: float, with `copy` in T that the products
// read; or T, if STOCHASTIC: bfloat16, rounded stochastically (updates.cuh). RAGGED: features is no
// multiple of 8. TILES: 8 rows of the batch each; CLASSES: 16 columns of z each. bias, rates, cursor
// and clock may be null. Rows must begin at multiples of 16 bytes. No kernel directly before may write
// w, copy or bias, because they are read before the wait. Used by `fuse` after GEMMs by `mma`.
//
// Each block has `share` units of 32 features, which its warps divide. A lane holds 16-byte pieces of a
// unit: features 8t .. 8t + 7 of row g for (g, t) = (lane / 4, lane % 4). It uses those of a for the
// sums of z, for the slope and, transposed by movmatrix, for the weight gradient; and those of w for z,
// for dx and for the update. The tensor cores produce dx and the weight gradient in the same pieces, so
// all work between loading and storing is private to a warp. The partial sums of z are sent to all
// blocks, each of which adds them up in the same order and keeps dz: there is one exchange, and results
// repeat bit for bit.
// Launch: grid (splits, 1, 1), one cluster of 2 blocks or more; blocks of 32 * WARPS.
// Shared memory: share * (TILES * 512 + classes * (64 + KEPT)) + (WARPS + splits) * 8 * TILES * 16 *
// ceil(classes / 4) bytes, KEPT being 128 for float weights, else 64.
// Limit: latency; for wide layers, what 8 multiprocessors can do. docs/notes/fuse.md has timings.
#include "primitives/common.cuh"
#include "device/products.cuh"
#include "device/shared.cuh"
#include "fused/head_pieces.cuh"
#include "fused/head_rows.cuh"
#include "losses/metrics.cuh"
#include "gemm/skinny_parts.cuh"
#include "optimizers/updates.cuh"

template <typename T, typename TW, typename SLOPE, bool STOCHASTIC, bool RAGGED, int TILES,
          int CLASSES, int WARPS>
__global__ void __launch_bounds__(32 * WARPS, 1)
    softmax_head(const T* __restrict__ a, int lda, TW* __restrict__ w, int ldw,
                 T* __restrict__ copy, int ldcopy, float* __restrict__ bias,
                 const int* __restrict__ y, T* __restrict__ dx, int lddx,
                 const float* __restrict__ rates, const int* __restrict__ cursor,
                 const int* __restrict__ clock, float* __restrict__ loss,
                 int* __restrict__ correct, int batch, int features, int classes, float lr,
                 float decay, int offset, unsigned long long seed, unsigned int stream, int share) {
  using namespace skinny;
  constexpr bool kMaster = sizeof(TW) == 4;
  static_assert(kMaster != STOCHASTIC, "weights of 16 bits are rounded by chance");
  constexpr int kBatch = 8 * TILES;
  constexpr int kThreads = 32 * WARPS;
  constexpr int kPitch = head::gradient_pitch(CLASSES);
  unsigned char* const shared = ptx::dynamic_shared();
  __shared__ unsigned long long counter;
  __shared__ __align__(16) unsigned char gradients[kBatch * kPitch];
  __shared__ float biases[16 * CLASSES];
  __shared__ int labels[kBatch];
  __shared__ float row_loss[kBatch];
  __shared__ int row_right[kBatch];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31;
  const int warp = thread / 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int splits = static_cast<int>(gridDim.x);
  const int rank = static_cast<int>(blockIdx.x);
  const int quads = (classes + 3) / 4;
  const int pitch = 4 * quads;  // of rows of partial sums
  Mailbox mailbox;
  mailbox.open(&counter, splits * batch * pitch * 4);

  const int first = rank * share;
  const int units = max(min(share, (features + 31) / 32 - first), 0);
  const int column0 = first * 32 + 8 * t;
  const int piece_bytes = classes * 64;  // one unit of w
  const unsigned int a_at = ptx::shared_address(shared) + lane * 16;
  const unsigned int w_at = a_at + share * TILES * 512;
  const unsigned int kept_at = w_at + share * piece_bytes;
  float* const parts =
      reinterpret_cast<float*>(shared) + share * (TILES * 512 + (kMaster ? 3 : 2) * piece_bytes) / 4;
  float* const inbox = parts + WARPS * kBatch * pitch;

  const T* weights;
  int ldweights;
  if constexpr (kMaster) {
    weights = copy;
    ldweights = ldcopy;
  } else {
    weights = w;
    ldweights = ldw;
  }
#pragma unroll 1
  for (int unit = warp; unit < units; unit += WARPS) {
    const int column = column0 + unit * 32;
#pragma unroll
    for (int c = 0; c < 2 * CLASSES; ++c) {
      const int row = 8 * c + g;
      if (row < classes) {
        head::copy_async(w_at + unit * piece_bytes + c * 512,
                   weights + static_cast<long long>(row) * ldweights + column, features - column);
        if constexpr (kMaster) {
          const unsigned int to = kept_at + 2 * unit * piece_bytes + c * 512;
          const TW* from = w + static_cast<long long>(row) * ldw + column;
          head::copy_async(to, from, features - column);
          head::copy_async(to + piece_bytes, from + 4, features - column - 4);
        }
      }
    }
  }
  if (thread < 16 * CLASSES) {
    biases[thread] = bias != nullptr && thread < classes ? bias[thread] : 0.0f;
  }
  const float rate = learning_rate(lr, rates, cursor, offset);
  const Rounding how = rounding(STOCHASTIC, seed, stream, cursor, offset, clock);

  pdl_wait();
  pdl_trigger();
#pragma unroll 1
  for (int unit = warp; unit < units; unit += WARPS) {
    const int column = column0 + unit * 32;
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
      const int row = 8 * i + g;
      head::copy_async(a_at + (unit * TILES + i) * 512, a + static_cast<long long>(row) * lda + column,
                 row < batch ? features - column : 0);
    }
  }
  if (thread < kBatch) labels[thread] = thread < batch ? y[thread] : -1;
  if constexpr (STOCHASTIC) {  // random numbers are drawn while a is being copied
#pragma unroll 1
    for (int unit = warp; unit < units; unit += WARPS) {
#pragma unroll
      for (int c = 0; c < 2 * CLASSES; ++c) {
        const int row = 8 * c + g;
        if (row < classes) {
          const unsigned int element =
              static_cast<unsigned int>(row) * static_cast<unsigned int>(features) +
              static_cast<unsigned int>(column0 + unit * 32);
          const Words drawn =
              RAGGED ? rounding_window<8>(how, element)
                     : rounding_group(how.seed, how.stream, how.step, element / 8u);
          store_shared(kept_at + unit * piece_bytes + c * 512, drawn.word);
        }
      }
    }
  }
  ptx::wait_for_all_copies();

  head::partial_scores<T, TILES, CLASSES, WARPS>(parts, a_at, w_at, units, classes);
  __syncthreads();

    // Two lanes add up one quad of this block's sums, and each sends it to half of the blocks.
  mailbox.opened();
#pragma unroll 1
  for (int i = thread; i / 32 * 16 < batch * quads; i += kThreads) {
    const int half = i % 2;
    const bool exists = i / 2 < batch * quads;
    const float* from = parts + half * (WARPS / 2 * kBatch * pitch) + (exists ? i / 2 * 4 : 0);
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int slot = 0; slot < WARPS / 2; ++slot) add(sum, from + slot * kBatch * pitch);
    sum.x += __shfl_xor_sync(kFullWarp, sum.x, 1);
    sum.y += __shfl_xor_sync(kFullWarp, sum.y, 1);
    sum.z += __shfl_xor_sync(kFullWarp, sum.z, 1);
    sum.w += __shfl_xor_sync(kFullWarp, sum.w, 1);
    if (exists) {
#pragma unroll 1
      for (int to = half; to < splits; to += 2) {
        mailbox.send(inbox + rank * kBatch * pitch + i / 2 * 4, to, sum);
      }
    }
  }
  mailbox.receive();

  head::row_gradients<T, kBatch, CLASSES, kThreads>(gradients, inbox, splits, biases, labels,
                                                    row_loss, row_right, batch, classes);
  __syncthreads();

  const unsigned int dz_rows = ptx::shared_address(gradients) + lane % 8 * kPitch;
  const unsigned int dz_at = dz_rows + lane / 8 % 2 * (8 * kPitch) + lane / 16 * 16;
  const unsigned int dz_turned_at = dz_rows + lane / 16 * (8 * kPitch) + lane / 8 % 2 * 16;
#pragma unroll 1
  for (int unit = warp; unit < units; unit += WARPS) {
    const int column = column0 + unit * 32;
    const int count = features - column;
    unsigned int old[2 * CLASSES][4];
    unsigned int turned_w[2 * CLASSES][4];
    float change[CLASSES][4][4];
#pragma unroll
    for (int c = 0; c < 2 * CLASSES; ++c) {
      old[c][0] = old[c][1] = old[c][2] = old[c][3] = 0u;
      if (8 * c + g < classes) load_shared(old[c], w_at + unit * piece_bytes + c * 512);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        turned_w[c][j] = ptx::transpose_matrix(old[c][j]);
#pragma unroll
        for (int i = 0; i < 2; ++i) change[c / 2][j][2 * (c % 2) + i] = 0.0f;
      }
    }
#pragma unroll
    for (int m = 0; m < TILES / 2; ++m) {
      unsigned int x[2][4];
      load_shared(x[0], a_at + (unit * TILES + 2 * m) * 512);
      load_shared(x[1], a_at + (unit * TILES + 2 * m + 1) * 512);
      float incoming[4][4];
#pragma unroll
      for (int i = 0; i < 16; ++i) incoming[i / 4][i % 4] = 0.0f;
#pragma unroll
      for (int tile = 0; tile < CLASSES; ++tile) {
        unsigned int d[4];
        ptx::load_matrices<false>(d, dz_at + m * (16 * kPitch) + tile * 32);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          multiply<T>(incoming[j], d, turned_w[2 * tile][j], turned_w[2 * tile + 1][j]);
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = 16 * m + 8 * half + g;
        unsigned int words[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          words[j] = head::sloped<T, SLOPE>(incoming[j][2 * half], incoming[j][2 * half + 1],
                                            x[half][j]);
        }
        head::store_piece<RAGGED>(dx + static_cast<long long>(row) * lddx + column, words,
                                  row < batch ? count : 0);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        x[0][j] = ptx::transpose_matrix(x[0][j]);
        x[1][j] = ptx::transpose_matrix(x[1][j]);
      }
#pragma unroll
      for (int tile = 0; tile < CLASSES; ++tile) {
        unsigned int d[4];
        ptx::load_matrices<true>(d, dz_turned_at + m * (16 * kPitch) + tile * 32);
#pragma unroll
        for (int j = 0; j < 4; ++j) multiply<T>(change[tile][j], d, x[0][j], x[1][j]);
      }
    }
#pragma unroll
    for (int c = 0; c < 2 * CLASSES; ++c) {
      const int row = 8 * c + g;
      if (row < classes) {
        float values[8];
        unsigned int kept[kMaster ? 2 : 1][4];
#pragma unroll
        for (int i = 0; i < (kMaster ? 2 : 1); ++i) {
          load_shared(kept[i],
                      kept_at + (kMaster ? 2 : 1) * unit * piece_bytes + i * piece_bytes + c * 512);
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          float before;
          if constexpr (kMaster) {
            before = __uint_as_float(kept[i / 4][i % 4]);
          } else {
            const float2 both = unpack_pair<T>(old[c][i / 2]);
            before = i % 2 == 0 ? both.x : both.y;
          }
          values[i] =
              before - rate * (change[c / 2][i / 2][2 * (c % 2) + i % 2] + decay * before);
        }
        head::store_new<T, RAGGED>(at(w, ldw, row, column), at(copy, ldcopy, row, column), values,
                                   kept[0], count);
      }
    }
  }

  // The last block, which has the fewest features: bias and metrics.
  if (rank != splits - 1) return;
  if (warp == WARPS - 1 && bias != nullptr) {
    head::update_bias<T, TILES, CLASSES>(bias, biases, dz_turned_at, classes, rate, decay);
  }
  if (warp == WARPS - 2) {
    warp_report([&](int row) { return row_loss[row]; }, row_right, batch,
                epoch_step(cursor, offset), loss, correct);
  }
}
