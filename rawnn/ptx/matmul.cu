// matmul_nt, matmul_nn, matmul_tn: the baseline products, one thread an output element.
//
//   c[m, n] = act(alpha * op(a) op(b) + beta * c + bias[n])     all row-major, pitches in elements
//   nt: a[m, k], b[n, k] (a layer's forward);  nn: a[m, k], b[k, n] (the input gradient);
//   tn: a[k, m], b[k, n] (the weight gradient).  c is not read where beta == 0.
//
// Used where no toggle chose another product (`cublas`, `tiled`, `mma` replace it).
// Launch: blocks of 16 x 16, grid.x covers n and grid.y covers m.
// Limit: load instructions. Each multiply-add loads both of its operands from the caches; no shared
// memory and no register tile, on purpose: this is what the ladder starts from.

// act(alpha * sum + beta * c + bias) into one element of c.
template <typename T, bool RELU>
__device__ __forceinline__ void finish(T* c, float sum, float alpha, float beta, float bias) {
  float result = alpha * sum + bias;
  if (beta != 0.0f) result += beta * static_cast<float>(*c);
  if (RELU) result = result < 0.0f ? 0.0f : result;  // a NaN stays
  *c = static_cast<T>(result);
}

template <typename T, bool BIAS, bool RELU>
__global__ void matmul_nt(const T* __restrict__ a, int lda, const T* __restrict__ b, int ldb,
                          const T* __restrict__ bias, T* c, int ldc, int m, int n, int k,
                          float alpha, float beta) {
  const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int row = static_cast<int>(blockIdx.y * blockDim.y + threadIdx.y);
  if (row >= m || column >= n) return;
  const T* left = a + static_cast<long long>(row) * lda;
  const T* right = b + static_cast<long long>(column) * ldb;
  float sum = 0.0f;
  for (int i = 0; i < k; ++i) sum += static_cast<float>(left[i]) * static_cast<float>(right[i]);
  const float shift = BIAS ? static_cast<float>(bias[column]) : 0.0f;
  finish<T, RELU>(c + static_cast<long long>(row) * ldc + column, sum, alpha, beta, shift);
}

template <typename T>
__global__ void matmul_nn(const T* __restrict__ a, int lda, const T* __restrict__ b, int ldb, T* c,
                          int ldc, int m, int n, int k, float alpha, float beta) {
  const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int row = static_cast<int>(blockIdx.y * blockDim.y + threadIdx.y);
  if (row >= m || column >= n) return;
  const T* left = a + static_cast<long long>(row) * lda;
  const T* right = b + column;
  float sum = 0.0f;
  for (int i = 0; i < k; ++i) {
    sum += static_cast<float>(left[i]) * static_cast<float>(right[static_cast<long long>(i) * ldb]);
  }
  finish<T, false>(c + static_cast<long long>(row) * ldc + column, sum, alpha, beta, 0.0f);
}

template <typename T>
__global__ void matmul_tn(const T* __restrict__ a, int lda, const T* __restrict__ b, int ldb, T* c,
                          int ldc, int m, int n, int k, float alpha, float beta) {
  const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int row = static_cast<int>(blockIdx.y * blockDim.y + threadIdx.y);
  if (row >= m || column >= n) return;
  const T* left = a + row;
  const T* right = b + column;
  float sum = 0.0f;
  for (int i = 0; i < k; ++i) {
    sum += static_cast<float>(left[static_cast<long long>(i) * lda]) *
           static_cast<float>(right[static_cast<long long>(i) * ldb]);
  }
  finish<T, false>(c + static_cast<long long>(row) * ldc + column, sum, alpha, beta, 0.0f);
}
