// sgd: one step of plain stochastic gradient descent, w -= lr * dw.
//
// w and dw: `count` elements with the same layout (padding included: its gradient is 0 or unused).
// Used where `fuse` has not moved the update into the weight gradient's product (beta = 1,
// alpha = -lr).
// Launch: one dimension, any size (grid-stride over count).
// Limit: device-memory traffic, 3 * sizeof(T) a parameter.

template <typename T>
__global__ void sgd(T* __restrict__ w, const T* __restrict__ dw, int count, float lr) {
  const int stride = static_cast<int>(gridDim.x * blockDim.x);
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < count; i += stride) {
    w[i] = static_cast<T>(static_cast<float>(w[i]) - lr * static_cast<float>(dw[i]));
  }
}
