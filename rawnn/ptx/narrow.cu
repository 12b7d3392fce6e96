// narrow_inner, narrow_weights: a training step of a network whose hidden layers are narrow (at most
// 256 wide) in two dependent launches, straight from the uint8 data set, with 16-bit products and
// float32 master weights.
#include "common.cuh"
#include "narrow_mma.cuh"
#include "pdl.cuh"

constexpr int kRows = 8;  // of the batch, in a block of narrow_inner

enum Activation { kIdentity = 0, kRelu = 1, kTanh = 2 };

template <int ACTIVATION>
__device__ __forceinline__ float activate(float z) {
  if constexpr (ACTIVATION == kRelu) {
    return z < 0.0f ? 0.0f : z;  // a NaN stays
  } else if constexpr (ACTIVATION == kTanh) {
    return tanhf(z);
  } else {
    return z;
  }
}

// `gradient` times the slope of the activation where it gave `a`.
template <int ACTIVATION>
__device__ __forceinline__ float through(float gradient, float a) {
  if constexpr (ACTIVATION == kRelu) {
    return a > 0.0f ? gradient : 0.0f;
  } else if constexpr (ACTIVATION == kTanh) {
    return gradient * (1.0f - a * a);
  } else {
    return gradient;
  }
}

// ---- the inner layers ---------------------------------------------------------------------------

// Where things lie in the shared memory of narrow_inner.
template <typename T, int DEPTH, int WIDTH, int HEAD, int SLOTS>
struct Inner {
  static constexpr int kWarps = WIDTH / 16;  // one for each 16 features of a hidden layer
  static constexpr int kPitch = WIDTH + 8;   // rows 16 bytes apart modulo 128: no bank conflicts
  static constexpr int kLayers = DEPTH - 2;  // between two hidden layers
  static constexpr int kResident = kLayers < SLOTS ? kLayers : SLOTS;
  static constexpr int kSlots = kResident > 0 ? kResident : 1;  // layers held at a time
  static constexpr int kClasses = 16 * HEAD;
  static constexpr int kScorePitch = kClasses + 4;
  static constexpr int kHead = kResident * WIDTH * kPitch;          // elements before the head's weights
  static constexpr int kVectors = kHead + kClasses * kPitch;     // before the exchange buffers
  static constexpr int kVector = WIDTH * kRows;                  // elements of one
  static constexpr int kGradient = kVectors + 2 * kVector;       // before the head's gradient
  static constexpr int kElements = kGradient + kClasses * kRows;
  static constexpr int kBytes = kElements * 2 + kWarps * kRows * kScorePitch * 4;
};

// A [16, WIDTH] or, TRANSPOSED, its transpose's fragments: rows (or columns) `first` to first + 15.
template <bool TRANSPOSED, int TILES, typename T>
__device__ __forceinline__ void load_weights(unsigned int (&words)[TILES][4], const T* weights,
                                             int pitch, int first, int lane) {
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile) {
    if constexpr (TRANSPOSED) {
      const int row = 16 * tile + lane / 16 * 8 + lane % 8;
      load_matrices<true>(words[tile], weights + row * pitch + first + lane / 8 % 2 * 8);
    } else {
      load_matrices<false>(words[tile],
                           weights + (first + lane % 16) * pitch + 16 * tile + lane / 16 * 8);
    }
  }
}

