"""Tensor maps of a user's arrays on the simulated GPU: made, passed, checked, recorded."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rawnn
from rawnn.common.errors import CompileError, ConfigError
from rawnn.cuda.device import Device
from rawnn.lab.graph import Graph
from rawnn.sim import SimulationError, register
from rawnn.sim.tensormap import decoded
from tests import requires
from tests.lab.test_exchange import Cuda

BOXES = """
struct alignas(64) TensorMap { unsigned long long words[16]; };
__global__ void lab_boxes(const float* x, int ldx, float* y, int rows, int cols,
                          const __grid_constant__ TensorMap x_map) {}
"""


@pytest.fixture
def boxed(device: Device) -> rawnn.Kernel:
    register("lab_boxes", lambda t, a: t.y.__setitem__(slice(None), t.x.sum(1)),
             {"x": ("rows", "cols"), "y": ("rows",)}, reads=("x",), writes=("y",))
    return rawnn.Kernel(BOXES, "lab_boxes", device=device)


def test_a_kernel_with_a_tensor_map(device: Device, boxed: rawnn.Kernel) -> None:
    x = rawnn.array(np.arange(24, dtype=np.float32).reshape(3, 8), device=device)
    y = rawnn.empty(3, device=device)
    x_map = rawnn.tensor_map(x, (256, 8), swizzle="32B")
    for _ in range(2):  # newly prepared, and prepared before
        boxed[1, 32](x, 8, y, 3, 8, x_map)
        assert y.numpy().tolist() == [28, 92, 156]
    boxed.bind(1, 32, x, 8, y, 3, 8, x_map)()
    assert y.numpy().tolist() == [28, 92, 156]


def test_a_launch_is_behind_the_stream_of_a_maps_array(device: Device, boxed: rawnn.Kernel) -> None:
    x = rawnn.array(np.ones((3, 8), np.float32), device=device)
    y = rawnn.empty(3, device=device)
    for array, before in ((x, []), (Cuda(x, stream=7), [0, 7]), (Cuda(x), [0])):
        streams: list[int] = []
        boxed[1, 32]._values((x, 8, y, 3, 8, rawnn.tensor_map(array, (8, 8), device=device)),
                             streams)
        assert streams == before


def test_a_tensor_map_of_another_array_is_found(device: Device, boxed: rawnn.Kernel) -> None:
    x, other = (rawnn.array(np.ones((3, 8), np.float32), device=device) for _ in range(2))
    y = rawnn.empty(3, device=device)
    with pytest.raises(SimulationError, match=r"the map 'x_map' has the address"):
        boxed[1, 32](x, 8, y, 3, 8, rawnn.tensor_map(other, (8, 8)))


@pytest.mark.parametrize(("shape", "dtype", "box", "swizzle", "made"), [
    ((10, 64), "float32", (64, 32), "128B", ("FLOAT32", (64, 10), (256,), (32, 64), "128B")),
    ((10, 64), ml_dtypes.bfloat16, [8, 64], "128B",
     ("BFLOAT16", (64, 10), (128,), (64, 8), "128B")),
    ((5,), "float64", 256, "none", ("FLOAT64", (5,), (), (256,), "NONE")),
    ((2, 3, 4, 5, 16), "uint8", (1, 2, 3, 4, 16), "none",
     ("UINT8", (16, 5, 4, 3, 2), (16, 80, 320, 960), (16, 4, 3, 2, 1), "NONE")),
    ((4, 32), "int16", (4, 32), "64B", ("UINT16", (32, 4), (64,), (32, 4), "64B")),
    ((4, 32), ml_dtypes.float8_e4m3fn, (4, 32), "32B", ("UINT8", (32, 4), (32,), (32, 4), "32B")),
])
def test_what_the_driver_receives(device: Device, shape: Any, dtype: Any, box: Any, swizzle: str,
                                 made: Any) -> None:
    x = rawnn.empty(shape, dtype, device=device)
    found = decoded(rawnn.tensor_map(x, box, swizzle=swizzle).content)
    assert found is not None
    assert (found.dtype, found.extents, found.strides, found.box, found.swizzle) == made
    assert found.address == x.address


@pytest.mark.parametrize(("shape", "dtype", "box", "swizzle", "sentence"), [
    ((3, 7), "float32", (8, 4), "128B", "its rows are 28 bytes apart, which is no multiple of 16: "
                                        "pad them"),
    ((3, 8), "complex64", (8, 2), "128B", "its elements are complex64, and the copy engine moves"),
    ((3, 8), [("a", "f4"), ("b", "f4")], (8, 2), "128B", "numbers of 1, 2, 4 or 8 bytes"),
    ((3, 8), "float32", 8, "128B", "with the box (8,): give an extent of 1 to 256 for each of its "
                                   "2 dimensions, such as (64, 32)"),
    ((3, 8), "float16", (300, 8), "128B", "with the box (300, 8): give an extent of 1 to 256"),
    ((3, 8), "float16", (0, 8), "128B", "with the box (0, 8): give"),
    ((3, 8), "float16", (8, 4.0), "128B", "give an extent"),
    ((3, 8), "float16", (8, 4), "128B", "a row of it has 8 bytes, and has to have a multiple of "
                                        "16, at most 128 with swizzle = \"128B\""),
    ((3, 64), "float32", (8, 64), "128B", "a row of it has 256 bytes"),
    ((3, 64), "float32", (8, 32), "64B", "a row of it has 128 bytes, and has to have a multiple "
                                         "of 16, at most 64 with swizzle = \"64B\""),
    ((3, 64), "float32", (8, 32), "128", "swizzle = '128': give one of 128B, 64B, 32B, none; did "
                                         "you mean '128B'?"),
    ((), "float32", (), "none", "arrays of 1 to 5 dimensions"),
    ((1, 1, 1, 1, 1, 8), "float32", (1, 1, 1, 1, 1, 8), "none", "arrays of 1 to 5 dimensions"),
    ((3, 0), "float32", (8, 4), "none", "none of them empty"),
])
def test_arrays_that_have_no_tensor_map(device: Device, shape: Any, dtype: Any, box: Any,
                                        swizzle: str, sentence: str) -> None:
    x = rawnn.lab.Array.at(0x1000, shape, dtype, device)
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        rawnn.tensor_map(x, box, swizzle=swizzle)


def test_an_array_at_an_odd_place_has_none(device: Device) -> None:
    with pytest.raises(ConfigError, match=r"its address 0x1008 is no multiple of 16: copy it"):
        rawnn.tensor_map(rawnn.lab.Array.at(0x1008, (8, 8), np.float32, device), (8, 8))
    with pytest.raises(ConfigError, match=r"a NumPy array, on the host: copy it with rawnn\.array"):
        rawnn.tensor_map(np.ones((8, 8)), (8, 8), device=device)


def test_a_tensor_map_is_no_number_and_no_array(device: Device, boxed: rawnn.Kernel) -> None:
    x = rawnn.empty((3, 8), device=device)
    x_map = rawnn.tensor_map(x, (8, 8))
    for wrong in (x, 5, None, bytes(128)):
        with pytest.raises(ConfigError, match=r"'x_map' is a tensor map: make one with "
                                              r"rawnn\.tensor_map\(array, box\)"):
            boxed[1, 32](x, 8, x, 3, 8, wrong)
    with pytest.raises(ConfigError, match="argument 'ldx' is a int, not a tensor map"):
        boxed[1, 32](x, x_map, x, 3, 8, x_map)
    with pytest.raises(ConfigError, match="argument 'y' is a pointer, not a tensor map"):
        boxed[1, 32](x, 8, x_map, 3, 8, x_map)


CHECKED = """
{declared}
__global__ void lab_rows(const float* x, float* y, int rows, int cols,
                         const __grid_constant__ {name} x_map) {{}}
