// bias_add, bias_grad, bias_sgd: a layer's bias.
//
//   bias_add:  z[rows, cols] += bias[cols]
//   bias_grad: db[c] = sum over r of dz[r, c]
//   bias_sgd:  bias[c] -= lr * (sum over r of dz[r, c] / loss_scale[0] + decay * bias[c])
//
// bias and db are dense float32. What bias_sgd's optional operands mean: updates.cuh (rates, cursor,
// loss_scale, overflow). template <TZ> or <TD>: storage type of z or dz. Scalars: rows, cols; bias_sgd
// lr, decay, offset as well.
// Used by the layer-by-layer step; `fuse` takes bias_sgd in place of bias_grad and sgd.
// Launch: one dimension. bias_add any size (grid-stride); a thread takes 16 bytes of z. The column
// sums take one block a column (grid.x = cols), any block of up to 1024 threads: 128 suits batches of
// 64 and more. Blocks of 32 columns, which read whole sectors, were slower on an H200: 24 against
// 9 us at 1024 x 1000. The order of a sum depends on the launch alone, so results repeat bit for bit.
// Limit: bias_add device-memory traffic; the column sums latency, as a column is read with stride.
#include "updates.cuh"

template <typename TZ>
__global__ void bias_add(TZ* __restrict__ z, int ldz, const float* __restrict__ bias, int rows,
                         int cols) {
  pdl_wait();
  pdl_trigger();
  constexpr int N = vector_length<TZ>();
  const bool wide = vector_aligned<N>(z, ldz) && vector_aligned<N>(bias, N);
  for_vectors<N>(rows, cols, wide, [&](int row, int column, bool whole, int count) {
    TZ* const elements = at(z, ldz, row, column);
    float values[N];
    float shifts[N];
    load_part<N>(values, elements, whole, count);
    load_part<N>(shifts, bias + column, whole, count);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] += shifts[i];
    store_part<N>(elements, values, whole, count);
  });
}

// The sum of this block's column; valid in thread 0.
template <typename TD>
__device__ __forceinline__ float column_sum(const TD* __restrict__ dz, int lddz, int rows) {
  const int column = static_cast<int>(blockIdx.x);
  float sum = 0.0f;
  for (int row = static_cast<int>(threadIdx.x); row < rows; row += static_cast<int>(blockDim.x)) {
    sum += to_float(*at(dz, lddz, row, column));
  }
  return block_sum(sum);
}

template <typename TD>
__global__ void bias_grad(const TD* __restrict__ dz, int lddz, float* __restrict__ db, int rows,
                          int cols) {
  pdl_wait();
  pdl_trigger();
  if (static_cast<int>(blockIdx.x) >= cols) return;
  const float sum = column_sum(dz, lddz, rows);
  if (threadIdx.x == 0) db[blockIdx.x] = sum;
}

template <typename TD>
__global__ void bias_sgd(const TD* __restrict__ dz, int lddz, float* __restrict__ bias,
                         const float* __restrict__ rates, const int* __restrict__ cursor,
                         const float* __restrict__ loss_scale, const int* __restrict__ overflow,
                         int rows, int cols, float lr, float decay, int offset) {
  pdl_wait();
  pdl_trigger();
  if (static_cast<int>(blockIdx.x) >= cols || left_out(overflow)) return;
  const float rate = learning_rate(lr, rates, cursor, offset);
  const float before = bias[blockIdx.x];  // early: beside the loads of dz
  const float sum = unscale(loss_scale) * column_sum(dz, lddz, rows);
  if (threadIdx.x == 0) bias[blockIdx.x] = before - rate * (sum + decay * before);
}