// [16, 16 * TILES] times [16 * TILES, 8], the latter in shared memory as rows of 8 elements.
template <int TILES, typename T>
__device__ __forceinline__ void product(float (&sum)[4], const unsigned int (&weights)[TILES][4],
                                        const T* vectors, int lane) {
  float odd[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < 4; ++i) sum[i] = 0.0f;
  constexpr int kPairs = TILES / 2;
  constexpr int kAtOnce = kPairs < 4 ? kPairs : 4;  // loads ahead of their products
#pragma unroll
  for (int first = 0; first < kPairs; first += kAtOnce) {
    unsigned int words[kAtOnce][4];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i < kPairs) {
        load_matrices<true>(words[i], vectors + (32 * (first + i) + lane) * kRows);
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i < kPairs) {
        const int tile = 2 * (first + i);
        multiply<T>(sum, weights[tile], words[i][0], words[i][1]);
        multiply<T>(odd, weights[tile + 1], words[i][2], words[i][3]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) sum[i] += odd[i];
}

// A warp's 16 features of one layer's weights on their way to shared memory.
template <typename T, int WIDTH>
__device__ __forceinline__ void fetch(T* to, int pitch, const T* weights, int ld, int rows, int cols,
                                      int first, int lane) {
  constexpr int chunks = WIDTH / 8;
#pragma unroll
  for (int i = 0; i < 16 * chunks / 32; ++i) {
    const int row = first + (32 * i + lane) / chunks;
    const int col = (32 * i + lane) % chunks * 8;
    const int left = row < rows ? min(max(cols - col, 0), 8) : 0;
    const T* from = left > 0 ? weights + static_cast<long long>(row) * ld + col : weights;
    copy_async(to + row * pitch + col, from, 2 * left);
  }
}

template <typename T, int DEPTH, int WIDTH, int HEAD, int SLOTS, int ACTIVATION, typename L>
__global__ void __launch_bounds__(2 * WIDTH)
    narrow_inner(const float* partial, int ldpartial, const T* c2, int ldc2, const T* c3, int ldc3,
                 const T* c4, int ldc4, const T* c5, int ldc5, const T* c6, int ldc6,
                 const float* b1, const float* b2, const float* b3, const float* b4,
                 const float* b5, const float* b6, const L* __restrict__ labels,
                 const int* __restrict__ order, const int* __restrict__ cursor, T* activations,
                 int ldactivations, T* gradients, int ldgradients, float* row_loss,
                 int* row_correct, int offset, int stride, int splits, int batch, int width1,
                 int width2, int width3, int width4, int width5, int width6) {
  using Plan = Inner<T, DEPTH, WIDTH, HEAD, SLOTS>;
  constexpr int kTiles = WIDTH / 16;
  unsigned char* const shared = dynamic_shared();
  T* const elements = reinterpret_cast<T*>(shared);
  T* const head = elements + Plan::kHead;
  T* const vectors = elements + Plan::kVectors;
  T* const head_gradient = elements + Plan::kGradient;
  float* const scores = reinterpret_cast<float*>(elements + Plan::kElements);
  const T* const copies[] = {c2, c3, c4, c5, c6};
  const int pitches[] = {ldc2, ldc3, ldc4, ldc5, ldc6};
  const float* const biases[] = {b1, b2, b3, b4, b5, b6};
  const int widths[] = {width1, width2, width3, width4, width5, width6};

  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int first = 16 * warp;  // of this warp's features
  const int begin = kRows * static_cast<int>(blockIdx.x);
  const int classes = widths[DEPTH - 1];

  // Labels come from the data set, which no kernel writes.
  constexpr int kOwnRows = (kRows + kTiles - 1) / kTiles;
  int label[kOwnRows];
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
    const int row = min(begin + warp + i * kTiles, batch - 1);
    const long long at = static_cast<long long>(current_step(cursor, offset)) * stride + row;
    label[i] = static_cast<int>(labels[order != nullptr ? order[at] : at]);
  }
  pdl_wait();
  pdl_trigger();

#pragma unroll
  for (int i = 0; i < Plan::kResident; ++i) {
    fetch<T, WIDTH>(elements + i * WIDTH * Plan::kPitch, Plan::kPitch, copies[i], pitches[i],
                    widths[i + 1], widths[i], first, lane);
    close_copies();
  }
#pragma unroll
  for (int tile = 0; tile < HEAD; ++tile) {  // of the head, the columns that this warp reads
    const int row = 16 * tile + lane / 2;
    const int col = first + lane % 2 * 8;
    const int left = row < classes ? min(max(widths[DEPTH - 2] - col, 0), 8) : 0;
    const T* from = copies[DEPTH - 2];
    if (left > 0) from += static_cast<long long>(row) * pitches[DEPTH - 2] + col;
    copy_async(head + row * Plan::kPitch + col, from, 2 * left);
  }
  close_copies();

  // The first layer: what narrow_weights left, a part for each cut of the inner dimension.
  const int column = begin + 2 * t;
  float z[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  {
    const float* low = partial + static_cast<long long>(first + g) * ldpartial + column;
    const float* high = low + static_cast<long long>(8) * ldpartial;
    const long long step = static_cast<long long>(width1) * ldpartial;
    const bool has_low = first + g < width1;
    const bool has_high = first + g + 8 < width1;
#pragma unroll 8
    for (int split = 0; split < splits; ++split) {
      if (has_low) {
        const float2 pair = *reinterpret_cast<const float2*>(low + split * step);
        z[0] += pair.x;
        z[1] += pair.y;
      }
      if (has_high) {
        const float2 pair = *reinterpret_cast<const float2*>(high + split * step);
        z[2] += pair.x;
        z[3] += pair.y;
      }
    }
  }
  float shifts[DEPTH - 1][2];
#pragma unroll
  for (int i = 0; i < DEPTH - 1; ++i) {
    const bool biased = biases[i] != nullptr;
    shifts[i][0] = biased && first + g < widths[i] ? biases[i][first + g] : 0.0f;
    shifts[i][1] = biased && first + g + 8 < widths[i] ? biases[i][first + g + 8] : 0.0f;
  }

  // Forward. What a warp gave out of each layer stays with it, for the slopes.
  unsigned int outputs[DEPTH - 1][2];
  unsigned int weights[kTiles][4];
#pragma unroll
  for (int i = 0; i < DEPTH - 1; ++i) {
    if (i > 0) {
      product<kTiles>(z, weights, vectors + (i - 1) % 2 * Plan::kVector, lane);
    }
    outputs[i][0] = pack_pair<T>(activate<ACTIVATION>(z[0] + shifts[i][0]),
                                 activate<ACTIVATION>(z[1] + shifts[i][0]));
    outputs[i][1] = pack_pair<T>(activate<ACTIVATION>(z[2] + shifts[i][1]),
                                 activate<ACTIVATION>(z[3] + shifts[i][1]));
    T* const vector = vectors + i % 2 * Plan::kVector + (first + g) * kRows + 2 * t;
    *reinterpret_cast<unsigned int*>(vector) = outputs[i][0];
    *reinterpret_cast<unsigned int*>(vector + 8 * kRows) = outputs[i][1];
    T* const kept =
        activations + static_cast<long long>(i * WIDTH + first + g) * ldactivations + column;
    *reinterpret_cast<unsigned int*>(kept) = outputs[i][0];
    *reinterpret_cast<unsigned int*>(kept + static_cast<long long>(8) * ldactivations) =
        outputs[i][1];
    if (i < Plan::kLayers) {
      // Groups of copies behind this layer's: those of the first slots and the head, then one for
      // each layer that took over a slot.
      const int reused = Plan::kLayers > Plan::kSlots ? min(i, Plan::kLayers - Plan::kSlots) : 0;
      const int group = i < Plan::kSlots ? i : i + 1;
      await_copies(Plan::kSlots + 1 + reused - 1 - group);
      __syncwarp();
      T* const slot = elements + i % Plan::kSlots * WIDTH * Plan::kPitch;
      load_weights<false>(weights, slot, Plan::kPitch, first, lane);
      if (i + Plan::kSlots < Plan::kLayers) {
        __syncwarp();
        const int next = i + Plan::kSlots;
        fetch<T, WIDTH>(slot, Plan::kPitch, copies[next], pitches[next], widths[next + 1],
                        widths[next], first, lane);
        close_copies();
      }
      __syncthreads();
    }
  }

  // The head: each warp multiplies its own 16 features, which only its lanes wrote.
  await_copies(0);
  __syncwarp();
  {
    const T* const own = vectors + (DEPTH - 2) % 2 * Plan::kVector + first * kRows;
    unsigned int words[4];
    load_matrices<true>(words, own + lane % 16 * kRows);
#pragma unroll
    for (int tile = 0; tile < HEAD; ++tile) {
      unsigned int rows[4];
      load_matrices<false>(rows, head + (16 * tile + lane % 16) * Plan::kPitch + first +
                                     lane / 16 * 8);
      float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      multiply<T>(sum, rows, words[0], words[1]);
      float* const score =
          scores + (warp * kRows + 2 * t) * Plan::kScorePitch + 16 * tile + g;
      score[0] = sum[0];
      score[Plan::kScorePitch] = sum[1];
      score[8] = sum[2];
      score[Plan::kScorePitch + 8] = sum[3];
    }
  }
  __syncthreads();

  // Softmax and its gradient: a warp a row, a lane for every 32nd class.
  constexpr int kOwnClasses = (Plan::kClasses + 31) / 32;
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
    const int row = warp + i * kTiles;
    if (row < kRows) {
      float value[kOwnClasses];
      float largest = -infinity();
#pragma unroll
      for (int j = 0; j < kOwnClasses; ++j) {
        const int c = 32 * j + lane;
        value[j] = -infinity();
        if (c < classes) {
          float sum = biases[DEPTH - 1] != nullptr ? biases[DEPTH - 1][c] : 0.0f;
#pragma unroll
          for (int part = 0; part < kTiles; ++part) {
            sum += scores[(part * kRows + row) * Plan::kScorePitch + c];
          }
          value[j] = sum;
        }
        largest = fmaxf(largest, value[j]);
      }
      largest = warp_max(largest);
      float e[kOwnClasses];
      float total = 0.0f;
#pragma unroll
      for (int j = 0; j < kOwnClasses; ++j) {
        e[j] = 32 * j + lane < classes ? expf(value[j] - largest) : 0.0f;
        total += e[j];
      }
      total = warp_sum(total);
      const float share = begin + row < batch ? __fdividef(1.0f, static_cast<float>(batch)) : 0.0f;
      int best = classes;
#pragma unroll
      for (int j = kOwnClasses - 1; j >= 0; --j) {
        const int c = 32 * j + lane;
        const float p = __fdividef(e[j], total);
        if (c < Plan::kClasses) {
          const float gradient = c < classes ? (p - (c == label[i] ? 1.0f : 0.0f)) * share : 0.0f;
          head_gradient[c * kRows + row] = from_float<T>(gradient);
        }
        if (c < classes && value[j] == largest) best = c;
        if (c < classes && c == label[i] && begin + row < batch) {
          row_loss[begin + row] = negative_log(p);
        }
      }
#pragma unroll
      for (int step = 16; step > 0; step /= 2) {
        best = min(best, __shfl_xor_sync(kFullWarp, best, step));
      }
      if (lane == 0 && begin + row < batch) {
        // All probabilities are NaN where one score was: the first maximum is then at 0.
        row_correct[begin + row] = (total == total ? best : 0) == label[i] ? 1 : 0;
        if (label[i] < 0 || label[i] >= classes) row_loss[begin + row] = not_a_number();
      }
    }
  }

  // Backward, from the head's gradient down to the first layer's.
  unsigned int head_weights[HEAD][4];
  load_weights<true>(head_weights, head, Plan::kPitch, first, lane);
  if constexpr (Plan::kLayers > 0) {
    load_weights<true>(weights, elements + (Plan::kLayers - 1) % Plan::kSlots * WIDTH * Plan::kPitch,
                       Plan::kPitch, first, lane);
  }
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < Plan::kClasses; c += 2 * WIDTH) {
    *reinterpret_cast<uint4*>(
        gradients + (static_cast<long long>(DEPTH - 1) * WIDTH + c) * ldgradients + begin) =
        *reinterpret_cast<const uint4*>(head_gradient + c * kRows);
  }
