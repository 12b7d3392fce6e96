// Points in a quarter of a circle, counted by threads that each draw with a generator of their own.
/* rawnn
grid = "cdiv(threads, 128)"
block = 128
shapes = {inside = "threads"}
sizes = {threads = "1..1000"}
values = {seed = 7, draws = 50}
reference = "monte_carlo.py:counts"
*/
struct Random {
    unsigned long long state;
    __device__ unsigned next() {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        return unsigned(state >> 33);
    }
};

__global__ void monte_carlo(int *inside, int threads, unsigned long long seed, int draws) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= threads) return;
    Random random{seed + i};
    random.next();
    int count = 0;
    for (int k = 0; k < draws; ++k) {
        const unsigned long long x = random.next(), y = random.next();
        count += x * x + y * y < (1ULL << 62);
    }
    inside[i] = count;
}
