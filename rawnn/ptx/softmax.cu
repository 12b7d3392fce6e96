// softmax, softmax_backward: the output layer's probabilities and the gradient of the mean
// cross-entropy with respect to its pre-activations.
//
//   softmax:          p[r, :] = exp(z[r, :] - max(z[r, :])) / sum of the same
//   softmax_backward: dz = (p - onehot(y)) / rows        y: int32, dense
//
// Used by the layer-by-layer step; `cudnn` replaces softmax, `fuse` both (loss.cu).
// Launch: softmax one warp a row, blocks of a multiple of 32 threads, grid.x * (block / 32) warps in
// all, any number (grid-stride over rows). softmax_backward one dimension, any size.
// Limit: latency; three passes over a row that sits in the L1 cache after the first.
#include "common.cuh"

template <typename T>
__global__ void softmax(const T* z, int ldz, T* p, int ldp, int rows, int cols) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warps = static_cast<int>(blockDim.x / 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  if (warp >= warps) return;  // the incomplete last warp of an unusual block
  for (int row = static_cast<int>(blockIdx.x) * warps + warp; row < rows;
       row += static_cast<int>(gridDim.x) * warps) {
    const T* in = z + static_cast<long long>(row) * ldz;
    T* out = p + static_cast<long long>(row) * ldp;
    float largest = -infinity();
    for (int column = lane; column < cols; column += 32) {
      largest = fmaxf(largest, static_cast<float>(in[column]));
    }
    largest = warp_max(largest);
    float sum = 0.0f;
    for (int column = lane; column < cols; column += 32) {
      sum += expf(static_cast<float>(in[column]) - largest);
    }
    sum = warp_sum(sum);
    for (int column = lane; column < cols; column += 32) {
      out[column] = static_cast<T>(expf(static_cast<float>(in[column]) - largest) / sum);
    }
  }
}

template <typename T>
__global__ void softmax_backward(const T* p, int ldp, const int* __restrict__ y, T* dz, int lddz,
                                 int rows, int cols) {
  const int stride = static_cast<int>(gridDim.x * blockDim.x);
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < rows * cols;
       i += stride) {
    const int row = i / cols;
    const int column = i - row * cols;
    const float target = column == y[row] ? 1.0f : 0.0f;
    const float value = static_cast<float>(p[static_cast<long long>(row) * ldp + column]);
    dz[static_cast<long long>(row) * lddz + column] =
        static_cast<T>((value - target) / static_cast<float>(rows));
  }
}
