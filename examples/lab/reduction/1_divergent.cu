// Sums of blocks of 4,096 elements, step 1: a tree in shared memory, in which neighbours are added.
// Learned: half of the threads of every warp wait at each step for the other half, and a thread
// loads one element at a time, for which it runs a whole loop of steps.
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
__global__ void divergent(const float* x, float* sums, int n) {
  __shared__ float part[256];
  float total = 0.0f;
  for (int first = 0; first < CHUNK; first += 256) {
    const int i = blockIdx.x * CHUNK + first + threadIdx.x;
    part[threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();
    for (int step = 1; step < 256; step *= 2) {
      if (threadIdx.x % (2 * step) == 0) part[threadIdx.x] += part[threadIdx.x + step];
      __syncthreads();
    }
    total += part[0];
    __syncthreads();
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = total;
}
