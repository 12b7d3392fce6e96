// matmul_nt, matmul_nn, matmul_tn: the baseline GEMMs, one thread for each output element.
//
//   c[m, n] = act(alpha * op(a) op(b) + beta * c + bias[n]) * slope(saved)
//   all row-major, pitches in elements; bias is float32; c is not read if beta == 0;
//   *overflow = 1 if TC cannot hold a c (common.cuh); ignored if overflow is null
//   nt: a[m, k], b[n, k] (a layer's forward);  nn: a[m, k], b[k, n] (the input gradient);
//   tn: a[k, m], b[k, n] (the weight gradient).
//
// template matmul_nt<TA, TB, TC, BIAS, ACTIVATION, SLOPE, TS, ACC>, matmul_nn<TA, TB, TC, SLOPE, TS,
// ACC>, matmul_tn<TA, TB, TC, ACC>: storage types; BIAS a bool; ACTIVATION and SLOPE of
// activations.cuh (None if there is none); TS, the type of saved [m, n], defaults to TC; ACC defaults to
// float, or is float16 for half-precision sums (compute tf32 is float here, which is more exact).
// Scalars: m, n, k, alpha, beta.
// Used unless a toggle selects another GEMM (`cublas`, `tiled`, `mma`).
// Launch: blocks of 16 x 16, grid.x covers n and grid.y covers m.
// Limit: load instructions. Each multiply-add loads both of its operands from the caches. It has no
// shared memory and no register tile, on purpose: it is the starting point of the ladder.
#include "primitives/accumulate.cuh"
#include "elementwise/activations.cuh"
#include "primitives/common.cuh"

// act(alpha * sum + beta * c + bias) * slope(saved) into one element of c.
template <typename ACTIVATION, typename SLOPE, typename TC, typename TS>
__device__ __forceinline__ void finish(TC* c, float sum, float alpha, float beta, float bias,
                                       const TS* saved, int* overflow) {
  float result = alpha * sum + bias;
  if (beta != 0.0f) result += beta * to_float(*c);
  result = ACTIVATION::apply(result);
  if constexpr (!SLOPE::kIdentity) result = SLOPE::backward(result, to_float(*saved));
  *c = from_float<TC>(result);
  if (overflow != nullptr) report_overflow(overflow, poison<TC>(result));
}

template <typename TA, typename TB, typename TC, bool BIAS, typename ACTIVATION,
          typename SLOPE = None, typename TS = TC, typename ACC = float>
__global__ void matmul_nt(const TA* __restrict__ a, int lda, const TB* __restrict__ b, int ldb,
                          const float* __restrict__ bias, const TS* __restrict__ saved,
                          int ldsaved, TC* c, int ldc, int* __restrict__ overflow, int m, int n,
                          int k, float alpha, float beta) {
  pdl_wait();
  pdl_trigger();
  const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int row = static_cast<int>(blockIdx.y * blockDim.y + threadIdx.y);
  if (row >= m || column >= n) return;
  const TA* left = a + static_cast<long long>(row) * lda;
  const TB* right = b + static_cast<long long>(column) * ldb;
  ACC sum = from_float<ACC>(0.0f);
  for (int i = 0; i < k; ++i) accumulate(sum, left[i], right[i]);
  const float shift = BIAS ? bias[column] : 0.0f;
  finish<ACTIVATION, SLOPE>(at(c, ldc, row, column), to_float(sum), alpha, beta, shift,
                            at(saved, ldsaved, row, column), overflow);
}

template <typename TA, typename TB, typename TC, typename SLOPE = None, typename TS = TC,
          typename ACC = float>
__global__ void matmul_nn(const TA* __restrict__ a, int lda, const TB* __restrict__ b, int ldb,
                          const TS* __restrict__ saved, int ldsaved, TC* c, int ldc,
                          int* __restrict__ overflow, int m, int n, int k, float alpha,
                          float beta) {
  pdl_wait();
  pdl_trigger();
  const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int row = static_cast<int>(blockIdx.y * blockDim.y + threadIdx.y);
  if (row >= m || column >= n) return;
  const TA* left = a + static_cast<long long>(row) * lda;
  const TB* right = b + column;
  ACC sum = from_float<ACC>(0.0f);
  for (int i = 0; i < k; ++i) accumulate(sum, left[i], right[static_cast<long long>(i) * ldb]);
  finish<None, SLOPE>(at(c, ldc, row, column), to_float(sum), alpha, beta, 0.0f,
                      at(saved, ldsaved, row, column), overflow);
}

template <typename TA, typename TB, typename TC, typename ACC = float>
__global__ void matmul_tn(const TA* __restrict__ a, int lda, const TB* __restrict__ b, int ldb,
                          TC* c, int ldc, int* __restrict__ overflow, int m, int n, int k,
                          float alpha, float beta) {
  pdl_wait();
  pdl_trigger();
  const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int row = static_cast<int>(blockIdx.y * blockDim.y + threadIdx.y);
  if (row >= m || column >= n) return;
  const TA* left = a + row;
  const TB* right = b + column;
  ACC sum = from_float<ACC>(0.0f);
  for (int i = 0; i < k; ++i) {
    accumulate(sum, left[static_cast<long long>(i) * lda], right[static_cast<long long>(i) * ldb]);
  }
  const float* const nothing = nullptr;
  finish<None, None>(at(c, ldc, row, column), to_float(sum), alpha, beta, 0.0f, nothing, overflow);
}