#pragma unroll
  for (int i = DEPTH - 2; i >= 0; --i) {  // to the gradient of layer i + 1
    if (i == DEPTH - 2) {
#pragma unroll
      for (int j = 0; j < 4; ++j) z[j] = 0.0f;
#pragma unroll
      for (int tile = 0; tile < HEAD; ++tile) {
        unsigned int words[4];
        load_matrices<true>(words, head_gradient + (16 * tile + lane % 16) * kRows);
        multiply<T>(z, head_weights[tile], words[0], words[1]);
      }
    } else {
      product<kTiles>(z, weights, vectors + i % 2 * Plan::kVector, lane);
    }
    const float2 low = unpack_pair<T>(outputs[i][0]);
    const float2 high = unpack_pair<T>(outputs[i][1]);
    const unsigned int words[2] = {
        pack_pair<T>(through<ACTIVATION>(z[0], low.x), through<ACTIVATION>(z[1], low.y)),
        pack_pair<T>(through<ACTIVATION>(z[2], high.x), through<ACTIVATION>(z[3], high.y)),
    };
    T* const kept =
        gradients + static_cast<long long>(i * WIDTH + first + g) * ldgradients + column;
    *reinterpret_cast<unsigned int*>(kept) = words[0];
    *reinterpret_cast<unsigned int*>(kept + static_cast<long long>(8) * ldgradients) = words[1];
    if (i > 0) {
      T* const vector = vectors + (i - 1) % 2 * Plan::kVector + (first + g) * kRows + 2 * t;
      *reinterpret_cast<unsigned int*>(vector) = words[0];
      *reinterpret_cast<unsigned int*>(vector + 8 * kRows) = words[1];
      if (i < DEPTH - 2) {
        // The next layer's weights: still in shared memory, or fetched again into the slot of the
        // layer that all warps have read.
        const int next = i - 1;
        T* const slot = elements + next % Plan::kSlots * WIDTH * Plan::kPitch;
        if (next < Plan::kLayers - Plan::kSlots) {
          await_copies(0);
          __syncthreads();
        }
        load_weights<true>(weights, slot, Plan::kPitch, first, lane);
      }
      __syncthreads();
      if (i - 1 >= Plan::kSlots) {
        const int next = i - 1 - Plan::kSlots;
        fetch<T, WIDTH>(elements + next % Plan::kSlots * WIDTH * Plan::kPitch, Plan::kPitch,
                        copies[next], pitches[next], widths[next + 1], widths[next], first, lane);
        close_copies();
      }
    }
  }
}

