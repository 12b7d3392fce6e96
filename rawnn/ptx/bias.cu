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
// sums take one block a column (grid.x >= cols), any block of up to 1024 threads: 128 suits batches of
// 64 and more. With fewer blocks, ceil(cols / 32) of them of a multiple of 32 threads (256), a block
// sums 32 columns and reads whole sectors: faster from some 256 columns on. The order of a sum depends
// on the launch alone, so results repeat bit for bit.
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

// The column this thread reports, or -1, and its sum. All threads of the block must call it.
template <typename T>
__device__ __forceinline__ int column_sum(const T* __restrict__ dz, int lddz, int rows, int cols,
                                          float& sum) {
  const int thread = static_cast<int>(threadIdx.x);
  const int block = static_cast<int>(blockIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  sum = 0.0f;
  if (static_cast<int>(gridDim.x) >= cols) {
    if (block >= cols) return -1;
    for (int row = thread; row < rows; row += threads) sum += to_float(*at(dz, lddz, row, block));
    sum = block_sum(sum);
    return thread == 0 ? block : -1;
  }
  __shared__ float partial[32][33];
  const int lane = thread & 31;
  const int warps = threads / 32;
  const int column = 32 * block + lane;
  if (column < cols) {
#pragma unroll 4
    for (int row = thread / 32; row < rows; row += warps) {
      sum += to_float(*at(dz, lddz, row, column));
    }
  }
  partial[thread / 32][lane] = sum;
  __syncthreads();
  if (thread >= 32 || column >= cols) return -1;
  sum = 0.0f;
  for (int warp = 0; warp < warps; ++warp) sum += partial[warp][lane];
  return column;
}

template <typename TD>
__global__ void bias_grad(const TD* __restrict__ dz, int lddz, float* __restrict__ db, int rows,
                          int cols) {
  pdl_wait();
  pdl_trigger();
  float sum;
  const int column = column_sum(dz, lddz, rows, cols, sum);
  if (column >= 0) db[column] = sum;
}

template <typename TD>
__global__ void bias_sgd(const TD* __restrict__ dz, int lddz, float* __restrict__ bias,
                         const float* __restrict__ rates, const int* __restrict__ cursor,
                         const float* __restrict__ loss_scale, const int* __restrict__ overflow,
                         int rows, int cols, float lr, float decay, int offset) {
  pdl_wait();
  pdl_trigger();
  if (left_out(overflow)) return;
  const float rate = learning_rate(lr, rates, cursor, offset);
  const float factor = unscale(loss_scale);
  // Early, beside the loads of dz, in the launch that is for latency.
  const int early = min(static_cast<int>(blockIdx.x), cols - 1);
  const float before_early = bias[early];
  float sum;
  const int column = column_sum(dz, lddz, rows, cols, sum);
  if (column < 0) return;
  const float before = column == early ? before_early : bias[column];
  bias[column] = before - rate * (factor * sum + decay * before);
}
