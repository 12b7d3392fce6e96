// What narrow_input and narrow_update share: batches of uint8 rows, and weights in pieces of 16 x 32,
// one for each warp, laid out so that no operand of a product passes through shared memory.
//
// Lane (g, t) = (lane / 4, lane % 4) holds the columns 4t .. 4t + 3 and 16 + 4t .. 16 + 4t + 3 of
// rows g and g + 8 of a piece, so four lanes fill whole sectors of memory. For the update the piece is
// the product of gradients [16, batch] and inputs [batch, 32]. It has four tiles of 8 columns; column j
// of tile i is the piece's column 4(j / 2) + 16(j % 2) + i. Of 32 batch rows at a time, a lane loads
// rows 8t .. 8t + 7 of both. So a lane's results are the weights it holds, and its loads are 4
// neighboring pixels of 8 rows. For the first layer's product the piece is the left operand in the same
// registers: of each 16 columns that are summed over, the lane holds 4t .. 4t + 3.
#pragma once
#include "device/products.cuh"
#include "primitives/types.cuh"

constexpr int kPieceRows = 16;
constexpr int kPieceCols = 32;
constexpr int kPieceWarps = 8;  // warps of a block
constexpr int kBatchRows = 32;  // of a product's inner dimension

// The piece's column that is column j of the first tile of an update.
__device__ constexpr int tile_column(int j) { return j / 2 * 4 + j % 2 * 16; }

__device__ constexpr int pieces_across(int cols) { return (cols + kPieceCols - 1) / kPieceCols; }
__device__ constexpr int pieces_down(int rows) { return (rows + kPieceRows - 1) / kPieceRows; }

// A mask of the bytes that exist among the 4 pixels from `feature` on.
__device__ __forceinline__ unsigned int present(int feature, int features) {
  const int left = min(max(features - feature, 0), 4);
  return static_cast<unsigned int>((1ull << 8 * left) - 1ull);
}

// 4 neighboring pixels; rows are padded to words.
__device__ __forceinline__ unsigned int load_pixels(const unsigned char* __restrict__ from,
                                                    unsigned int mask) {
  return mask != 0u ? *reinterpret_cast<const unsigned int*>(from) & mask : 0u;
}

constexpr float kMagic = 8388608.0f;  // 2^23: a byte in its lowest place adds itself

template <int BYTE>
__device__ __forceinline__ float pixel(unsigned int word) {
  return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440u + BYTE)) - kMagic;
}

// The rows of a batch, at their places in the data set.
template <bool ORDERED>
struct BatchRows {
  const unsigned char* images;
  const int* order;
  long long first;
  int ld, batch;
  __device__ __forceinline__ const unsigned char* operator()(int row) const {
    const long long at = first + min(row, batch - 1);
    return images + (ORDERED ? static_cast<long long>(order[at]) : at) * ld;
  }
};

struct Piece {
  float values[2][8];

  // Padding is read, and written by store(), along with the last columns.
  __device__ __forceinline__ void load(const float* w, int ld, int row, int col, int rows,
                                       int cols) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = row + i / 2 * 8;
      float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (at < rows && col + i % 2 * 16 < cols) {
        four = *reinterpret_cast<const float4*>(w + at * ld + col + i % 2 * 16);
      }
      float* const to = values[i / 2] + i % 2 * 4;
      to[0] = four.x;
      to[1] = four.y;
      to[2] = four.z;
      to[3] = four.w;
    }
  }

  // w -= rate * (gradient + decay * w); the gradients are sums * scale.
  __device__ __forceinline__ void update(const float (&sums)[4][4], float scale, float rate,
                                         float decay) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float gradient = sums[i % 4][2 * half + i / 4] * scale;
        values[half][i] -= rate * (gradient + decay * values[half][i]);
      }
    }
  }

  template <typename T>
  __device__ __forceinline__ void store(float* w, int ld, T* copy, int ldcopy, int row, int col,
                                        int rows, int cols) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = row + i / 2 * 8;
      const int to = col + i % 2 * 16;
      const float* const from = values[i / 2] + i % 2 * 4;
      if (at < rows && to < cols) {
        *reinterpret_cast<float4*>(w + at * ld + to) =
            make_float4(from[0], from[1], from[2], from[3]);
        if (copy != nullptr) {
          *reinterpret_cast<uint2*>(copy + at * ldcopy + to) =
              make_uint2(pack_pair<T>(from[0], from[1]), pack_pair<T>(from[2], from[3]));
        }
      }
    }
  }
};