// ---- the first layer, and the updates of all ----------------------------------------------------

constexpr float kMagic = 8388608.0f;  // 2^23: a byte in the lowest place of its mantissa adds itself

template <int BYTE>
__device__ __forceinline__ float pixel(unsigned int word) {
  return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440u + BYTE)) - kMagic;
}

// 4 neighbouring pixels of a row from `feature` on, zeros from `features` on.
__device__ __forceinline__ unsigned int load_pixels(const unsigned char* __restrict__ row,
                                                    int feature, int features, bool vector) {
  unsigned int word = 0u;
  if (vector && feature + 4 <= features) {
    word = *reinterpret_cast<const unsigned int*>(row + feature);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (feature + i < features) word |= static_cast<unsigned int>(row[feature + i]) << (8 * i);
    }
  }
  return word;
}

// The rows of a batch: where the data set has them, in an order or one after another.
struct Rows {
  const unsigned char* images;
  const int* order;
  long long first;
  int ld, batch;
  __device__ __forceinline__ const unsigned char* operator()(int row) const {
    const long long at = first + min(row, batch - 1);
    return images + static_cast<long long>(order != nullptr ? order[at] : at) * ld;
  }
};

// A warp's piece of a weight matrix: 16 rows x 32 columns. Lane (g, t) holds the columns
// 8t .. 8t + 7 of the rows g and g + 8.
struct Piece {
  float values[2][8];

