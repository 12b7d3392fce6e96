"""Boxes of a matrix through tensor maps on a GPU: where their elements lie in shared memory, what
is read beyond the matrix, and what is written."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rawnn
from rawnn.common.errors import DeviceError
from rawnn.cuda.errors import CallFailed
from rawnn.cuda.tensormap import MappedMatrix
from rawnn.lab import Array, TensorMap, tensor_map
from tests import requires

pytestmark = pytest.mark.gpu

# Each block copies one box of x to y. It counts elements that differ from those in device memory,
# and beyond the matrix those that are not zero.
SOURCE = r"""
struct alignas(64) TensorMap { unsigned long long words[16]; };

template <typename BITS>
__global__ void copy_boxes(const void* x, int ld, int rows, int cols, int box_rows, int* wrong,
                           const __grid_constant__ TensorMap x_map,
                           const __grid_constant__ TensorMap y_map) {
  extern __shared__ __align__(1024) unsigned char box[];
  __shared__ __align__(8) unsigned long long barrier;
  constexpr int COLS = 128 / sizeof(BITS);
  const int row = blockIdx.y * box_rows, column = blockIdx.x * COLS;
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(box));
  const unsigned full = static_cast<unsigned>(__cvta_generic_to_shared(&barrier));
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n"
                 "fence.mbarrier_init.release.cluster;\n"
                 "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n"
                 "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%2], [%3, {%4, %5}], [%0];"
                 :: "r"(full), "r"(box_rows * 128), "r"(at), "l"(&x_map), "r"(column), "r"(row)
                 : "memory");
  }
  __syncthreads();
  for (int done = 0; done == 0;)
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\n"
                 "selp.s32 %0, 1, 0, p;\n}" : "=r"(done) : "r"(full) : "memory");
  for (int i = threadIdx.x; i < box_rows * COLS; i += blockDim.x) {
    const int r = i / COLS, c = i % COLS, byte = c * sizeof(BITS);
    const int place = r * 128 + ((byte / 16) ^ (r % 8)) * 16 + byte % 16;
    const BITS found = *reinterpret_cast<const BITS*>(box + place);
    const bool inside = row + r < rows && column + c < cols;
    const BITS wanted = inside ? static_cast<const BITS*>(x)[(row + r) * ld + column + c] : 0;
    if (found != wanted) atomicAdd(wrong, 1);
  }
  __syncthreads();
  if (threadIdx.x == 0)
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
                 "\ncp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;"
                 :: "l"(&y_map), "r"(column), "r"(row), "r"(at) : "memory");
}
"""
TYPES: dict[str, tuple[Any, str]] = {
    "float16": (np.float16, "unsigned short"),
    "bfloat16": (ml_dtypes.bfloat16, "unsigned short"),
    "float32": (np.float32, "unsigned int"),
}


@pytest.fixture(autouse=True)
def _needs_the_copy_engine() -> None:
    try:
        device = rawnn.empty(1).device
    except DeviceError as error:
        pytest.skip(str(error))
    if device.capability < (9, 0):
        pytest.skip("needs compute capability 9.0")


def _mapped(array: Array, cols: int, box_rows: int) -> TensorMap:
    """The map of the first `cols` columns."""
    rows, ld = array.shape
    matrix = MappedMatrix(array.device.driver, repr(array), rows, cols, ld, array.dtype.name,
                          box_rows)
    return TensorMap(array, matrix.at(array.address))


@pytest.mark.parametrize(("rows", "cols", "box_rows"), [
    (64, 128, 8), (256, 64, 256), (130, 200, 64), (7, 10, 16), (1, 1, 1), (33, 1003, 24),
    (1000, 65, 128),
])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_matrix_box_by_box(dtype: str, rows: int, cols: int, box_rows: int) -> None:
    kind, bits = TYPES[dtype]
    itemsize = np.dtype(kind).itemsize
    ld = -(-cols * itemsize // 16) * 16 // itemsize + 16 // itemsize
    values = np.full((rows, ld), np.nan, kind)
    values[:, :cols] = np.random.default_rng(rows + cols).standard_normal((rows, cols))
    x, y = rawnn.array(values), rawnn.array(np.full((rows, ld), -7, kind))
    wrong = rawnn.array(np.zeros(1, np.int32))
    kernel = rawnn.Kernel(SOURCE, f"copy_boxes<{bits}>")
    grid = (-(-cols * itemsize // 128), -(-rows // box_rows))
    kernel[grid, 64, box_rows * 128 + 1024](x, ld, rows, cols, box_rows, wrong,
                                            _mapped(x, cols, box_rows), _mapped(y, cols, box_rows))
    assert wrong.numpy()[0] == 0
    found = y.numpy()
    assert (found[:, :cols] == values[:, :cols]).all()
    chunk = 16 // itemsize  # the last of a row is written as a whole
    assert (found[:, -(-cols // chunk) * chunk:] == -7).all()


def test_what_the_driver_refuses() -> None:
    x = rawnn.empty((8, 64), np.float16)
    assert any(tensor_map(x, (8, 64)).content)
    encode = x.device.driver.cuTensorMapEncodeTiled
    extents, strides, box = (64, 8), (128,), (64, 8)
    refused = [
        encode("FLOAT16", x.address + 8, extents, strides, box, "128B", "L2_256B"),
        encode("FLOAT16", x.address, extents, (120,), box, "128B", "L2_256B"),
        encode("FLOAT16", x.address, (0, 8), strides, box, "128B", "L2_256B"),
        encode("FLOAT16", x.address, extents, strides, (64, 257), "128B", "L2_256B"),
        encode("FLOAT16", x.address, extents, strides, (72, 8), "128B", "L2_256B"),
        encode("FLOAT16", x.address, extents, strides, (4, 8), "128B", "L2_256B"),
    ]
    assert all(int(code) == 1 and content == b"" for code, content in refused)
    with pytest.raises(CallFailed, match=r"cuTensorMapEncodeTiled failed with CUDA_ERROR_INVALID"):
        MappedMatrix(x.device.driver, "x", 1 << 33, 64, 64, "float16", 8).at(x.address)


RAW = r"""
#include "device/barriers.cuh"
#include "device/bulk_copies.cuh"
#include "device/shared.cuh"

