// A transposed matrix, step 1: a thread an element.
// Learned: reads are in order, but the writes of a warp go to 32 rows, a sector of 32 bytes for
// every 4 that it writes.
/* rawnn
grid = ["cdiv(cols, 32)", "cdiv(rows, 8)"]
block = [32, 8]
reference = "x.T"
shapes = {x = ["rows", "cols"], y = ["cols", "rows"]}
sizes = {rows = "1..300", cols = "1..300"}
*/
__global__ void naive(const float* x, float* y, int rows, int cols) {
  const int column = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 8 + threadIdx.y;
  if (row < rows && column < cols) y[column * rows + row] = x[row * cols + column];
}
