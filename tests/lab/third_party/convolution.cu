// The rows' half of a separable convolution, with its taps in constant memory.
/* rawnn
grid = ["cdiv(width, 32)", "cdiv(height, 8)"]
block = [32, 8]
symbols = {taps = [0.05, 0.25, 0.4, 0.25, 0.05]}
shapes = {in = ["height", "width"], out = ["height", "width"]}
sizes = {height = "1..50", width = "1..100"}
reference = "convolution.py:rows"
*/
#define RADIUS 2
__constant__ float taps[2 * RADIUS + 1];

__global__ void convolve_rows(const float *in, float *out, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    float sum = 0.f;
    for (int i = -RADIUS; i <= RADIUS; i++) {
        int at = min(max(x + i, 0), width - 1);
        sum += taps[i + RADIUS] * in[y * width + at];
    }
    out[y * width + x] = sum;
}
