// sum_slices: joins a product whose inner dimension was cut into slices.
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