  __device__ __forceinline__ void load(const float* w, int ld, int row, int col, int rows,
                                       int cols) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float* from = w + static_cast<long long>(row + 8 * half) * ld + col;
#pragma unroll
      for (int quad = 0; quad < 2; ++quad) {
        const int left = row + 8 * half < rows ? cols - col - 4 * quad : 0;
        float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (left >= 4) {
          four = *reinterpret_cast<const float4*>(from + 4 * quad);
        } else if (left > 0) {
          four.x = from[4 * quad];
          if (left > 1) four.y = from[4 * quad + 1];
          if (left > 2) four.z = from[4 * quad + 2];
        }
        values[half][4 * quad] = four.x;
        values[half][4 * quad + 1] = four.y;
        values[half][4 * quad + 2] = four.z;
        values[half][4 * quad + 3] = four.w;
      }
    }
  }

  // w -= rate * (gradient + decay * w); sums[i] is the product's tile i, whose column j is the
  // piece's column 4j + i.
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
    for (int half = 0; half < 2; ++half) {
      const int at = row + 8 * half;
      const int left = at < rows ? cols - col : 0;
      const float* const v = values[half];
      float* const to = w + static_cast<long long>(at) * ld + col;
      T* const rounded = copy + static_cast<long long>(at) * ldcopy + col;
      if (left >= 8) {
        *reinterpret_cast<float4*>(to) = make_float4(v[0], v[1], v[2], v[3]);
        *reinterpret_cast<float4*>(to + 4) = make_float4(v[4], v[5], v[6], v[7]);
        if (copy != nullptr) store_values(rounded, values[half]);
      } else {
#pragma unroll
        for (int i = 0; i < 7; ++i) {
          if (i < left) to[i] = v[i];
          if (i < left && copy != nullptr) rounded[i] = from_float<T>(v[i]);
        }
      }
    }
  }
};

