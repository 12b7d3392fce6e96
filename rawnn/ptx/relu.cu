// relu, relu_backward: the rectifier and its gradient.
//
//   relu:          a[rows, cols] = z where z > 0, else 0 (a NaN stays a NaN)
//   relu_backward: dz = da where a > 0, else 0            each with its own pitch
//
// In place is allowed (a == z, dz == da). Used by the layer-by-layer step; `fuse` puts the rectifier
// into the product's epilogue.
// Launch: one dimension, any size (grid-stride over rows * cols).
// Limit: device-memory traffic; at small layers the launch itself.

template <typename T>
__global__ void relu(const T* z, int ldz, T* a, int lda, int rows, int cols) {
  const int stride = static_cast<int>(gridDim.x * blockDim.x);
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < rows * cols;
       i += stride) {
    const int row = i / cols;
    const int column = i - row * cols;
    const float value = static_cast<float>(z[static_cast<long long>(row) * ldz + column]);
    a[static_cast<long long>(row) * lda + column] = static_cast<T>(value <= 0.0f ? 0.0f : value);
  }
}

template <typename T>
__global__ void relu_backward(const T* da, int ldda, const T* a, int lda, T* dz, int lddz, int rows,
                              int cols) {
  const int stride = static_cast<int>(gridDim.x * blockDim.x);
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < rows * cols;
       i += stride) {
    const int row = i / cols;
    const int column = i - row * cols;
    const float slope = static_cast<float>(a[static_cast<long long>(row) * lda + column]);
    const float incoming = static_cast<float>(da[static_cast<long long>(row) * ldda + column]);
    dz[static_cast<long long>(row) * lddz + column] =
        static_cast<T>(slope > 0.0f ? incoming : 0.0f);
  }
}
