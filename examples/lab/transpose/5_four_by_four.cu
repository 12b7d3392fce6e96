// A transposed matrix, step 5: a thread turns 4 x 4 elements in its registers, so that all of its loads
// and stores, in shared memory too, are of 16 bytes.
// Learned: a quarter of the instructions, four times the bytes under way, and whole lines of 256 bytes
// for the memory. Chunks of 16 bytes are permuted by the row (swizzle) in place of padding, which would
// leave them misaligned.
/* rawnn
defines = {ACROSS = 16, DOWN = 16}
grid = ["cdiv(cols, 4 * ACROSS)", "cdiv(rows, 4 * DOWN)"]
block = "ACROSS * DOWN"
reference = "x.T"
shapes = {x = ["rows", "cols"], y = ["cols", "rows"]}
sizes = {rows = "4..300", cols = "4..300"}
require = ["rows % 4 == 0", "cols % 4 == 0"]
sweep = {ACROSS = [8, 16, 32], DOWN = [8, 16, 32]}
restrict = ["ACROSS * DOWN <= 512"]
*/
__global__ void __launch_bounds__(ACROSS * DOWN, 2048 / (ACROSS * DOWN))
four_by_four(const float* x, float* y, int rows, int cols) {
  __shared__ float4 part[4 * ACROSS][DOWN];  // of y
  const int across = threadIdx.x % ACROSS, down = threadIdx.x / ACROSS;
  const int column = blockIdx.x * 4 * ACROSS, row = blockIdx.y * 4 * DOWN;
  if (row + 4 * down < rows && column + 4 * across < cols) {
    float4 of[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      of[i] = *reinterpret_cast<const float4*>(
          x + static_cast<size_t>(row + 4 * down + i) * cols + column + 4 * across);
    }
    const int chunk = down ^ across % DOWN;  // chunk `down` of the rows 4 * across + i
    part[4 * across][chunk] = make_float4(of[0].x, of[1].x, of[2].x, of[3].x);
    part[4 * across + 1][chunk] = make_float4(of[0].y, of[1].y, of[2].y, of[3].y);
    part[4 * across + 2][chunk] = make_float4(of[0].z, of[1].z, of[2].z, of[3].z);
    part[4 * across + 3][chunk] = make_float4(of[0].w, of[1].w, of[2].w, of[3].w);
  }
  __syncthreads();
  const int chunk = threadIdx.x % DOWN;
#pragma unroll
  for (int i = threadIdx.x / DOWN; i < 4 * ACROSS; i += ACROSS) {
    if (column + i < cols && row + 4 * chunk < rows) {
      *reinterpret_cast<float4*>(y + static_cast<size_t>(column + i) * rows + row + 4 * chunk) =
          part[i][chunk ^ i / 4 % DOWN];
    }
  }
}
