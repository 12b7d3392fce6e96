// Inclusive sums of blocks of 512 (Hillis and Steele), each block by itself.
/* rawnn
kernel = "scan<int>"
grid = "cdiv(n, 512)"
block = 512
shared = "2 * 512 * 4"
shapes = {in = "n", out = "n"}
sizes = {n = "1..5000"}
inputs = {in = "-9..9"}
reference = "scan.py:blocks"
*/
template <typename T>
__global__ void scan(const T* in, T* out, int n) {
    extern __shared__ int raw[];
    T* temp = reinterpret_cast<T*>(raw);
    int i = blockIdx.x * blockDim.x + threadIdx.x, now = 0, before = 1;
    temp[threadIdx.x] = i < n ? in[i] : T(0);
    __syncthreads();
    for (int offset = 1; offset < blockDim.x; offset *= 2) {
        now = 1 - now;
        before = 1 - now;
        T value = temp[before * blockDim.x + threadIdx.x];
        if (threadIdx.x >= offset) value += temp[before * blockDim.x + threadIdx.x - offset];
        temp[now * blockDim.x + threadIdx.x] = value;
        __syncthreads();
    }
    if (i < n) out[i] = temp[now * blockDim.x + threadIdx.x];
}
