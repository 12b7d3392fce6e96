// Softmax of rows, step 2: a block a row, with a tree in shared memory for maximum and sum.
// Learned: reads are in order, and a row's second and third pass find it in a cache.
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

__global__ void block_a_row(const float* x, float* y, int rows, int cols) {
  __shared__ float part[256];
  const float* const from = x + blockIdx.x * cols;
  float largest = -INFINITY, sum = 0.0f;
  for (int i = threadIdx.x; i < cols; i += 256) largest = fmaxf(largest, from[i]);
  part[threadIdx.x] = largest;
  __syncthreads();
  for (int half = 128; half > 0; half /= 2) {
    if (threadIdx.x < half) part[threadIdx.x] = fmaxf(part[threadIdx.x], part[threadIdx.x + half]);
    __syncthreads();
  }
  largest = part[0];
  __syncthreads();
  for (int i = threadIdx.x; i < cols; i += 256) sum += expf(from[i] - largest);
  part[threadIdx.x] = sum;
  __syncthreads();
  for (int half = 128; half > 0; half /= 2) {
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    __syncthreads();
  }
  sum = part[0];
  for (int i = threadIdx.x; i < cols; i += 256) {
    y[blockIdx.x * cols + i] = expf(from[i] - largest) / sum;
  }
}