// Lane (g, t)'s part of [16, 32] gradients or of 32 rows of a batch by 32 features: 8 neighbouring
// batch rows of a feature.
template <typename T>
__device__ __forceinline__ void load_eight(unsigned int (&words)[4], const T* from, bool exists) {
  uint4 eight = make_uint4(0u, 0u, 0u, 0u);
  if (exists) eight = *reinterpret_cast<const uint4*>(from);
  words[0] = eight.x;
  words[1] = eight.y;
  words[2] = eight.z;
  words[3] = eight.w;
}

// sums += gradients [16, 32 batch rows] * inputs [32 batch rows, 8]: lane (g, t) brings the batch rows
// 8t .. 8t + 7 of the gradients' rows g and g + 8 and of the inputs' column g.
template <typename T>
__device__ __forceinline__ void accumulate(float (&sum)[4], const unsigned int (&low)[4],
                                           const unsigned int (&high)[4],
                                           const unsigned int (&inputs)[4]) {
  const unsigned int first[4] = {low[0], high[0], low[1], high[1]};
  const unsigned int second[4] = {low[2], high[2], low[3], high[3]};
  multiply<T>(sum, first, inputs[0], inputs[1]);
  multiply<T>(sum, second, inputs[2], inputs[3]);
}

template <typename T>
__device__ __forceinline__ float sum_of_words(const unsigned int (&words)[4]) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = unpack_pair<T>(words[i]);
    sum += pair.x + pair.y;
  }
  return sum;
}

// The bias of rows g and g + 8: `low` and `high` are the lanes' sums over their batch rows.
__device__ __forceinline__ void update_bias(float* bias, float low, float high, int row, int rows,
                                            float rate, float decay, int t) {
#pragma unroll
  for (int step = 2; step > 0; step /= 2) {
    low += __shfl_xor_sync(kFullWarp, low, step);
    high += __shfl_xor_sync(kFullWarp, high, step);
  }
  if (t != 0) return;
  if (row < rows) bias[row] -= rate * (low + decay * bias[row]);
  if (row + 8 < rows) bias[row + 8] -= rate * (high + decay * bias[row + 8]);
}

