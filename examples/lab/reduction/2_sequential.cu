// Sums of blocks of 4,096 elements, step 2: the first half of the threads adds the second half.
// Learned: whole warps are done early, and no two threads ask one bank for different words.
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
__global__ void sequential(const float* x, float* sums, int n) {
  __shared__ float part[256];
  float total = 0.0f;
  for (int first = 0; first < CHUNK; first += 256) {
    const int i = blockIdx.x * CHUNK + first + threadIdx.x;
    part[threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
      if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
      __syncthreads();
    }
    total += part[0];
    __syncthreads();
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = total;
}
