"""A CUDA kernel of your own on rawnn's arrays: compiled at run time, launched, checked."""

import sys

import numpy as np

import rawnn

SOURCE = """
template <typename T>
__global__ void saxpy(const T* x, T* y, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += a * x[i];
}
"""

n = 1_000_000
x = np.random.default_rng(0).random(n, dtype=np.float32)
try:
    device_x, device_y = rawnn.array(x), rawnn.array(np.ones(n, np.float32))
except rawnn.errors.DeviceError as error:
    sys.exit(f"this example needs an NVIDIA GPU: {error}")

saxpy = rawnn.Kernel(SOURCE, "saxpy<float>")
saxpy[(n + 255) // 256, 256](device_x, device_y, 2.0, n)

np.testing.assert_allclose(device_y.numpy(), 1 + 2 * x, rtol=1e-6)
print("y = 1 + 2 x, as NumPy says")