__global__ void raw_box(const unsigned char* x, unsigned char* y, int bytes, int row, int column,
                        const __grid_constant__ TensorMap x_map) {
  const unsigned char* const box = ptx::dynamic_shared<unsigned char, 1024>();
  __shared__ __align__(8) unsigned long long there;
  const unsigned barrier = ptx::shared_address(&there);
  if (threadIdx.x == 0) {
    ptx::init_barrier(barrier, 1);
    ptx::publish_barriers();
    ptx::arrive_expecting(barrier, bytes);
    ptx::load_tile(ptx::shared_address(box), x_map, row, column, barrier);
  }
  __syncthreads();
  ptx::wait_for(barrier, 0);
  for (int i = threadIdx.x; i < bytes; i += blockDim.x) y[i] = box[i];
}
"""
MASKS = {"128B": (128, 7), "64B": (64, 3), "32B": (32, 1), "none": (64, 0)}
"""Bytes of a row of the box, and which bits of its 128-byte line the chunk is permuted by."""


@pytest.mark.parametrize("swizzle", MASKS)
def test_a_box_of_a_user_lies_as_its_swizzle_says(swizzle: str) -> None:
    width, mask = MASKS[swizzle]
    values = np.random.default_rng(0).integers(0, 256, (40, 512), np.uint8)
    x, y = rawnn.array(values), rawnn.empty(32 * width, np.uint8)
    kernel = rawnn.Kernel(RAW, "raw_box")
    kernel[1, 64].using(shared=32 * width)(
        x, y, 32 * width, 16, 128, rawnn.tensor_map(x, (32, width), swizzle=swizzle))
    inside = np.zeros((32, width), np.uint8)
    inside[:24] = values[16:, 128 : 128 + width]
    place = np.arange(32 * width)
    assert (y.numpy()[place ^ (place >> 7 & mask) << 4] == inside.reshape(-1)).all()


def test_the_map_of_another_librarys_array() -> None:
    torch = requires.module("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch has no GPU")
    x = torch.arange(40 * 64, device="cuda").reshape(40, 64).to(torch.uint8)
    y = rawnn.empty(8 * 64, np.uint8)
    kernel = rawnn.Kernel(RAW, "raw_box")
    x_map = rawnn.tensor_map(x, (8, 64), swizzle="none")
    for row in (0, 16):
        x += 1
        kernel[1, 64].using(shared=8 * 64)(x, y, 8 * 64, row, 0, x_map)
        assert (y.numpy() == x[row : row + 8].cpu().numpy().reshape(-1)).all()
