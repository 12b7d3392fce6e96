// Sums of blocks of 4,096 elements, step 4: a warp adds up by shuffles, without shared memory.
// Learned: one barrier is left of eight.
/* rawnn
grid = "cdiv(n, CHUNK)"
block = 256
defines = {CHUNK = 4096}
reference = "np.array([x[i:i + CHUNK].sum() for i in range(0, n, CHUNK)])"
shapes = {x = "n", sums = "cdiv(n, CHUNK)"}
sizes = {n = "1..100000"}
length = "CHUNK"
flops = "n"
*/
__device__ float warp_sum(float sum) {
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_down_sync(0xffffffffu, sum, lanes);
  return sum;
}

__global__ void shuffles(const float* x, float* sums, int n) {
  __shared__ float part[8];
  float sum = 0.0f;
#pragma unroll
  for (int first = 0; first < CHUNK; first += 256) {
    const int i = blockIdx.x * CHUNK + first + threadIdx.x;
    if (i < n) sum += x[i];
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    sum = warp_sum(threadIdx.x < 8 ? part[threadIdx.x] : 0.0f);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
  }
}
