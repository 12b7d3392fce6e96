// sgd: one step of plain stochastic gradient descent, w -= lr * dw.
//
// w, dw: [rows, cols], leading dimensions ldw, lddw (a vector is one row). Padding is left alone.
// Used where `fuse` has not moved the update into the weight gradient's product (beta = 1,
// alpha = -lr).
// Launch: one dimension, any size (grid-stride over the elements).
// Limit: device-memory traffic, 3 * sizeof(T) a parameter.

template <typename T>
__global__ void sgd(T* __restrict__ w, int ldw, const T* __restrict__ dw, int lddw, int rows,
                    int cols, float lr) {
  const int count = rows * cols;
  const int stride = static_cast<int>(gridDim.x * blockDim.x);
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < count; i += stride) {
    const int row = i / cols;
    const int col = i - row * cols;
    T* weight = w + static_cast<long long>(row) * ldw + col;
    const float gradient = static_cast<float>(dw[static_cast<long long>(row) * lddw + col]);
    *weight = static_cast<T>(static_cast<float>(*weight) - lr * gradient);
  }
}
