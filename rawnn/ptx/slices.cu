// sum_slices, slices_sgd: what follows a product whose inner dimension was cut into slices.
//
// sum_slices joins a product whose inner dimension was cut into slices.
//
//   c[r, j] = act(sum over s of partial[s*rows + r, j] + bias[j])
//   partial: [slices * rows, cols], pitch ldpartial; bias [cols] is read only where BIAS;
//   act is the rectifier where RELU (a NaN stays a NaN).
//
// Used by `cublas` where a long inner dimension meets few outputs: one strided-batched product
// computes all slices side by side, and this adds them up in a fixed order, so that results repeat
// bit for bit. Launch: one thread an output in one dimension, blocks of up to 256 threads: small ones,
// such as ceil(rows * cols / 64) of 64, spread over more multiprocessors.
// Limit: latency, one trip to the L2 cache for every 32 slices.
#include "common.cuh"

constexpr int kSlicesInFlight = 32;

template <typename T, bool BIAS, bool RELU>
__global__ void __launch_bounds__(256)
    sum_slices(const T* __restrict__ partial, int ldpartial, const T* __restrict__ bias,
               T* __restrict__ c, int ldc, int slices, int rows, int cols) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= rows * cols) return;
  const int row = i / cols;
  const int column = i - row * cols;
  const long long slice = static_cast<long long>(rows) * ldpartial;
  const T* in = partial + static_cast<long long>(row) * ldpartial + column;
  float shift = 0.0f;
  if (BIAS) shift = static_cast<float>(bias[column]);

  // Four sums, so that an addition does not wait for the one before it.
  float sums[4] = {shift, 0.0f, 0.0f, 0.0f};
  for (int left = slices; left > 0; left -= kSlicesInFlight) {
    float values[kSlicesInFlight];
#pragma unroll
    for (int s = 0; s < kSlicesInFlight; ++s) {
      values[s] = s < left ? static_cast<float>(*in) : 0.0f;
      in += slice;
    }
#pragma unroll
    for (int s = 0; s < kSlicesInFlight; ++s) sums[s % 4] += values[s];
  }
  float result = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  if (RELU) result = result < 0.0f ? 0.0f : result;
  c[static_cast<long long>(row) * ldc + column] = static_cast<T>(result);
}

// slices_sgd: the SGD update of a layer whose weight gradient was cut into slices.
//
//   w[r, j] -= lr * sum over s of partial[s*rows + r, j];  bias[r] -= lr * sum over b of dz[b, r]
//   partial: [slices * rows, cols]; w: [rows, cols]; dz: [batch, rows]
//   *cursor += steps, unless cursor is null: the end of a graph's step without a node of its own
//
// Used by `fuse` with `cublas`: one kernel in place of the products' sum, the bias gradient and two
// updates. Launch: ceil(rows * cols / blockDim.x) + rows blocks of one dimension, at most 256
// threads in whole warps; each of the last `rows` blocks updates one bias.
// Limit: latency, as above.

template <typename T>
__global__ void __launch_bounds__(256)
    slices_sgd(const T* __restrict__ partial, int ldpartial, T* __restrict__ w, int ldw, int slices,
               int rows, int cols, float lr, const T* __restrict__ dz, int lddz,
               T* __restrict__ bias, int batch, int* cursor, int steps) {
  if (cursor != nullptr && blockIdx.x == 0 && threadIdx.x == 0) *cursor += steps;
  const int weight_blocks = static_cast<int>(gridDim.x) - rows;
  const int block = static_cast<int>(blockIdx.x);
  if (block >= weight_blocks) {
    const int row = block - weight_blocks;
    const float before = static_cast<float>(bias[row]);  // early: beside the loads of dz
    float sum = 0.0f;
    for (int b = static_cast<int>(threadIdx.x); b < batch; b += static_cast<int>(blockDim.x)) {
      sum += static_cast<float>(dz[static_cast<long long>(b) * lddz + row]);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) bias[row] = static_cast<T>(before - lr * sum);
    return;
  }
  const int i = block * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
  if (i >= rows * cols) return;
  const int row = i / cols;
  const int column = i - row * cols;
  T* const weight = w + static_cast<long long>(row) * ldw + column;
  const float before = static_cast<float>(*weight);
  const long long slice = static_cast<long long>(rows) * ldpartial;
  const T* in = partial + static_cast<long long>(row) * ldpartial + column;
  float sum = 0.0f;
#pragma unroll 8
  for (int s = 0; s < slices; ++s) sum += static_cast<float>(in[s * slice]);
  *weight = static_cast<T>(before - lr * sum);
}
