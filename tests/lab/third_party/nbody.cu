// Accelerations of bodies by gravity, through tiles in shared memory; float4 is place and mass.
/* rawnn
grid = "cdiv(n, 128)"
block = 128
shapes = {bodies = "n", acceleration = "n"}
sizes = {n = "1..700"}
inputs = {bodies = "uniform"}
length = "n"
tolerance = 1e-4
reference = "nbody.py:accelerations"
*/
__global__ void nbody(const float4* bodies, float4* acceleration, int n) {
    __shared__ float4 tile[128];
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const float4 me = i < n ? bodies[i] : make_float4(0, 0, 0, 0);
    float ax = 0, ay = 0, az = 0;
    for (int first = 0; first < n; first += 128) {
        const int other = first + threadIdx.x;
        tile[threadIdx.x] = other < n ? bodies[other] : make_float4(0, 0, 0, 0);
        __syncthreads();
        for (int j = 0; j < 128; j++) {
            const float dx = tile[j].x - me.x, dy = tile[j].y - me.y, dz = tile[j].z - me.z;
            const float inv = rsqrtf(dx * dx + dy * dy + dz * dz + 0.01f);
            const float s = tile[j].w * inv * inv * inv;
            ax += dx * s; ay += dy * s; az += dz * s;
        }
        __syncthreads();
    }
    if (i < n) acceleration[i] = make_float4(ax, ay, az, 0);
}
