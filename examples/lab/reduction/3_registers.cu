// Sums of blocks of 4,096 elements, step 3: every thread adds its 16 elements in a register, and
// one tree adds those.
// Learned: most of the work is loads; what threads tell each other is done once, not 16 times.
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
__global__ void registers(const float* x, float* sums, int n) {
  __shared__ float part[256];
  float sum = 0.0f;
#pragma unroll
  for (int first = 0; first < CHUNK; first += 256) {
    const int i = blockIdx.x * CHUNK + first + threadIdx.x;
    if (i < n) sum += x[i];
  }
  part[threadIdx.x] = sum;
  __syncthreads();
  for (int half = 128; half > 0; half /= 2) {
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = part[0];
}
