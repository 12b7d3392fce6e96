// A product of half matrices by tensor cores, a warp a tile of 16 x 16; b is column by column.
/* rawnn
grid = ["n // 16", "m // 16"]
block = 32
shapes = {a = ["m", "k"], b = ["n", "k"], c = ["m", "n"]}
sizes = {m = [16, 64], n = [16, 48], k = [16, 128]}
values = {alpha = 0.5}
length = "k"
reference = "alpha * (a @ b.T)"
*/
#include <mma.h>
using namespace nvcuda::wmma;

__global__ void wmma_gemm(const half* a, const half* b, float* c, int m, int n, int k, float alpha) {
    fragment<matrix_a, 16, 16, 16, half, row_major> fa;
    fragment<matrix_b, 16, 16, 16, half, col_major> fb;
    fragment<accumulator, 16, 16, 16, float> acc;
    fill_fragment(acc, 0.0f);
    const int row = blockIdx.y * 16, col = blockIdx.x * 16;
    for (int i = 0; i < k; i += 16) {
        load_matrix_sync(fa, a + row * k + i, k);
        load_matrix_sync(fb, b + col * k + i, k);
        mma_sync(acc, fa, fb, acc);
    }
    for (int i = 0; i < acc.num_elements; i++) acc.x[i] *= alpha;
    store_matrix_sync(c + row * n + col, acc, n, mem_row_major);
}
