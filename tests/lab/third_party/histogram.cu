// A histogram of bytes: one in shared memory for each block, added up in global memory.
/* rawnn
grid = "cdiv(n, 1024)"
block = 256
shapes = {data = "n", counts = 256}
writes = ["counts"]
sizes = {n = "1..20000"}
inputs = {data = "0..255", counts = "0..9"}
reference = "counts + np.bincount(data, minlength=256)"
*/
__global__ void histogram(const unsigned char* data, unsigned int* counts, int n) {
    __shared__ unsigned int mine[256];
    mine[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * 1024 + threadIdx.x; i < min(n, (int)(blockIdx.x + 1) * 1024); i += 256)
        atomicAdd(&mine[data[i]], 1u);
    __syncthreads();
    atomicAdd(&counts[threadIdx.x], mine[threadIdx.x]);
}
