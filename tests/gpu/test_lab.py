"""A user's own kernel on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

import rawnn
from rawnn.errors import CompileError, ConfigError, DeviceError

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("default_gpu")]

SCALE = """
template <typename T>
__global__ void scale(T* x, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = x[i] * factor;
}
"""


def test_a_kernel_from_source_text() -> None:
    x = rawnn.array(np.arange(1000, dtype=np.float32))
    kernel = rawnn.Kernel(SCALE, "scale<float>")
    kernel[4, 256](x, 2, 1000)
    np.testing.assert_array_equal(x.numpy(), np.arange(1000, dtype=np.float32) * 2)


def test_errors_are_clear() -> None:
    x = rawnn.array(np.arange(10, dtype=np.float64))
    kernel = rawnn.Kernel(SCALE, "scale<float>")
    with pytest.raises(ConfigError, match="points to float, but the array holds float64"):
        kernel[1, 32](x, 2.0, 10)
    with pytest.raises(ConfigError, match="takes 3 arguments"):
        kernel[1, 32](x)
    with pytest.raises(CompileError, match="undefined"):
        rawnn.Kernel('extern "C" __global__ void k(int* a) { a[0] = undefined_name; }', "k")
    with pytest.raises(DeviceError, match=r"a block \(4096, 1, 1\) has 4,096 threads"):
        kernel[1, 4096](rawnn.empty(10), 2.0, 10)
