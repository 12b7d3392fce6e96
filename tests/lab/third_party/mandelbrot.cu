// Rounds until a point leaves the Mandelbrot set.
/* rawnn
grid = ["cdiv(width, 16)", "cdiv(height, 16)"]
block = [16, 16]
shapes = {image = ["height", "width"]}
sizes = {width = "1..60", height = "1..60"}
values = {most = 40}
reference = "mandelbrot.py:rounds"
*/
__global__ void mandelbrot(unsigned short* image, int width, int height, int most) {
    const int px = blockIdx.x * blockDim.x + threadIdx.x, py = blockIdx.y * blockDim.y + threadIdx.y;
    if (px >= width || py >= height) return;
    const double cx = -2.0 + 3.0 * px / width, cy = -1.5 + 3.0 * py / height;
    double x = 0, y = 0;
    int round = 0;
    for (; round < most && x * x + y * y <= 4.0; ++round) {
        const double next = __dadd_rn(__dadd_rn(__dmul_rn(x, x), -__dmul_rn(y, y)), cx);
        y = __dadd_rn(__dmul_rn(__dmul_rn(2.0, x), y), cy);
        x = next;
    }
    image[py * width + px] = round;
}
