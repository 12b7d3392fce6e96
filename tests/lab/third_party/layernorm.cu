// Layer normalisation, a warp a row, by cooperative groups.
/* rawnn
grid = "cdiv(rows, 4)"
block = 128
shapes = {x = ["rows", "cols"], gamma = "cols", beta = "cols", y = ["rows", "cols"]}
sizes = {rows = "1..30", cols = "2..300"}
values = {eps = 1e-5}
length = "cols"
tolerance = 1e-5
reference = "(x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + eps) * gamma + beta"
*/
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

namespace cg = cooperative_groups;

__global__ void layernorm(const float* x, const float* gamma, const float* beta, float* y, int rows,
                          int cols, float eps) {
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    const int row = blockIdx.x * 4 + warp.meta_group_rank();
    if (row >= rows) return;
    const float* from = x + row * cols;
    float sum = 0, square = 0;
    for (int i = warp.thread_rank(); i < cols; i += 32) sum += from[i];
    const float mean = cg::reduce(warp, sum, cg::plus<float>()) / cols;
    for (int i = warp.thread_rank(); i < cols; i += 32) square += (from[i] - mean) * (from[i] - mean);
    const float scale = rsqrtf(cg::reduce(warp, square, cg::plus<float>()) / cols + eps);
    for (int i = warp.thread_rank(); i < cols; i += 32)
        y[row * cols + i] = (from[i] - mean) * scale * gamma[i] + beta[i];
}
