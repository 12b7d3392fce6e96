// A product of matrices, step 3: a block computes 64 x 64, a thread 4 x 4 of that in registers.
// Learned: eight loads from shared memory feed sixteen multiplications, in place of two for one.
/* rawnn
grid = ["cdiv(n, 64)", "cdiv(m, 64)"]
block = [16, 16]
reference = "a @ b"
shapes = {a = ["m", "k"], b = ["k", "n"], c = ["m", "n"]}
length = "k"
flops = "2 * m * n * k"
sizes = {m = "1..150", n = "1..150", k = "1..70"}
*/
__global__ void registers(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float left[16][65], right[16][64];  // left transposed: 65 keeps its banks apart
  const int thread = threadIdx.y * 16 + threadIdx.x;
  const int top = blockIdx.y * 64, side = blockIdx.x * 64;
  float sums[4][4] = {};
  for (int first = 0; first < k; first += 16) {
#pragma unroll
    for (int i = thread; i < 16 * 64; i += 256) {
      const int row = top + i / 16, of_a = first + i % 16;
      left[i % 16][i / 16] = row < m && of_a < k ? a[row * k + of_a] : 0.0f;
      const int of_b = first + i / 64, column = side + i % 64;
      right[i / 64][i % 64] = of_b < k && column < n ? b[of_b * n + column] : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float of_a[4], of_b[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        of_a[j] = left[i][threadIdx.y + 16 * j];
        of_b[j] = right[i][threadIdx.x + 16 * j];
      }
#pragma unroll
      for (int y = 0; y < 4; ++y) {
#pragma unroll
        for (int x = 0; x < 4; ++x) sums[y][x] += of_a[y] * of_b[x];
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int y = 0; y < 4; ++y) {
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      const int row = top + threadIdx.y + 16 * y, column = side + threadIdx.x + 16 * x;
      if (row < m && column < n) c[row * n + column] = sums[y][x];
    }
  }
}
