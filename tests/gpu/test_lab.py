"""A user's own kernel on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

import rawnn
from rawnn.common.errors import CompileError, ConfigError, DeviceError

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


def test_shared_memory_that_is_declared_counts_beside_that_of_the_launch() -> None:
    x = rawnn.array(np.zeros(64, np.float32))
    kernel = rawnn.Kernel("""__global__ void sums(float* x, int n) {
        extern __shared__ float given[];
        __shared__ float declared[4096];
        for (int i = threadIdx.x; i < n; i += 64) given[i] = i;
        for (int i = threadIdx.x; i < 4096; i += 64) declared[i] = 1;
        __syncthreads();
        x[threadIdx.x] = declared[4095 - threadIdx.x] + given[n - 1 - threadIdx.x];
    }""", "sums")
    room = kernel.device.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN") - 16_384
    for shared in (36_000, room):
        kernel[1, 64].using(shared=shared)(x, shared // 4)
        np.testing.assert_array_equal(x.numpy(), shared // 4 - np.arange(64))
    with pytest.raises(DeviceError, match="beside the 16,384 that it declares"):
        kernel[1, 64].using(shared=room + 1)


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
