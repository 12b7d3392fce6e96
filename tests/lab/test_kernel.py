"""A user's kernel on the simulated GPU, whose result is given in NumPy."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rawnn
from rawnn.common.errors import CompileError, ConfigError, DeviceError
from rawnn.cuda.device import Device
from rawnn.sim import Fault, Faults, Simulation, SimulationError, register

SCALE = """
// y = factor * x
template <typename T>
__global__ void lab_scale(const T* x, T* y, T factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = factor * x[i];
}
"""


def scale(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
    t.y[...] = a["factor"] * t.x


register("lab_scale", scale, {"x": ("n",), "y": ("n",)}, reads=("x",), writes=("y",))


@pytest.fixture
def kernel(device: Device) -> rawnn.Kernel:
    return rawnn.Kernel(SCALE, "lab_scale<float>", device=device)


def vectors(device: Device, dtype: str = "float32", count: int = 100) -> tuple[Any, Any]:
    return (rawnn.array(np.arange(count, dtype=dtype), device=device),
            rawnn.empty(count, dtype, device=device))


@pytest.mark.parametrize("factor", [2, 2.0, np.float32(2), np.int64(2), True + 1])
@pytest.mark.parametrize("geometry", [(4, 32), ((4,), (32, 1)), ((1, 1, 1), 128), (4, 32, 1024)])
def test_a_kernel_computes(device: Device, kernel: rawnn.Kernel, factor: Any,
                           geometry: Any) -> None:
    x, y = vectors(device)
    kernel[geometry](x, y, factor, 100)
    kernel.synchronize()
    np.testing.assert_array_equal(y.numpy(), np.arange(100, dtype=np.float32) * 2)


def test_a_kernel_made_again_has_all_that_it_was_made_of(device: Device, tmp_path: Path) -> None:
    (tmp_path / "own.cuh").write_text("#define STEP 3\n")
    source = """#include "own.cuh"
    __constant__ float by;
    __global__ void lab_again(float* y) { y[0] = STEP * WIDE * by; }"""
    made = rawnn.Kernel(source, "lab_again", defines={"WIDE": 2}, options=["-lineinfo"],
                        include=[tmp_path], arch="sm_90a", symbols={"by": 1.5}, device=device)
    assert made.symbol("by").numpy() == 1.5
    recipe = made.recipe
    assert all(getattr(recipe, each.name) for each in fields(recipe))  # nothing is left out
    for again, defines in ((rawnn.Kernel.from_recipe(recipe, device), {"WIDE": 2}),
                           (made.redefined({"WIDE": 5, "MORE": 1}), {"WIDE": 5, "MORE": 1})):
        assert again.recipe == replace(recipe, defines=defines)
        assert again.symbol("by").numpy() == 1.5
        assert again.device is device


def test_the_same_template_for_another_type(device: Device, kernel: rawnn.Kernel) -> None:
    x, y = vectors(device, "float64")
    rawnn.Kernel(SCALE, "lab_scale<double>", device=device)[1, 128](x, y, 0.1, 100)
    np.testing.assert_array_equal(y.numpy(), np.arange(100) * 0.1)
    with pytest.raises(ConfigError, match="points to float, but the array holds float64"):
        kernel[1, 128](x, y, 0.1, 100)


def test_a_kernel_from_a_file(device: Device, tmp_path: Path) -> None:
    path = tmp_path / "scale.cu"
    path.write_text(SCALE)
    x, y = vectors(device)
    for source in (path, str(path)):
        rawnn.Kernel(source, "lab_scale<float>", device=device)[1, 128](x, y, 3.0, 100)
        assert y.numpy()[2] == 6
    for source in (tmp_path / "none.cu", tmp_path):
        with pytest.raises(ConfigError, match="cannot read the kernel"):
            rawnn.Kernel(source, "k", device=device)


def test_two_sources_of_the_same_name_are_two_kernels(device: Device) -> None:
    other = SCALE.replace("lab_scale", "lab_other").replace("y = factor", "y = 2 factor")
    register("lab_other", lambda t, a: t.y.fill(7), {"x": ("n",), "y": ("n",)}, reads=("x",),
             writes=("y",))
    first = rawnn.Kernel(SCALE, "lab_scale<float>", device=device)
    second = rawnn.Kernel(other, "lab_other<float>", device=device)
    x, y = vectors(device)
    second[1, 128](x, y, 1.0, 100)
    assert (y.numpy() == 7).all()
    first[1, 128](x, y, 1.0, 100)
    assert y.numpy()[5] == 5


def test_a_kernel_of_numbers_alone(device: Device) -> None:
    seen = []
    register("lab_count", lambda t, a: seen.append(a["n"]), {}, reads=(), writes=())
    kernel = rawnn.Kernel("__global__ void lab_count(int n) {}", "lab_count", device=device)
    kernel[1, 1](3)
    kernel[1, 1](np.int32(4))
    kernel.synchronize()
    assert seen == [3, 4]


def test_none_is_a_null_pointer(sim: Simulation, device: Device, kernel: rawnn.Kernel) -> None:
    x, _ = vectors(device)
    kernel[1, 128](x, None, 2.0, 100)
    with pytest.raises(SimulationError, match=r"operand 'y'"):
        kernel.synchronize()


@pytest.mark.parametrize(("arguments", "sentence"), [
    ("x", "lab_scale<float> takes 4 arguments (x, y, factor, n), not 1"),
    ("x y 2 100 5", "takes 4 arguments (x, y, factor, n), not 5"),
    ("x y x 100", "argument 'factor' is a float, not an array"),
    ("x 5 2 100", "argument 'y' is a pointer: pass a rawnn array (make one with rawnn.array)"),
    ("x list 2 100", "argument 'y' is a pointer"),
    ("x y 2 1.5", "argument 'n' (int) cannot hold 1.5"),
    ("x y 1e300 100", "argument 'factor' (float) cannot hold 1e+300"),
    ("x y text 100", "argument 'factor' (float) cannot hold 'text'"),
    ("x y 2 4294967296", "argument 'n' (int) cannot hold 4294967296"),
])
def test_arguments_that_do_not_fit(device: Device, kernel: rawnn.Kernel, arguments: str,
                                   sentence: str) -> None:
    x, y = vectors(device)
    known = {"x": x, "y": y, "list": [1.0], "1.5": 1.5, "1e300": 1e300, "text": "text"}
    values = [known[w] if w in known else int(w) for w in arguments.split()]
    with pytest.raises(ConfigError) as caught:
        kernel[1, 128](*values)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(("geometry", "sentence"), [
    (4, "write kernel[grid, block]"), ((4,), "write kernel[grid, block]"),
    ((1, 2, 3, 4), "write kernel[grid, block]"), ((0, 32), "grid = 0: give one to three whole"),
    ((1, -1), "block = -1: give"), ((1.0, 32), "grid = 1.0: give"), (((), 32), "grid = (): give"),
    (((1, 1, 1, 1), 32), "grid = (1, 1, 1, 1): give"), ((1, "32"), "block = '32': give"),
    ((1, 32, 1.5), "shared memory is a number of bytes, not 1.5"),
    ((1, 32, -4), "shared memory is a number of bytes, not -4"), ((None, 32), "grid = None: give"),
])
def test_geometry_that_is_none(kernel: rawnn.Kernel, geometry: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        kernel[geometry]
    assert sentence in str(caught.value)


@pytest.mark.parametrize(("source", "expression", "sentence"), [
    (SCALE, "lab_scal<float>", "there is no kernel 'lab_scal'; did you mean 'lab_scale'?"),
    (SCALE, "lab_scale", "lab_scale"), (SCALE, "lab_scale<float, 3>", "lab_scale"),
    (SCALE, "", "is not a kernel name"), ("int x;\n", "k", "there is no kernel 'k'"),
    ("__global__ void k(int& a) {}", "k", "reference"),
])
def test_names_that_do_not_fit(device: Device, source: str, expression: str,
                               sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rawnn.Kernel(source, expression, device=device)
    assert sentence in str(caught.value)


def test_source_that_does_not_compile() -> None:
    simulation = Simulation(faults=Faults(Fault("NVRTC_ERROR_COMPILATION",
                                                call="nvrtcCompileProgram")))
    device = Device(simulation.backend())
    with pytest.raises(CompileError, match=r"kernel\.cu"):
        rawnn.Kernel(SCALE, "lab_scale<float>", device=device)
    device.close()
    simulation.assert_clean()


def test_a_launch_beyond_the_limits_says_its_geometry(device: Device,
                                                      kernel: rawnn.Kernel) -> None:
    x, y = vectors(device)
    with pytest.raises(DeviceError, match=r"\(4096, 1, 1\) has 4,096 threads.*at most 1,024"):
        kernel[1, 4096](x, y, 2.0, 100)


def test_an_access_outside_the_array_is_found(sim: Simulation, device: Device) -> None:
    kernel = rawnn.Kernel(SCALE, "lab_scale<float>", device=device)
    x, y = vectors(device)
    kernel[1, 128](x, y, 2.0, 101)
    with pytest.raises(SimulationError, match="operand"):
        kernel.synchronize()


def test_a_kernel_that_nothing_is_known_of_is_refused(sim: Simulation, device: Device) -> None:
    source = "__global__ void lab_unknown(float* x) {}"
    kernel = rawnn.Kernel(source, "lab_unknown", device=device)
    with pytest.raises(SimulationError, match=r"rawnn\.sim\.register"):
        kernel[1, 1](rawnn.empty(1, device=device))


def test_nothing_stale_is_read_after_an_error(device: Device, kernel: rawnn.Kernel) -> None:
    x, y = vectors(device)
    kernel[1, 32](x, None, 2.0, 100)
    with pytest.raises(SimulationError, match="null pointer"):
        kernel.synchronize()
    for again in (y.numpy, lambda: kernel[1, 32](x, y, 2.0, 100)):
        with pytest.raises(SimulationError, match=r"stopped at an earlier error.*lab\.simulated"
                           r".*operand 'y' of lab_scale<float>.*null pointer"):
            again()


def test_an_overrun_array_is_named_by_the_line_that_made_it(device: Device,
                                                            kernel: rawnn.Kernel) -> None:
    x, y = vectors(device, count=10)
    kernel[1, 32](x, y, 2.0, 20)
    with pytest.raises(SimulationError, match=r"made at .*test_kernel\.py:\d+ \(vectors\)"):
        kernel.synchronize()


def test_what_a_kernel_and_its_launches_say_of_themselves(device: Device,
                                                          kernel: rawnn.Kernel) -> None:
    named = "rawnn.Kernel(lab_scale<float>(float* x, float* y, float factor, int n) on simulated"
    assert repr(kernel).startswith(named)
    launch = kernel[2, 32].using(shared=64, cluster=2)
    assert repr(launch) == f"{kernel!r}[(2, 1, 1), (32, 1, 1), shared=64, cluster=(2, 1, 1)]"
    assert repr(device) == f"rawnn.Device({device.info.name})"
    x, y = vectors(device)
    assert repr(kernel.bind(1, 32, x, y, 2.0, 100)).endswith(f".bind({x!r}, {y!r}, 2.0, 100)")
    with pytest.raises(TypeError, match="make it of its source"):
        pickle.dumps(kernel)


def test_a_byte_order_mark_of_a_text_is_left_out(device: Device) -> None:
    kernel = rawnn.Kernel("\ufeff__global__ void marked(float* y) { y[0] = 1; }", "marked",
                          device=device)
    assert [parameter.name for parameter in kernel.signature.parameters] == ["y"]
