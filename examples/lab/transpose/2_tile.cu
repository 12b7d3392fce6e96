// A transposed matrix, step 2: through a tile in shared memory, so that writes are in order, too.
// Learned: device memory sees whole rows on both sides, but the 32 elements of a tile's column lie
// in one bank of shared memory, and are read one by one.
/* rawnn
grid = ["cdiv(cols, 32)", "cdiv(rows, 32)"]
block = [32, 32]
reference = "x.T"
shapes = {x = ["rows", "cols"], y = ["cols", "rows"]}
sizes = {rows = "1..300", cols = "1..300"}
*/
__global__ void tile(const float* x, float* y, int rows, int cols) {
  __shared__ float part[32][32];
  const int column = blockIdx.x * 32, row = blockIdx.y * 32;
  if (row + threadIdx.y < rows && column + threadIdx.x < cols) {
    part[threadIdx.y][threadIdx.x] = x[(row + threadIdx.y) * cols + column + threadIdx.x];
  }
  __syncthreads();
  if (column + threadIdx.y < cols && row + threadIdx.x < rows) {
    y[(column + threadIdx.y) * rows + row + threadIdx.x] = part[threadIdx.x][threadIdx.y];
  }
}