// 8 neighboring batch rows of one feature, of which `count` exist, with zeros after them, whatever the
// padding holds.
template <typename T>
__device__ __forceinline__ void load_eight(unsigned int (&words)[4], const T* from, int count) {
  uint4 eight = make_uint4(0u, 0u, 0u, 0u);
  if (count > 0) eight = *reinterpret_cast<const uint4*>(from);
  words[0] = eight.x;
  words[1] = eight.y;
  words[2] = eight.z;
  words[3] = eight.w;
  if (count < 8) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int left = count - 2 * i;
      words[i] &= left >= 2 ? 0xffffffffu : left == 1 ? 0xffffu : 0u;
    }
  }
}

// The gradients of a piece's rows g and g + 8, at 8 batch rows of the lane.
template <typename T>
struct Gradients {
  unsigned int low[4], high[4];

  __device__ __forceinline__ void load(const T* from, int ld, int count) {
    load_eight(low, from, count);
    load_eight(high, from + 8 * ld, count);
  }

  // sum += the gradients times the inputs' 8 columns of one tile.
  __device__ __forceinline__ void multiply_by(float (&sum)[4],
                                              const unsigned int (&inputs)[4]) const {
    const unsigned int first[4] = {low[0], high[0], low[1], high[1]};
    const unsigned int second[4] = {low[2], high[2], low[3], high[3]};
    ptx::multiply<T>(sum, first, inputs[0], inputs[1]);
    ptx::multiply<T>(sum, second, inputs[2], inputs[3]);
  }

  __device__ __forceinline__ void add_to(float (&sums)[2]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 first = unpack_pair<T>(low[i]);
      const float2 second = unpack_pair<T>(high[i]);
      sums[0] += first.x + first.y;
      sums[1] += second.x + second.y;
    }
  }
};

// The biases of rows `row` and row + 8.
struct BiasPair {
  float values[2];

  __device__ __forceinline__ void load(const float* bias, int row, int rows) {
#pragma unroll
    for (int i = 0; i < 2; ++i) values[i] = row + 8 * i < rows ? bias[row + 8 * i] : 0.0f;
  }
  // `sums` are the lanes' sums of gradients.
  __device__ __forceinline__ void update(float* bias, const float (&sums)[2], int row, int rows,
                                         float rate, float decay, int t) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = sums[i];
#pragma unroll
      for (int step = 2; step > 0; step /= 2) sum += __shfl_xor_sync(kFullWarp, sum, step);
      if (t == 0 && row + 8 * i < rows) {
        bias[row + 8 * i] = values[i] - rate * (sum + decay * values[i]);
      }
    }
  }
};

// A warp's piece of the first layer's weights, with the pixels it is multiplied by.
template <typename T, bool ORDERED, int FEATURES, int OUTPUTS, int SPLITS>
struct FirstLayer {
  int row, col;     // this lane's place in the weights
  int column;       // the first of the 4 neighboring pixels that an update needs
  int g, t;
  bool working;     // the last warps may lie behind the last column
  Piece piece;

  __device__ __forceinline__ FirstLayer(int block, int warp, int lane) {
    g = lane / 4;
    t = lane % 4;
    const int index = block % SPLITS * kPieceWarps + warp;
    working = kPieceCols * index < FEATURES;
    row = block / SPLITS * kPieceRows + g;
    col = kPieceCols * index + 4 * t;
    column = kPieceCols * index + tile_column(g);
  }

