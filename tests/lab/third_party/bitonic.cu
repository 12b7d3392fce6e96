// Sorts blocks of 1,024 numbers in shared memory (Batcher's bitonic sort), two a thread.
/* rawnn
grid = "blocks"
block = 512
shapes = {keys = ["blocks", 1024]}
sizes = {blocks = "1..5"}
inputs = {keys = "normal"}
reference = "np.sort(keys, axis=1)"
*/
__global__ void bitonic(float* keys) {
    __shared__ float s[1024];
    float* mine = keys + blockIdx.x * 1024;
    s[threadIdx.x] = mine[threadIdx.x];
    s[threadIdx.x + 512] = mine[threadIdx.x + 512];
    for (unsigned size = 2; size <= 1024; size *= 2) {
        const bool up = (threadIdx.x & (size / 2)) == 0;
        for (unsigned stride = size / 2; stride > 0; stride /= 2) {
            __syncthreads();
            const unsigned at = 2 * threadIdx.x - (threadIdx.x & (stride - 1));
            const float a = s[at], b = s[at + stride];
            if ((a > b) == up) { s[at] = b; s[at + stride] = a; }
        }
    }
    __syncthreads();
    mine[threadIdx.x] = s[threadIdx.x];
    mine[threadIdx.x + 512] = s[threadIdx.x + 512];
}
