// Softmax of rows, step 5: every thread takes powers below its own maximum, and maximum and sum go
// round the block together.
// Learned: one barrier in place of two, and all arithmetic ahead of it; what a thread is off by is put
// right by one factor. Powers of two (exp2f) are an instruction, those of e are several.
/* rawnn
grid = "rows"
block = 256
require = ["cols % 4 == 0", "cols <= 4096"]
reference = "np.exp(x - x.max(axis=1, keepdims=True)) / np.exp(x - x.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True)"
shapes = {x = ["rows", "cols"], y = ["rows", "cols"]}
length = "cols"
flops = "4 * rows * cols"
sizes = {rows = "1..40", cols = [4, 100, 1000, 1024, 2048, 4092, 4096]}
*/
#include <cmath>

// The largest of some values, in units of log2(e), and the sum of 2^(value - largest).
struct Powers {
  float largest, sum;
  __device__ void join(float other, float of_other) {
    const float both = fmaxf(largest, other);
    // Where there is nothing yet, the difference is of infinities.
    sum = both == -INFINITY ? 0.0f
                            : sum * exp2f(largest - both) + of_other * exp2f(other - both);
    largest = both;
  }
};

template <int LANES>
__device__ Powers joined(Powers powers) {
#pragma unroll
  for (int lanes = LANES / 2; lanes > 0; lanes /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, powers.largest, lanes);
    powers.join(other, __shfl_xor_sync(0xffffffffu, powers.sum, lanes));
  }
  return powers;
}

__global__ void __launch_bounds__(256) one_exchange(const float* x, float* y, int rows, int cols) {
  __shared__ float largest[8], sums[8];
  constexpr float kLog2E = 1.4426950408889634f;
  const size_t begin = static_cast<size_t>(blockIdx.x) * cols;
  const float4* const from = reinterpret_cast<const float4*>(x + begin);
  float4* const to = reinterpret_cast<float4*>(y + begin);
  float4 values[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int at = i * 256 + threadIdx.x;
    values[i] = 4 * at < cols ? from[at]
                              : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
  }
  Powers mine{-INFINITY, 0.0f};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    mine.largest = fmaxf(mine.largest, fmaxf(fmaxf(values[i].x, values[i].y),
                                             fmaxf(values[i].z, values[i].w)));
  }
  mine.largest *= kLog2E;
  const float below = mine.largest == -INFINITY ? 0.0f : -mine.largest;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[i].x = exp2f(fmaf(values[i].x, kLog2E, below));
    values[i].y = exp2f(fmaf(values[i].y, kLog2E, below));
    values[i].z = exp2f(fmaf(values[i].z, kLog2E, below));
    values[i].w = exp2f(fmaf(values[i].w, kLog2E, below));
    mine.sum += (values[i].x + values[i].y) + (values[i].z + values[i].w);
  }
  Powers all = joined<32>(mine);
  if (threadIdx.x % 32 == 0) {
    largest[threadIdx.x / 32] = all.largest;
    sums[threadIdx.x / 32] = all.sum;
  }
  __syncthreads();
  all = joined<8>({largest[threadIdx.x % 8], sums[threadIdx.x % 8]});
  const float factor = exp2f(mine.largest - all.largest) / all.sum;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int at = i * 256 + threadIdx.x;
    if (4 * at < cols) {
      to[at] = make_float4(values[i].x * factor, values[i].y * factor, values[i].z * factor,
                           values[i].w * factor);
    }
  }
}
