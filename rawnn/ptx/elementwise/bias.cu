// bias_add, bias_grad, bias_sgd: a layer's bias.
//
//   bias_add:  z[rows, cols] += bias[cols]
//   bias_grad: db[c] = sum over r of dz[r, c]
//   bias_sgd:  bias[c] -= lr * (sum over r of dz[r, c] / loss_scale[0] + decay * bias[c])
//
// bias and db are dense float32. What bias_sgd's optional operands mean: updates.cuh (rates, cursor,
// loss_scale, overflow). template <TZ> or <TD>: storage type of z or dz. Scalars: rows, cols; bias_sgd
// lr, decay, offset as well.
// Used by the layer-by-layer step; `fuse` replaces bias_grad and sgd by bias_sgd.
// Launch: one dimension. bias_add any size (grid-stride); a thread processes 16 bytes of z. The sums of
// many columns use any number of blocks of whole warps, one for every 64 bytes of a row; fewer blocks
// loop. Each byte then leaves the L2 cache once, while a block for each column would read a sector of 32
// bytes for each element. Few columns are summed by grid.x >= cols blocks, one each, to occupy more of
// the GPU: 128 threads suit batches of 64 and more. The order of a sum depends on the launch alone, so
// results repeat bit for bit.
// Limit: bias_add device-memory traffic; the column sums latency, for wide matrices the L2 cache.
#include "optimizers/updates.cuh"

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

constexpr int kAcross = 4;  // vectors of a row that a block sums: 64 bytes, two sectors

// A thread's partial sums of `count` columns; a vector has N.
template <int N, typename TD>
__device__ __forceinline__ void add_rows(float (&sums)[N], const TD* __restrict__ from, int lddz,
                                         int rows, bool whole, int count) {
  const int step = static_cast<int>(blockDim.x) / kAcross;
  const int first = static_cast<int>(threadIdx.x) / kAcross;
  if (whole) {
#pragma unroll 4
    for (int row = first; row < rows; row += step) {
      float values[N];
      load_values<N>(values, at(from, lddz, row, 0));
#pragma unroll
      for (int i = 0; i < N; ++i) sums[i] += values[i];
    }
  } else {
    for (int row = first; row < rows; row += step) {
      float values[N];
      load_part<N>(values, at(from, lddz, row, 0), false, count);
#pragma unroll
      for (int i = 0; i < N; ++i) sums[i] += values[i];
    }
  }
}

// Calls body(column, sum) for each column, in one thread each. Blocks of whole warps process kAcross
// vectors of columns, and their threads divide the rows. Each warp sums its rows first, then the warps'
// sums are added in order.
template <typename TD, typename Body>
__device__ __forceinline__ void column_sums(const TD* __restrict__ dz, int lddz, int rows, int cols,
                                            Body body) {
  constexpr int N = vector_length<TD>();
  constexpr int kColumns = kAcross * N;
  __shared__ float partial[32][kColumns];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31;
  const bool wide = vector_aligned<N>(dz, lddz);
  for (int first = static_cast<int>(blockIdx.x) * kColumns; first < cols;
       first += static_cast<int>(gridDim.x) * kColumns) {
    const int column = first + lane % kAcross * N;
    const int count = max(min(N, cols - column), 0);
    float sums[N] = {};
    add_rows<N>(sums, dz + column, lddz, rows, wide && count == N, count);
#pragma unroll
    for (int step = kAcross; step < 32; step *= 2) {
#pragma unroll
      for (int i = 0; i < N; ++i) sums[i] += __shfl_xor_sync(kFullWarp, sums[i], step);
    }
    if (lane < kAcross) {
#pragma unroll
      for (int i = 0; i < N; ++i) partial[thread / 32][lane * N + i] = sums[i];
    }
    __syncthreads();
    if (thread < kColumns && first + thread < cols) {
      float sum = 0.0f;
      for (int warp = 0; warp < static_cast<int>(blockDim.x) / 32; ++warp) {
        sum += partial[warp][thread];
      }
      body(first + thread, sum);
    }
    __syncthreads();  // the next columns' partial sums use the same memory
  }
}

template <typename TD>
__global__ void bias_grad(const TD* __restrict__ dz, int lddz, float* __restrict__ db, int rows,
                          int cols) {
  pdl_wait();
  pdl_trigger();
  if (static_cast<int>(gridDim.x) < cols) {
    column_sums(dz, lddz, rows, cols, [&](int column, float sum) { db[column] = sum; });
    return;
  }
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
  if (left_out(overflow)) return;
  const float rate = learning_rate(lr, rates, cursor, offset);
  const float factor = unscale(loss_scale);
  const auto stepped = [&](float before, float sum) {
    return before - rate * (factor * sum + decay * before);
  };
  if (static_cast<int>(gridDim.x) < cols) {
    column_sums(dz, lddz, rows, cols,
                [&](int column, float sum) { bias[column] = stepped(bias[column], sum); });
    return;
  }
  if (static_cast<int>(blockIdx.x) >= cols) return;
  const float before = bias[blockIdx.x];  // early, to overlap with the loads of dz
  const float sum = column_sum(dz, lddz, rows);
  if (threadIdx.x == 0) bias[blockIdx.x] = stepped(before, sum);
}
