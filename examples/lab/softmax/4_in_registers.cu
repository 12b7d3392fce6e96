// Softmax of rows, step 4: a row of up to 4,096 elements stays in the block's registers.
// Learned: every element is read once and written once, 16 bytes at a time: no softmax can move
// less. Division is one multiplication by the inverse.
/* rawnn
defines = {THREADS = 256}
grid = "rows"
block = "THREADS"
require = ["cols % 4 == 0", "cols <= 4096"]
reference = "np.exp(x - x.max(axis=1, keepdims=True)) / np.exp(x - x.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True)"
shapes = {x = ["rows", "cols"], y = ["rows", "cols"]}
length = "cols"
flops = "4 * rows * cols"
sizes = {rows = "1..40", cols = [4, 100, 1000, 1024, 2048, 4092, 4096]}
sweep = {THREADS = [256, 512, 1024]}
*/
#include <cmath>

constexpr int kWarps = THREADS / 32, kEach = 1024 / THREADS;  // a thread's vectors of a row

template <typename F>
__device__ float block_of(float value, float* parts, F combine) {
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, lanes));
  }
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = parts[threadIdx.x % kWarps];
  for (int lanes = kWarps / 2; lanes > 0; lanes /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, lanes));
  }
  return value;
}

__global__ void __launch_bounds__(THREADS, 2048 / THREADS)
in_registers(const float* x, float* y, int rows, int cols) {
  __shared__ float parts[2][kWarps];
  const size_t begin = static_cast<size_t>(blockIdx.x) * cols;
  const float4* const from = reinterpret_cast<const float4*>(x + begin);
  float4* const to = reinterpret_cast<float4*>(y + begin);
  float4 values[kEach];
  float largest = -INFINITY, sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = i * THREADS + threadIdx.x;
    values[i] = 4 * at < cols ? from[at]
                              : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
    largest = fmaxf(largest, fmaxf(fmaxf(values[i].x, values[i].y),
                                   fmaxf(values[i].z, values[i].w)));
  }
  largest = block_of(largest, parts[0], [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    values[i].x = expf(values[i].x - largest);
    values[i].y = expf(values[i].y - largest);
    values[i].z = expf(values[i].z - largest);
    values[i].w = expf(values[i].w - largest);
    sum += (values[i].x + values[i].y) + (values[i].z + values[i].w);
  }
  sum = block_of(sum, parts[1], [](float a, float b) { return a + b; });
  const float inverse = 1.0f / sum;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = i * THREADS + threadIdx.x;
    if (4 * at < cols) {
      to[at] = make_float4(values[i].x * inverse, values[i].y * inverse, values[i].z * inverse,
                           values[i].w * inverse);
    }
  }
}