"""
WORK = {"grid": "min(sms, rows)", "block": 32, "shapes": {"x": ("rows", "cols"), "y": "rows"},
        "sizes": {"cols": [8, 64]}}


@pytest.mark.parametrize(("declared", "name"), [
    ("struct alignas(64) TensorMap { unsigned long long words[16]; };", "TensorMap"),
    ("struct alignas(64) CUtensorMap { unsigned long long words[16]; };", "CUtensorMap")])
@pytest.mark.parametrize("maps", [{"x": (16, 4)}, {"x": {"box": ["ROWS", 8], "swizzle": "32B"}}])
def test_a_check_makes_the_maps(device: Device, declared: str, name: str, maps: Any) -> None:
    kernel = rawnn.Kernel(CHECKED.format(declared=declared, name=name), "lab_rows", device=device,
                          defines={"ROWS": 8})
    rawnn.check(kernel, lambda x: x.sum(1), length="cols", maps=maps, **WORK).require()


@pytest.mark.parametrize(("maps", "sentence"), [
    ({}, "lab_rows: say what 'x_map' copies at once: maps={\"x\": (64, 32)}, a box of 'x'"),
    ({"x": (16, 4), "z": (4, 4)}, "maps: lab_rows has no array 'z'"),
    ({"x": 16}, "maps: x = 16: give the extents of a box such as (64, 32), or {\"box\": ..., "
                "\"swizzle\": ...}"),
    ({"x": {"bax": (16, 4)}}, "maps: x = {'bax': (16, 4)}: give the extents of a box"),
])
def test_maps_that_a_check_cannot_make(device: Device, maps: Any, sentence: str) -> None:
    kernel = rawnn.Kernel(CHECKED.format(
        declared="struct alignas(64) TensorMap { unsigned long long words[16]; };",
        name="TensorMap"), "lab_rows", device=device)
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        rawnn.check(kernel, lambda x: x.sum(1), length="cols", maps=maps, **WORK)


def test_a_map_without_its_pointer_says_too_little(device: Device) -> None:
    kernel = rawnn.Kernel(
        "struct alignas(64) TensorMap { unsigned long long words[16]; };\n__global__ void "
        "lab_alone(float* y, int n, const __grid_constant__ TensorMap x_map) {}", "lab_alone",
        device=device)
    with pytest.raises(ConfigError, match=r"let it take the array's pointer as well, x beside"):
        rawnn.check(kernel, lambda n: np.ones(n), grid=1, block=32)


ORDERED = BOXES + """
__global__ void lab_store(float* y, const __grid_constant__ TensorMap z_map) {}
"""


def test_a_map_counts_in_a_graph(device: Device, boxed: rawnn.Kernel) -> None:
    """Beside a const pointer it is read; by itself it may be written."""
    store = rawnn.Kernel(ORDERED, "lab_store", device=device)
    x = rawnn.array(np.ones((4, 8)), np.float32, device=device)
    y, other = (rawnn.empty(4, device=device) for _ in range(2))
    x_map = rawnn.tensor_map(x, (4, 8))
    with Graph() as g:
        boxed[1, 32](x, 8, y, 4, 8, x_map)
        boxed[1, 32](x, 8, other, 4, 8, x_map)
        store[1, 32](rawnn.empty(4, device=device), x_map)
    assert [sorted(e.full) for e in g.edges()] == [[], [], [0, 1]]


CUDAS = """
#include <cuda.h>
__global__ void lab_cudas(const float* x, float* y, int n,
                          const __grid_constant__ CUtensorMap x_map) {
  if (threadIdx.x < n) y[threadIdx.x] = sizeof(x_map);
}
"""


def test_the_type_of_cudas_header(device: Device) -> None:
    requires.module("cuda.bindings.nvrtc")
    register("lab_cudas", lambda t, a: np.copyto(t.y, t.x), {"x": ("n",), "y": ("n",)},
             reads=("x",), writes=("y",))
    kernel = rawnn.Kernel(CUDAS, "lab_cudas", device=device, options=["-default-device"])
    x, y = rawnn.array(np.ones(32), np.float32, device=device), rawnn.empty(32, device=device)
    kernel[1, 32](x, y, 32, rawnn.tensor_map(x, 32, swizzle="none"))
    assert y.numpy().sum() == 32
    with pytest.raises(CompileError, match=r'pass options=\["-default-device"\]'):
        rawnn.Kernel(CUDAS, "lab_cudas", device=device)