  // For the update: 8 batch rows of 4 columns.
  __device__ __forceinline__ void load_down(unsigned int (&inputs)[4][4],
                                            const BatchRows<ORDERED>& rows, int part) const {
    const unsigned int mask = present(column, FEATURES);
    const unsigned char* from[8];
    unsigned int words[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) from[i] = rows(kBatchRows * part + 8 * t + i) + column;
#pragma unroll
    for (int i = 0; i < 8; ++i) words[i] = load_pixels(from[i], mask);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned int even = words[2 * i];
      const unsigned int odd = words[2 * i + 1];
      inputs[0][i] = pack_pair<T>(pixel<0>(even), pixel<0>(odd));
      inputs[1][i] = pack_pair<T>(pixel<1>(even), pixel<1>(odd));
      inputs[2][i] = pack_pair<T>(pixel<2>(even), pixel<2>(odd));
      inputs[3][i] = pack_pair<T>(pixel<3>(even), pixel<3>(odd));
    }
  }

  // For the product: 8 columns of 4 batch rows, with zeros after the batch.
  __device__ __forceinline__ void load_across(unsigned int (&inputs)[4][4],
                                              const BatchRows<ORDERED>& rows, int part) const {
    const unsigned char* from[4];
    unsigned int words[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) from[i] = rows(kBatchRows * part + 8 * i + g) + col;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool exists = kBatchRows * part + 8 * i + g < rows.batch;
      words[2 * i] = load_pixels(from[i], exists ? present(col, FEATURES) : 0u);
      words[2 * i + 1] = load_pixels(from[i] + 16, exists ? present(col + 16, FEATURES) : 0u);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      inputs[i / 2][i % 2 * 2] = pack_pair<T>(pixel<0>(words[i]), pixel<1>(words[i]));
      inputs[i / 2][i % 2 * 2 + 1] = pack_pair<T>(pixel<2>(words[i]), pixel<3>(words[i]));
    }
  }

  // The contribution of this block's columns to the first layer's pre-activations, starting from
  // `inputs`, the batch's first 32 rows: partial[split * OUTPUTS + out, row of the batch].
  __device__ __forceinline__ void product(float* sums, unsigned int (&inputs)[4][4],
                                          const BatchRows<ORDERED>& rows, int block, int thread,
                                          float scale, float* partial, int ld) const {
    unsigned int weights[2][4];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int at = col + i / 4 * 16 + i % 4 / 2 * 2;
      const float* const v = piece.values[i % 2] + i / 4 * 4 + i % 4 / 2 * 2;
      weights[i / 4][i % 4] = pack_pair<T>(at < FEATURES ? v[0] : 0.0f,  // padding may be NaN
                                           at + 1 < FEATURES ? v[1] : 0.0f);
    }
    const int parts = (rows.batch + kBatchRows - 1) / kBatchRows;
#pragma unroll 1
    for (int part = 0; part < parts; ++part) {
      float scores[4][4];
#pragma unroll
      for (int i = 0; i < 16; ++i) scores[i / 4][i % 4] = 0.0f;
      if (working) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          ptx::multiply<T>(scores[i / 2], weights[i % 2], inputs[i / 2][i % 2 * 2],
                      inputs[i / 2][i % 2 * 2 + 1]);
        }
        if (part + 1 < parts) load_across(inputs, rows, part + 1);
      }
      if (part > 0) __syncthreads();
      constexpr int kTile = kPieceRows * kBatchRows;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float* const to = sums + thread / 32 * kTile + g * kBatchRows + 8 * i + 2 * t;
        *reinterpret_cast<float2*>(to) = make_float2(scores[i][0], scores[i][1]);
        *reinterpret_cast<float2*>(to + 8 * kBatchRows) = make_float2(scores[i][2], scores[i][3]);
      }
      __syncthreads();
#pragma unroll
      for (int i = thread; i < kTile; i += 32 * kPieceWarps) {
        const int out = block / SPLITS * kPieceRows + i / kBatchRows;
        const int at = kBatchRows * part + i % kBatchRows;
        float sum = 0.0f;
#pragma unroll
        for (int warp = 0; warp < kPieceWarps; ++warp) sum += sums[warp * kTile + i];
        if (out < OUTPUTS && at < ld) {
          partial[(block % SPLITS * OUTPUTS + out) * ld + at] = sum * scale;
        }
      }
    }
  }
};
