// Softmax of rows, step 1: a thread a row, in three passes.
// Learned: the threads of a warp read 32 rows at a time, a sector for each element, and every
// element comes from memory three times.
/* rawnn
grid = "cdiv(rows, 64)"
block = 64
reference = "np.exp(x - x.max(axis=1, keepdims=True)) / np.exp(x - x.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True)"
shapes = {x = ["rows", "cols"], y = ["rows", "cols"]}
length = "cols"
flops = "4 * rows * cols"
sizes = {rows = "1..200", cols = "1..200"}
*/
__global__ void thread_a_row(const float* x, float* y, int rows, int cols) {
  const int row = blockIdx.x * 64 + threadIdx.x;
  if (row >= rows) return;
  float largest = x[row * cols], sum = 0.0f;
  for (int i = 1; i < cols; ++i) largest = fmaxf(largest, x[row * cols + i]);
  for (int i = 0; i < cols; ++i) sum += expf(x[row * cols + i] - largest);
  for (int i = 0; i < cols; ++i) y[row * cols + i] = expf(x[row * cols + i] - largest) / sum;
}
