// A step of heat in three dimensions: seven points, edges kept.
/* rawnn
grid = ["cdiv(nx, 32)", "cdiv(ny, 4)", "nz"]
block = [32, 4]
shapes = {u = ["nz", "ny", "nx"], v = ["nz", "ny", "nx"]}
sizes = {nx = "1..40", ny = "1..20", nz = "1..10"}
values = {c = 0.1}
length = 7
reference = "stencil.py:step"
*/
__global__ void stencil(const double* __restrict__ u, double* __restrict__ v, int nx, int ny, int nz,
                        double c) {
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int y = blockIdx.y * blockDim.y + threadIdx.y;
    const int z = blockIdx.z;
    if (x >= nx || y >= ny) return;
    const size_t i = (size_t(z) * ny + y) * nx + x, plane = size_t(nx) * ny;
    if (x == 0 || y == 0 || z == 0 || x == nx - 1 || y == ny - 1 || z == nz - 1) {
        v[i] = u[i];
        return;
    }
    v[i] = u[i] + c * (u[i - 1] + u[i + 1] + u[i - nx] + u[i + nx] + u[i - plane] + u[i + plane] -
                       6.0 * u[i]);
}
