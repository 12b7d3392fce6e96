// A product of matrices, step 2: tiles of both factors in shared memory.
// Learned: an element that is loaded is used 16 times; now shared memory is what limits.
/* rawnn
grid = ["cdiv(n, 16)", "cdiv(m, 16)"]
block = [16, 16]
reference = "a @ b"
shapes = {a = ["m", "k"], b = ["k", "n"], c = ["m", "n"]}
length = "k"
flops = "2 * m * n * k"
sizes = {m = "1..70", n = "1..70", k = "1..70"}
*/
__global__ void tiles(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float left[16][16], right[16][16];
  const int column = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
  float sum = 0.0f;
  for (int first = 0; first < k; first += 16) {
    const int of_a = first + threadIdx.x, of_b = first + threadIdx.y;
    left[threadIdx.y][threadIdx.x] = row < m && of_a < k ? a[row * k + of_a] : 0.0f;
    right[threadIdx.y][threadIdx.x] = of_b < k && column < n ? b[of_b * n + column] : 0.0f;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 16; ++i) sum += left[threadIdx.y][i] * right[i][threadIdx.x];
    __syncthreads();
  }
  if (row < m && column < n) c[row * n + column] = sum;
}
