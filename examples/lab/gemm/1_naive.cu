// A product of matrices, step 1: a thread an element of the result.
// Learned: every factor is loaded anew for each product that it is in.
/* rawnn
grid = ["cdiv(n, 16)", "cdiv(m, 16)"]
block = [16, 16]
reference = "a @ b"
shapes = {a = ["m", "k"], b = ["k", "n"], c = ["m", "n"]}
length = "k"
flops = "2 * m * n * k"
sizes = {m = "1..70", n = "1..70", k = "1..70"}
*/
__global__ void naive(const float* a, const float* b, float* c, int m, int n, int k) {
  const int column = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
  if (row >= m || column >= n) return;
  float sum = 0.0f;
  for (int i = 0; i < k; ++i) sum += a[row * k + i] * b[i * n + column];
  c[row * n + column] = sum;
}
