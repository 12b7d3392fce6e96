// bias_add, bias_grad, bias_sgd: a layer's bias.
//
//   bias_add:  z[rows, cols] += bias[cols]
//   bias_grad: db[c] = sum over r of dz[r, c]
//   bias_sgd:  bias[c] -= lr * sum over r of dz[r, c]        bias and db are dense
//
// Used by the layer-by-layer step; `fuse` takes bias_sgd in place of bias_grad and sgd.
// Launch: bias_add one dimension of any size (grid-stride over rows * cols). The column sums take
// one block a column (grid.x = cols), any block of up to 1024 threads; 128 suits batches of 64 and
// more. The order of a sum depends on the block size alone, so results repeat bit for bit.
// Limit: bias_add device-memory traffic; the column sums latency, as a column is read with stride.
#include "common.cuh"

template <typename T>
__global__ void bias_add(T* __restrict__ z, int ldz, const T* __restrict__ bias, int rows,
                         int cols) {
  const int stride = static_cast<int>(gridDim.x * blockDim.x);
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < rows * cols;
       i += stride) {
    const int row = i / cols;
    const int column = i - row * cols;
    T* element = z + static_cast<long long>(row) * ldz + column;
    *element = static_cast<T>(static_cast<float>(*element) + static_cast<float>(bias[column]));
  }
}

// The sum of this block's column; valid in thread 0.
template <typename T>
__device__ __forceinline__ float column_sum(const T* __restrict__ dz, int lddz, int rows) {
  float sum = 0.0f;
  for (int row = static_cast<int>(threadIdx.x); row < rows; row += static_cast<int>(blockDim.x)) {
    sum += static_cast<float>(dz[static_cast<long long>(row) * lddz + blockIdx.x]);
  }
  return block_sum(sum);
}

template <typename T>
__global__ void bias_grad(const T* __restrict__ dz, int lddz, T* __restrict__ db, int rows,
                          int cols) {
  if (static_cast<int>(blockIdx.x) >= cols) return;
  const float sum = column_sum(dz, lddz, rows);
  if (threadIdx.x == 0) db[blockIdx.x] = static_cast<T>(sum);
}

template <typename T>
__global__ void bias_sgd(const T* __restrict__ dz, int lddz, T* __restrict__ bias, int rows,
                         int cols, float lr) {
  if (static_cast<int>(blockIdx.x) >= cols) return;
  const float before = static_cast<float>(bias[blockIdx.x]);  // early: beside the loads of dz
  const float sum = column_sum(dz, lddz, rows);
  if (threadIdx.x == 0) bias[blockIdx.x] = static_cast<T>(before - lr * sum);
}
