// A GEMM of float32 alone (test_float32.py): c[part][m][n] of a block of one warp.
#include "persistent/gemm.cuh"

struct OneWarp {
  static constexpr int kThreads = 32, kPrecision = kFloat32;
};

struct StoreSums {
  struct Early {};
  float* to;
  int rows, columns;

  __device__ __forceinline__ Early early(int, int) const { return {}; }
  __device__ __forceinline__ void store(int part, int mt, int nt, const float (&sum)[4], const Early&) const {
    for (int q = 0; q < 4; ++q) {
      const int row = mt * 16 + lane_index() / 4 + q / 2 * 8;
      const int column = nt * 8 + lane_index() % 4 * 2 + q % 2;
      to[(part * rows + row) * columns + column] = sum[q];
    }
  }
  __device__ __forceinline__ void sums(int, float, float, bool) const {}
};

// a [k, m] and b [k, n]; with DEEP [m, k] and [n, k].
template <bool DEEP, int K8, int SPLIT, int MT, int NT>
__global__ void products(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c) {
  constexpr int lda = DEEP ? K8 * 8 : MT * 16;
  constexpr int ldb = DEEP ? K8 * 8 : NT * 8;
  Gemm<OneWarp, DEEP, DEEP, MT, NT, K8, SPLIT, MT, NT, lda, ldb>::run(a, b, 0, StoreSums{c, MT * 16, NT * 8});
}
