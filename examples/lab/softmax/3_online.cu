// Softmax of rows, step 3: maximum and sum in one pass, of which a larger maximum scales the sum
// (Milakov and Gimelshein, Online normalizer calculation for softmax, 2018); shuffles in a warp.
// Learned: one pass less, and two barriers in place of sixteen. Yet it is slower than step 2: the pass
// that it saves reads from a cache, and every element costs two exponentials more.
/* rawnn
grid = "rows"
block = 256
reference = "np.exp(x - x.max(axis=1, keepdims=True)) / np.exp(x - x.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True)"
shapes = {x = ["rows", "cols"], y = ["rows", "cols"]}
length = "cols"
flops = "4 * rows * cols"
sizes = {rows = "1..40", cols = "1..1200"}
*/
#include <cmath>

__device__ void join(float& largest, float& sum, float other_largest, float other_sum) {
  const float both = fmaxf(largest, other_largest);
  // A thread without elements has the maximum -inf, and -inf - -inf is no number.
  sum = (sum == 0.0f ? 0.0f : sum * expf(largest - both)) +
        (other_sum == 0.0f ? 0.0f : other_sum * expf(other_largest - both));
  largest = both;
}

__device__ void warp_join(float& largest, float& sum) {
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, largest, lanes);
    join(largest, sum, other, __shfl_xor_sync(0xffffffffu, sum, lanes));
  }
}

__global__ void online(const float* x, float* y, int rows, int cols) {
  __shared__ float parts[2][8];
  const float* const from = x + blockIdx.x * cols;
  float largest = -INFINITY, sum = 0.0f;
  for (int i = threadIdx.x; i < cols; i += 256) join(largest, sum, from[i], 1.0f);
  warp_join(largest, sum);
  if (threadIdx.x % 32 == 0) {
    parts[0][threadIdx.x / 32] = largest;
    parts[1][threadIdx.x / 32] = sum;
  }
  __syncthreads();
  largest = parts[0][threadIdx.x % 8];
  sum = parts[1][threadIdx.x % 8];
  for (int lanes = 4; lanes > 0; lanes /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, largest, lanes);
    join(largest, sum, other, __shfl_xor_sync(0xffffffffu, sum, lanes));
  }
  for (int i = threadIdx.x; i < cols; i += 256) {
    y[blockIdx.x * cols + i] = expf(from[i] - largest) / sum;
  }
}
