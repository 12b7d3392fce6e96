// The rows of z in head.cu: sums over a warp's features. Once a block has the sums of all blocks:
// softmax, loss and gradient, and the bias, whose gradient is the sum over the rows.
#pragma once
#include "primitives/common.cuh"
#include "device/products.cuh"
#include "device/shared.cuh"
#include "gemm/skinny_parts.cuh"
#include "losses/softmax.cuh"

namespace head {

// Bytes of a row of dz, so that the rows of a tile cover all banks.
__device__ constexpr int gradient_pitch(int classes) { return 32 * classes + 16; }

// A warp's sums of z over the features of its units; all warps' are [WARPS][8 * TILES][classes rounded up
// to 4]. A lane reads its pieces of a at `a_at` and of w at `w_at`. They hold the inner indices 8t .. 8t +
// 7, and not 2t, 2t + 1, 2t + 8, 2t + 9 of two products; both factors are permuted alike.
template <typename T, int TILES, int CLASSES, int WARPS>
__device__ __forceinline__ void partial_scores(float* parts, unsigned int a_at, unsigned int w_at,
                                               int units, int classes) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int bytes = classes * 64;  // one unit of w
  const int pitch = (classes + 3) / 4 * 4;
#pragma unroll 1
  for (int tile = 0; tile < CLASSES; ++tile) {
    float sums[TILES / 2][2][4];
#pragma unroll
    for (int i = 0; i < TILES * 4; ++i) sums[i / 8][i / 4 % 2][i % 4] = 0.0f;
#pragma unroll 1
    for (int unit = warp; unit < units; unit += WARPS) {
      unsigned int b[2][4];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        b[c][0] = b[c][1] = b[c][2] = b[c][3] = 0u;
        if ((2 * tile + c) * 8 + g < classes) {
          ptx::load_shared(b[c], w_at + unit * bytes + (2 * tile + c) * 512);
        }
      }
#pragma unroll
      for (int m = 0; m < TILES / 2; ++m) {
        unsigned int x[2][4];
        ptx::load_shared(x[0], a_at + (unit * TILES + 2 * m) * 512);
        ptx::load_shared(x[1], a_at + (unit * TILES + 2 * m + 1) * 512);
        const unsigned int low[4] = {x[0][0], x[1][0], x[0][1], x[1][1]};
        const unsigned int high[4] = {x[0][2], x[1][2], x[0][3], x[1][3]};
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          ptx::multiply<T>(sums[m][c], low, b[c][0], b[c][1]);
          ptx::multiply<T>(sums[m][c], high, b[c][2], b[c][3]);
        }
      }
    }
#pragma unroll
    for (int m = 0; m < TILES / 2; ++m) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int column = (2 * tile + c) * 8 + 2 * t;
        if (column < pitch) {
          float* const to = parts + (warp * (8 * TILES) + 16 * m + g) * pitch + column;
          *reinterpret_cast<float2*>(to) = make_float2(sums[m][c][0], sums[m][c][1]);
          *reinterpret_cast<float2*>(to + 8 * pitch) = make_float2(sums[m][c][2], sums[m][c][3]);
        }
      }
    }
  }
}

// `inbox` holds the partial sums of z [BATCH, classes] that `splits` blocks sent, `gradients` receives
// dz. 4 * CLASSES lanes share a row, one quad each.
template <typename T, int BATCH, int CLASSES, int THREADS>
__device__ __forceinline__ void row_gradients(unsigned char* gradients, const float* inbox,
                                              int splits, const float* biases, const int* labels,
                                              float* row_loss, int* row_right, int batch,
                                              int classes) {
  constexpr int kLanes = 4 * CLASSES;
  const int thread = static_cast<int>(threadIdx.x);
  const int quad = thread % kLanes;
  const int quads = (classes + 3) / 4;
  const float of_row = 1.0f / static_cast<float>(batch);
#pragma unroll 1
  for (int row = thread / kLanes; row < BATCH; row += THREADS / kLanes) {
    const int label = labels[row];
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (row < batch && quad < quads) {
#pragma unroll 4
      for (int from = 0; from < splits; ++from) {
        skinny::add(sum, inbox + ((from * BATCH + row) * quads + quad) * 4);
      }
    }
    float values[1][4] = {{sum.x + biases[4 * quad], sum.y + biases[4 * quad + 1],
                           sum.z + biases[4 * quad + 2], sum.w + biases[4 * quad + 3]}};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (4 * quad + i >= classes) values[0][i] = -infinity();
    }
    float of_label = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) of_label = 4 * quad + i == label ? values[0][i] : of_label;
    const RowSoftmax found = softmax_of_quads<kLanes>(values, quad);
    const float inverse = 1.0f / found.total;
    float labelled = not_a_number();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = 4 * quad + i;
      const float p = values[0][i] * inverse;
      if (column == label) labelled = p;
      values[0][i] = cross_entropy_slope(p, column == label, of_row);
      if (row >= batch || column >= classes) values[0][i] = 0.0f;
    }
    const unsigned int packed[2] = {pack_pair<T>(values[0][0], values[0][1]),
                                    pack_pair<T>(values[0][2], values[0][3])};
    store_words(gradients + row * gradient_pitch(CLASSES) + quad * 8, packed);
    const bool labelled_here = label >= 0 && label < classes ? quad == label / 4 : quad == 0;
    if (labelled_here) {
      row_loss[row] = cross_entropy_of(label < classes ? labelled : not_a_number(),
                                       found.largest - of_label, found.total);
      row_right[row] = found.first == label ? 1 : 0;
    }
  }
}

// bias -= rate * (column sums of dz + decay * bias) by one warp, as a product with ones; `dz_turned` is
// where its lane reads transposed tiles of dz.
template <typename T, int TILES, int CLASSES>
__device__ __forceinline__ void update_bias(float* bias, const float* biases,
                                            unsigned int dz_turned, int classes, float rate,
                                            float decay) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int g = lane / 4;
  const int t = lane % 4;
  const unsigned int ones = pack_pair<T>(1.0f, 1.0f);
#pragma unroll 1
  for (int tile = 0; tile < CLASSES; ++tile) {
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int m = 0; m < TILES / 2; ++m) {
      unsigned int d[4];
      ptx::load_matrices<true>(d, dz_turned + m * (16 * gradient_pitch(CLASSES)) + tile * 32);
      ptx::multiply<T>(sums, d, ones, ones);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = 16 * tile + 8 * half + g;
      if (t == 0 && row < classes) {
        bias[row] = biases[row] - rate * (sums[2 * half] + decay * biases[row]);
      }
    }
  }
}

}  // namespace head