template <typename T, int DEPTH, bool UPDATE, bool FORWARD>
__global__ void __launch_bounds__(256)
    narrow_weights(const unsigned char* __restrict__ images, int ldimages,
                   const int* __restrict__ order, const int* __restrict__ cursor,
                   const float* __restrict__ rates, float* w1, int ldw1, float* w2, int ldw2,
                   float* w3, int ldw3, float* w4, int ldw4, float* w5, int ldw5, float* w6,
                   int ldw6, T* c1, int ldc1, T* c2, int ldc2, T* c3, int ldc3, T* c4, int ldc4,
                   T* c5, int ldc5, T* c6, int ldc6, float* b1, float* b2, float* b3, float* b4,
                   float* b5, float* b6, const T* activations, int ldactivations,
                   const T* gradients, int ldgradients, float* partial, int ldpartial,
                   const float* row_loss, const int* row_correct, float* loss, int* correct,
                   int offset, int stride, float scale, float lr, float decay, int splits,
                   int width, int batch, int features, int width1, int width2, int width3,
                   int width4, int width5, int width6) {
  unsigned char* const shared = dynamic_shared();
  float* const masters[] = {w1, w2, w3, w4, w5, w6};
  const int pitches[] = {ldw1, ldw2, ldw3, ldw4, ldw5, ldw6};
  T* const copies[] = {c1, c2, c3, c4, c5, c6};
  const int copy_pitches[] = {ldc1, ldc2, ldc3, ldc4, ldc5, ldc6};
  float* const biases[] = {b1, b2, b3, b4, b5, b6};
  const int widths[] = {width1, width2, width3, width4, width5, width6};

  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int block = static_cast<int>(blockIdx.x);
  const int parts = (batch + 31) / 32;  // of the batch
  const int bands = (width1 + 15) / 16;
  const int step = current_step(cursor, offset);
  float rate = lr;
  if (UPDATE && rates != nullptr) rate = rates[step];

  if (block < bands * splits) {
    // 16 rows of the first layer's weights, a piece a warp.
    const int band = block / splits;
    const int split = block % splits;
    const int index = split * warps + warp;
    const bool working = 32 * index < features;
    const int row = 16 * band + g;
    const int col = 32 * index + 8 * t;
    const bool vector = aligned(images, ldimages, 4);
    const Rows now{images, order, static_cast<long long>(step) * stride, ldimages, batch};
    const Rows next{images, order, static_cast<long long>(step + (UPDATE ? 1 : 0)) * stride,
                    ldimages, batch};
    const auto load_now = [&](unsigned int(&pixels)[8], int part) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        pixels[i] = load_pixels(now(32 * part + 8 * t + i), 32 * index + 4 * g, features, vector);
      }
    };
    const auto load_next = [&](unsigned int(&pixels)[8], int part) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int from = 32 * part + i / 2 * 8 + g;
        const unsigned int word = load_pixels(next(from), col + i % 2 * 4, features, vector);
        pixels[i] = from < batch ? word : 0u;
      }
    };

    // What no kernel directly before this one writes is loaded ahead of its end.
    if constexpr (!UPDATE) {
      pdl_wait();
      pdl_trigger();
    }
    Piece piece;
    unsigned int pixels[8], ahead[8];
    if (working) {
      piece.load(w1, ldw1, row, col, width1, features);
      if constexpr (UPDATE) load_now(pixels, 0);
      if constexpr (FORWARD) load_next(ahead, 0);
    }
    if constexpr (UPDATE) {
      pdl_wait();
      pdl_trigger();
      if (working) {
        float sums[4][4];
#pragma unroll
        for (int i = 0; i < 16; ++i) sums[i / 4][i % 4] = 0.0f;
        float low_sum = 0.0f, high_sum = 0.0f;
#pragma unroll 1
        for (int part = 0; part < parts; ++part) {
          const int from = 32 * part + 8 * t;
          unsigned int low[4], high[4];
          const T* const gradient = gradients + static_cast<long long>(row) * ldgradients + from;
          load_eight(low, gradient, from < ldgradients);
          load_eight(high, gradient + static_cast<long long>(8) * ldgradients, from < ldgradients);
          unsigned int later[8];
          if (part + 1 < parts) load_now(later, part + 1);
          unsigned int inputs[4][4];
#pragma unroll
          for (int pair = 0; pair < 4; ++pair) {
            const unsigned int even = pixels[2 * pair];
            const unsigned int odd = pixels[2 * pair + 1];
            inputs[0][pair] = pack_pair<T>(pixel<0>(even), pixel<0>(odd));
            inputs[1][pair] = pack_pair<T>(pixel<1>(even), pixel<1>(odd));
            inputs[2][pair] = pack_pair<T>(pixel<2>(even), pixel<2>(odd));
            inputs[3][pair] = pack_pair<T>(pixel<3>(even), pixel<3>(odd));
          }
          low_sum += sum_of_words<T>(low);
          high_sum += sum_of_words<T>(high);
#pragma unroll
          for (int i = 0; i < 4; ++i) accumulate<T>(sums[i], low, high, inputs[i]);
#pragma unroll
          for (int i = 0; i < 8; ++i) pixels[i] = later[i];
        }
        piece.update(sums, scale, rate, decay);
        piece.store(w1, ldw1, c1, ldc1, row, col, width1, features);
        if (index == 0 && b1 != nullptr) {
          update_bias(b1, low_sum, high_sum, row, width1, rate, decay, t);
        }
      }
    }
    if constexpr (FORWARD) {
      unsigned int weights[2][4];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float* const v = piece.values[i % 2] + i / 4 * 4 + i % 4 / 2 * 2;
        weights[i / 4][i % 4] = pack_pair<T>(v[0], v[1]);
      }
      float* const sums = reinterpret_cast<float*>(shared);
