// A transposed matrix, step 3: rows of the tile are 33 elements apart.
// Learned: a column of the tile lies in 32 banks. One word a row costs nothing else.
/* rawnn
grid = ["cdiv(cols, 32)", "cdiv(rows, 32)"]
block = [32, 32]
reference = "x.T"
shapes = {x = ["rows", "cols"], y = ["cols", "rows"]}
sizes = {rows = "1..300", cols = "1..300"}
*/
__global__ void padded(const float* x, float* y, int rows, int cols) {
  __shared__ float part[32][33];
  const int column = blockIdx.x * 32, row = blockIdx.y * 32;
  if (row + threadIdx.y < rows && column + threadIdx.x < cols) {
    part[threadIdx.y][threadIdx.x] = x[(row + threadIdx.y) * cols + column + threadIdx.x];
  }
  __syncthreads();
  if (column + threadIdx.y < cols && row + threadIdx.x < rows) {
    y[(column + threadIdx.y) * rows + row + threadIdx.x] = part[threadIdx.x][threadIdx.y];
  }
}
