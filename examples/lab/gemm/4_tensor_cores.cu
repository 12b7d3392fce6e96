// A product of matrices, step 4: tensor cores, of bfloat16 factors, with sums in float32. A block
// of four warps computes 64 x 64; each warp 32 x 32 as 2 x 2 fragments of 16 x 16.
// Learned: one instruction multiplies 16 x 16 x 16. Now everything is about bringing factors in:
// Hopper's warp groups and copy engine are the next steps.
/* rawnn
grid = ["cdiv(n, 64)", "cdiv(m, 64)"]
block = 128
reference = "a @ b"
shapes = {a = ["m", "k"], b = ["k", "n"], c = ["m", "n"]}
length = "k"
sums = "tensor cores"
flops = "2 * m * n * k"
sizes = {m = [64, 128, 192], n = [64, 128], k = [16, 64, 128, 256]}
require = ["m % 64 == 0", "n % 64 == 0", "k % 16 == 0"]
*/
#include <cuda_bf16.h>
#include <mma.h>

using namespace nvcuda;

__global__ void tensor_cores(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c, int m, int n,
                             int k) {
  const int warp = threadIdx.x / 32;
  const int top = blockIdx.y * 64 + warp / 2 * 32, side = blockIdx.x * 64 + warp % 2 * 32;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[2][2];
  for (auto& row : sums) {
    for (auto& sum : row) wmma::fill_fragment(sum, 0.0f);
  }
  for (int first = 0; first < k; first += 16) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> left[2];
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::row_major> right[2];
    for (int i = 0; i < 2; ++i) {
      wmma::load_matrix_sync(left[i], a + (top + 16 * i) * k + first, k);
      wmma::load_matrix_sync(right[i], b + first * n + side + 16 * i, n);
    }
    for (int y = 0; y < 2; ++y) {
      for (int x = 0; x < 2; ++x) wmma::mma_sync(sums[y][x], left[y], right[x], sums[y][x]);
    }
  }
  for (int y = 0; y < 2; ++y) {
    for (int x = 0; x < 2; ++x) {
      wmma::store_matrix_sync(c + (top + 16 * y) * n + side + 16 * x, sums[y][x], n,
                              wmma::mem_row_major);
    }
  }
}
