// Sums of blocks of 4,096 elements, step 5: loads of 16 bytes, four of them under way at once.
// Learned: fewer instructions ask for the same bytes, and more bytes are on their way. What is
// left is the memory's time.
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

__global__ void wide_loads(const float* x, float* sums, int n) {
  __shared__ float part[8];
  float sum = 0.0f;
  const int begin = blockIdx.x * CHUNK;
  if (begin + CHUNK <= n) {  // a whole chunk, which begins at a multiple of 16 bytes
    const float4* const wide = reinterpret_cast<const float4*>(x + begin);
    float4 values[CHUNK / 1024];
#pragma unroll
    for (int i = 0; i < CHUNK / 1024; ++i) values[i] = wide[i * 256 + threadIdx.x];
#pragma unroll
    for (int i = 0; i < CHUNK / 1024; ++i) {
      sum += (values[i].x + values[i].y) + (values[i].z + values[i].w);
    }
  } else {
    for (int i = begin + threadIdx.x; i < n; i += 256) sum += x[i];
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    sum = warp_sum(threadIdx.x < 8 ? part[threadIdx.x] : 0.0f);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
  }
}
