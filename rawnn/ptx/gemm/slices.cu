// sum_slices, slices_sgd: complete a GEMM whose inner dimension was split into slices (split-K).
//
// sum_slices adds the slices up.
//
//   c[r, j] = act(sum over s of partial[s*rows + r, j] + bias[j])
//   partial: [slices * rows, cols], pitch ldpartial; bias [cols], float32, is read only if BIAS
//
// template <TP, TC, BIAS, ACTIVATION>: storage types of partial and c, a bool, and None, Relu, Tanh or
// Gelu (activations.cuh). Scalars: slices, rows, cols.
// Used by `cublas` for a long inner dimension with few outputs: one strided-batched GEMM computes all
// slices concurrently, and this kernel adds them up in a fixed order, so that results repeat bit for bit.
// Launch: one thread for each output in one dimension, blocks of up to 256 threads. Small blocks, such as
// ceil(rows * cols / 64) of 64, use more multiprocessors.
// Limit: latency, one access to the L2 cache for every 32 slices.
#include "elementwise/activations.cuh"
#include "optimizers/updates.cuh"

template <typename TP, typename TC, bool BIAS, typename ACTIVATION>
__global__ void __launch_bounds__(256)
    sum_slices(const TP* __restrict__ partial, int ldpartial, const float* __restrict__ bias,
               TC* __restrict__ c, int ldc, int slices, int rows, int cols) {
  pdl_wait();
  pdl_trigger();
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= rows * cols) return;
  const int row = i / cols;
  const int column = i - row * cols;
  const long long slice = static_cast<long long>(rows) * ldpartial;
  const TP* in = at(partial, ldpartial, row, column);
  const float shift = BIAS ? bias[column] : 0.0f;

  constexpr int in_flight = 32;
  // Four sums, so that an addition does not wait for the previous one.
  float sums[4] = {shift, 0.0f, 0.0f, 0.0f};
  for (int left = slices; left > 0; left -= in_flight) {
    float values[in_flight];
#pragma unroll
    for (int s = 0; s < in_flight; ++s) {
      values[s] = s < left ? to_float(*in) : 0.0f;
      in += slice;
    }
#pragma unroll
    for (int s = 0; s < in_flight; ++s) sums[s % 4] += values[s];
  }
  const float result = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  *at(c, ldc, row, column) = from_float<TC>(ACTIVATION::apply(result));
}

// slices_sgd: the SGD update of a layer whose weight gradient was split into slices.
//
//   w[r, j] -= lr * (sum over s of partial[s*rows + r, j] + decay * w);  copy = round(w)
//   bias[r] -= lr * (sum over b of dz[b, r] + decay * bias)
//   partial: [slices * rows, cols]; w: [rows, cols]; dz: [batch, rows]; float32 except dz and copy
//   *cursor += steps if steps > 0: ends a graph's step without a node of its own
//   copy and rates (updates.cuh) may be null; with rates, steps must be 0 (a block may still read
//   the cursor that another advances)
//
// template <TD, TC>: storage types of dz and copy (float unless given). Scalars: slices, rows, cols, batch, lr, decay,
// offset, steps.
// Used by `fuse` with `cublas`: one kernel instead of the sum of slices, the bias gradient and two
// updates. Launch: ceil(rows * cols / blockDim.x) + rows blocks of one dimension, at most 256
// threads in whole warps; each of the last `rows` blocks updates one bias.
// Limit: latency, as above.

template <typename TD, typename TC = float>
__global__ void __launch_bounds__(256)
    slices_sgd(const float* __restrict__ partial, int ldpartial, float* __restrict__ w, int ldw,
               TC* __restrict__ copy, int ldcopy, int slices, int rows, int cols,
               const float* __restrict__ rates, float lr, float decay, int offset,
               const TD* __restrict__ dz, int lddz, float* __restrict__ bias, int batch,
               int* cursor, int steps) {
  pdl_wait();
  pdl_trigger();
  const float rate = learning_rate(lr, rates, cursor, offset);
  if (cursor != nullptr && steps > 0 && blockIdx.x == 0 && threadIdx.x == 0) *cursor += steps;
  const int weight_blocks = static_cast<int>(gridDim.x) - rows;
  const int block = static_cast<int>(blockIdx.x);
  if (block >= weight_blocks) {
    const int row = block - weight_blocks;
    const float before = bias[row];  // early, to overlap with the loads of dz
    float sum = 0.0f;
    for (int b = static_cast<int>(threadIdx.x); b < batch; b += static_cast<int>(blockDim.x)) {
      sum += to_float(*at(dz, lddz, b, row));
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) bias[row] = before - rate * (sum + decay * before);
    return;
  }
  const int i = block * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
  if (i >= rows * cols) return;
  const int row = i / cols;
  const int column = i - row * cols;
  float* const weight = at(w, ldw, row, column);
  const float before = *weight;
  const long long slice = static_cast<long long>(rows) * ldpartial;
  const float* in = at(partial, ldpartial, row, column);
  float sum = 0.0f;
#pragma unroll 8
  for (int s = 0; s < slices; ++s) sum += in[s * slice];
  const float after = before - rate * (sum + decay * before);
  *weight = after;
  if (copy != nullptr) *at(copy, ldcopy, row, column) = from_float<TC>(after);
}
