// A transposed matrix, step 4: a thread moves four elements of the tile.
// Learned: four loads are under way before the first is waited for, and index arithmetic is shared.
/* rawnn
grid = ["cdiv(cols, 32)", "cdiv(rows, 32)"]
block = [32, 8]
reference = "x.T"
shapes = {x = ["rows", "cols"], y = ["cols", "rows"]}
sizes = {rows = "1..300", cols = "1..300"}
*/
__global__ void four_each(const float* x, float* y, int rows, int cols) {
  __shared__ float part[32][33];
  const int column = blockIdx.x * 32, row = blockIdx.y * 32;
#pragma unroll
  for (int i = threadIdx.y; i < 32; i += 8) {
    if (row + i < rows && column + threadIdx.x < cols) {
      part[i][threadIdx.x] = x[(row + i) * cols + column + threadIdx.x];
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = threadIdx.y; i < 32; i += 8) {
    if (column + i < cols && row + threadIdx.x < rows) {
      y[(column + i) * rows + row + threadIdx.x] = part[threadIdx.x][i];
    }
  }
}