#pragma unroll 1
      for (int part = 0; part < parts; ++part) {
        float scores[4][4];
#pragma unroll
        for (int i = 0; i < 16; ++i) scores[i / 4][i % 4] = 0.0f;
        if (working) {
          unsigned int later[8];
          if (part + 1 < parts) load_next(later, part + 1);
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            multiply<T>(scores[i / 2], weights[i % 2],
                        pack_pair<T>(pixel<0>(ahead[i]), pixel<1>(ahead[i])),
                        pack_pair<T>(pixel<2>(ahead[i]), pixel<3>(ahead[i])));
          }
#pragma unroll
          for (int i = 0; i < 8; ++i) ahead[i] = later[i];
        }
        if (part > 0) __syncthreads();
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float* const to = sums + warp * 512 + g * 32 + 8 * i + 2 * t;
          *reinterpret_cast<float2*>(to) = make_float2(scores[i][0], scores[i][1]);
          *reinterpret_cast<float2*>(to + 256) = make_float2(scores[i][2], scores[i][3]);
        }
        __syncthreads();
        for (int i = static_cast<int>(threadIdx.x); i < 512; i += 32 * warps) {
          const int out = 16 * band + i / 32;
          const int column = 32 * part + i % 32;
          float sum = 0.0f;
          for (int other = 0; other < warps; ++other) sum += sums[other * 512 + i];
          if (out < width1 && column < ldpartial) {
            partial[(static_cast<long long>(split) * width1 + out) * ldpartial + column] =
                sum * scale;
          }
        }
      }
    }
    return;
  }

  if constexpr (UPDATE) {
    pdl_wait();
    pdl_trigger();
    // The other layers: a warp a piece; the metrics behind them.
    int piece_index = (block - bands * splits) * warps + warp;
#pragma unroll
    for (int layer = 1; layer < DEPTH; ++layer) {
      const int across = (widths[layer - 1] + 31) / 32;
      const int pieces = (widths[layer] + 15) / 16 * across;
      if (piece_index >= 0 && piece_index < pieces) {
        const int row = piece_index / across * 16 + g;
        const int begin = piece_index % across * 32;
        const int col = begin + 8 * t;
        Piece piece;
        piece.load(masters[layer], pitches[layer], row, col, widths[layer], widths[layer - 1]);
        float sums[4][4];
#pragma unroll
        for (int i = 0; i < 16; ++i) sums[i / 4][i % 4] = 0.0f;
        float low_sum = 0.0f, high_sum = 0.0f;
#pragma unroll 1
        for (int part = 0; part < parts; ++part) {
          const int from = 32 * part + 8 * t;
          const T* const gradient =
              gradients + static_cast<long long>(layer * width + row) * ldgradients + from;
          const T* const input = activations + from +
                                 static_cast<long long>((layer - 1) * width + begin + 4 * g) *
                                     ldactivations;
          unsigned int low[4], high[4], inputs[4][4];
          load_eight(low, gradient, from < ldgradients);
          load_eight(high, gradient + static_cast<long long>(8) * ldgradients, from < ldgradients);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            load_eight(inputs[i], input + static_cast<long long>(i) * ldactivations,
                       from < ldactivations);
          }
          low_sum += sum_of_words<T>(low);
          high_sum += sum_of_words<T>(high);
#pragma unroll
          for (int i = 0; i < 4; ++i) accumulate<T>(sums[i], low, high, inputs[i]);
        }
        piece.update(sums, 1.0f, rate, decay);
        piece.store(masters[layer], pitches[layer], copies[layer], copy_pitches[layer], row, col,
                    widths[layer], widths[layer - 1]);
        if (begin == 0 && biases[layer] != nullptr) {
          update_bias(biases[layer], low_sum, high_sum, row, widths[layer], rate, decay, t);
        }
      }
      piece_index -= pieces;
    }
    if (piece_index == 0) {
      float sum = 0.0f;
      int right = 0;
      for (int row = lane; row < batch; row += 32) {
        sum += row_loss[row];
        right += row_correct[row];
      }
      sum = warp_sum(sum);
#pragma unroll
      for (int half = 16; half > 0; half /= 2) right += __shfl_xor_sync(kFullWarp, right, half);
      if (lane == 0) {
        loss[step] = sum / static_cast<float>(batch);
        correct[step] = right;
      }
    }
  }
}
