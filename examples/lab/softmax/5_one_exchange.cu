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

constexpr float kLog2E = 1.4426950408889634f;  // e^x = 2^(x * kLog2E)
constexpr float kLeast = -1e38f;  // of a thread without elements: differences of it are finite

template <int LANES, typename F>
__device__ float combined(float value, F combine) {
#pragma unroll
  for (int lanes = LANES / 2; lanes > 0; lanes /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, lanes));
  }
  return value;
}

__global__ void __launch_bounds__(256, 8) one_exchange(const float* x, float* y, int rows,
                                                       int cols) {
  __shared__ float2 of_warps[8];  // the largest of a warp, and its sum of powers below that
  const size_t begin = static_cast<size_t>(blockIdx.x) * cols;
  const float4* const from = reinterpret_cast<const float4*>(x + begin);
  float4* const to = reinterpret_cast<float4*>(y + begin);
  float4 values[4];
  float mine = -INFINITY, sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int at = i * 256 + threadIdx.x;
    values[i] = 4 * at < cols ? from[at]
                              : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    mine = fmaxf(mine, fmaxf(fmaxf(values[i].x, values[i].y), fmaxf(values[i].z, values[i].w)));
  }
  mine = fmaxf(mine * kLog2E, kLeast);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[i].x = exp2f(fmaf(values[i].x, kLog2E, -mine));
    values[i].y = exp2f(fmaf(values[i].y, kLog2E, -mine));
    values[i].z = exp2f(fmaf(values[i].z, kLog2E, -mine));
    values[i].w = exp2f(fmaf(values[i].w, kLog2E, -mine));
    sum += (values[i].x + values[i].y) + (values[i].z + values[i].w);
  }
  const auto greater = [](float a, float b) { return fmaxf(a, b); };
  const auto plus = [](float a, float b) { return a + b; };
  const float largest = combined<32>(mine, greater);
  sum = combined<32>(sum * exp2f(mine - largest), plus);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = make_float2(largest, sum);
  __syncthreads();
  const float2 of_warp = of_warps[threadIdx.x % 8];
  const float of_all = combined<8>(of_warp.x, greater);
  const float total = combined<8>(of_warp.y * exp2f(of_warp.x - of_all), plus);
  const float factor = exp2f(mine - of_all) / total;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int at = i * 256 + threadIdx.x;
    if (4 * at < cols) {
      to[at] = make_float4(values[i].x * factor, values[i].y * factor, values[i].z * factor,
                           values[i].w * factor);
    }
  }
}
