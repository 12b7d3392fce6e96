"""Tensor maps: what the driver is asked for, where they lie among the arguments, and when they are
made anew."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rawnn.common.errors import ConfigError
from rawnn.cuda.compiling.signature import parse_kernels
from rawnn.cuda.device import Device
from rawnn.cuda.errors import CallFailed
from rawnn.cuda.launch import Arguments, KernelLaunch
from rawnn.cuda.tensormap import NO_MAP, MappedMatrix
from rawnn.graphs import Graph
from rawnn.sim import Fault, Faults, Simulation, SimulationError, register
from rawnn.sim.tensormap import decoded
from tests.sim.work import read, vector

SOURCE = """
__global__ void add_boxes(const float* x, int ldx, float* y, int ldy, int rows, int cols,
                          const __grid_constant__ TensorMap x_map,
                          const __grid_constant__ TensorMap y_map) {}
"""
SIGNATURE = parse_kernels(SOURCE)["add_boxes"]
ROWS, COLS, LD = 3, 6, 8


@pytest.fixture(autouse=True)
def _reference(own_meanings: None) -> None:
    def add(t: SimpleNamespace, scalars: object) -> None:
        t.y[...] = 1 if not hasattr(t, "x") else t.x + 1

    register("add_boxes", add, {"x": ("rows", "cols"), "y": ("rows", "cols")}, reads=("x",),
             writes=("y",), boxes=lambda s: {"x": 2, "y": 4})


def matrix(driver: Any, box_rows: int = 2, **changed: Any) -> MappedMatrix:
    return MappedMatrix(driver, **{"label": "'x'", "rows": ROWS, "cols": COLS, "ld": LD,
                                   "dtype": "float32", "box_rows": box_rows, **changed})


def arguments(driver: Any, x: int, y: int, **changed: Any) -> Arguments:
    values = {"x": x, "ldx": LD, "y": y, "ldy": LD, "rows": ROWS, "cols": COLS}
    return Arguments(SIGNATURE, values, {"x": matrix(driver, **changed), "y": matrix(driver, 4)})


def launch(device: Device, packed: Arguments) -> KernelLaunch:
    device.load(SOURCE, "own.cu", {"add_boxes": SIGNATURE}, ("add_boxes",))
    function = device.function("own.cu", "add_boxes")
    return KernelLaunch(device.driver, device.stream, function.handle, "add_boxes", (1, 1, 1),
                        (32, 1, 1), packed)


class Recorder:
    """A driver that notes what it is asked to encode."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def cuTensorMapEncodeTiled(self, *arguments: Any) -> tuple[int, bytes]:
        self.asked.append(arguments)
        return 0, bytes([len(self.asked)]) * 128


# -- what is asked for ----------------------------------------------------------------------------
@pytest.mark.parametrize(("dtype", "ld", "pitch", "cols"), [
    ("float32", 8, 32, 32), ("float16", 8, 16, 64), ("bfloat16", 1024, 2048, 64),
])
def test_the_driver_is_told_how_the_matrix_lies(dtype: str, ld: int, pitch: int,
                                                cols: int) -> None:
    driver = Recorder()
    made = matrix(driver, 256, dtype=dtype, ld=ld).at(0x1000)
    assert driver.asked == [(dtype.upper(), 0x1000, (COLS, ROWS), (pitch,), (cols, 256), "128B",
                             "L2_256B")]
    assert made == b"\1" * 128


def test_an_operand_that_is_left_out_has_an_empty_map() -> None:
    driver = Recorder()
    assert matrix(driver).at(0) == NO_MAP == bytes(128)
    assert not driver.asked


@pytest.mark.parametrize(("changed", "sentence"), [
    ({"dtype": "float8_e4m3"}, "its elements are float8_e4m3, not float16, bfloat16, float32"),
    ({"dtype": "int32"}, "its elements are int32"),
    ({"ld": 7}, "its rows are 28 bytes apart, which is no multiple of 16"),
    ({"ld": 9, "dtype": "bfloat16"}, "its rows are 18 bytes apart"),
    ({"box_rows": 0}, "boxes have 1 to 256 rows, not 0"),
    ({"box_rows": 257}, "boxes have 1 to 256 rows, not 257"),
    ({"ld": 4}, "3 rows of 6 elements, 4 apart"), ({"rows": 0}, "0 rows of 6 elements"),
    ({"cols": 0}, "3 rows of 0 elements"),
])
def test_matrices_that_have_no_map(changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        matrix(Recorder(), **changed)
    assert str(caught.value).startswith("'x' has no tensor map: ")
    assert sentence in str(caught.value)


@pytest.mark.parametrize("address", [8, 0x1001, -8])
def test_an_address_that_is_no_multiple_of_16_bytes(address: int) -> None:
    with pytest.raises(ConfigError, match=r"'x' has no tensor map: its address .* no multiple"):
        matrix(Recorder()).at(address)


def test_a_refusal_says_what_was_asked_for() -> None:
    simulation = Simulation(faults=Faults(Fault("CUDA_ERROR_INVALID_VALUE",
                                                call="cuTensorMapEncodeTiled")))
    device = Device(simulation.backend())
    with pytest.raises(CallFailed) as caught:
        matrix(device.driver).at(0x1000)
    assert str(caught.value) == (
        "cuTensorMapEncodeTiled failed with CUDA_ERROR_INVALID_VALUE [1]: invalid argument "
        "('x': float32[3, 6] in rows of 32 bytes, boxes of 32 columns x 2 rows)")
    device.close()
    simulation.assert_clean()


# -- among the arguments --------------------------------------------------------------------------
@pytest.mark.parametrize("text", [
    "const TensorMap w_map", "int n, const __grid_constant__ TensorMap w_map",
    "bool a, double b, struct TensorMap w_map, int c, TensorMap v_map, char d",
])
def test_maps_lie_at_multiples_of_64_bytes(text: str) -> None:
    signature = parse_kernels(f"__global__ void k({text}) {{}}")["k"]
    held = []  # buffers begin anywhere
    for size in range(40):
        values = {p.name: bytes([size]) * 128 if p.tensor_map else 0 for p in signature.parameters}
        packed = Arguments(signature, values)
        held.append((packed, bytearray(size)))
        pointers = (ctypes.c_void_p * len(values)).from_address(packed.address)
        for parameter, pointer in zip(signature.parameters, pointers, strict=True):
            assert pointer
            assert pointer % parameter.align == 0
            found = ctypes.string_at(pointer, parameter.size)
            assert not parameter.tensor_map or found == values[parameter.name]


@pytest.mark.parametrize("value", [b"", bytes(127), bytes(129), 0, None, "map", bytearray(128)])
def test_a_map_is_128_bytes(value: Any) -> None:
    signature = parse_kernels("__global__ void k(TensorMap w_map) {}")["k"]
    with pytest.raises(ConfigError, match="argument 'w_map' is a tensor map: 128 bytes, not"):
        Arguments(signature, {"w_map": value})


def test_maps_are_missing_or_too_many() -> None:
    driver = Recorder()
    values = {"x": 16, "ldx": LD, "y": 16, "ldy": LD, "rows": ROWS, "cols": COLS}
    with pytest.raises(ConfigError, match="missing: y_map"):
        Arguments(SIGNATURE, values, {"x": matrix(driver)})
    with pytest.raises(ConfigError, match="not among them: rows_map"):
        Arguments(SIGNATURE, values, {n: matrix(driver) for n in ("x", "y", "rows")})
    del values["x"]
    with pytest.raises(ConfigError, match="missing: x, x_map"):
        Arguments(SIGNATURE, values, {"x": matrix(driver), "y": matrix(driver)})


def test_a_map_is_made_when_its_operand_is_set_and_at_no_launch(device: Device) -> None:
    x, other, y = vector(device, 1.0, 24), vector(device, 5.0, 24), vector(device, 0.0, 24)
    count = device.driver.simulation.faults.count
    command = launch(device, arguments(device.driver, x, y))
    assert count("cuTensorMapEncodeTiled") == 2
    for _ in range(3):
        command.run(0)
    assert count("cuTensorMapEncodeTiled") == 2
    command.rebind("x", other)
    command.rebind("ldx", LD)
    assert count("cuTensorMapEncodeTiled") == 3
    command.run(0)
    assert read(device, y, 24).reshape(ROWS, LD)[:, :COLS].tolist() == [[6.0] * COLS] * ROWS
    command.rebind("x", 0)
    command.rebind("x", x)
    command.run(0)
    device.stream.synchronize()


def test_a_node_of_a_graph_keeps_the_map_it_was_added_with(device: Device) -> None:
    x, other, y = vector(device, 1.0, 24), vector(device, 5.0, 24), vector(device, 0.0, 24)
    command = launch(device, arguments(device.driver, x, y))
    graph = Graph(device.driver, device.context, "one box")
    command.add_to(graph, [], 0)
    command.rebind("x", other)
    executable = graph.instantiate("one box")
    executable.launch(device.stream)
    assert read(device, y, 24)[0] == 2
    executable.close()
    graph.close()


# -- against the operand, at a launch -------------------------------------------------------------
@pytest.mark.parametrize(("changed", "sentence"), [
    ({"ld": 12}, "the map 'x_map' has the strides (48,), but 'x' asks for (32,)"),
    ({"rows": 2}, "has the extents (6, 2), but 'x' asks for (6, 3)"),
    ({"cols": 5}, "has the extents (5, 3), but 'x' asks for (6, 3)"),
    ({"box_rows": 4}, "has the box (32, 4), but 'x' asks for (32, 2)"),
    ({"dtype": "bfloat16", "ld": 16}, "has the dtype BFLOAT16, but 'x' asks for FLOAT32"),
])
def test_a_map_of_something_else_is_found(device: Device, changed: dict[str, Any],
                                          sentence: str) -> None:
    x, y = vector(device, 1.0, 24), vector(device, 0.0, 24)
    with pytest.raises(SimulationError) as caught:
        launch(device, arguments(device.driver, x, y, **changed)).run(0)
    assert sentence in str(caught.value)


def test_a_map_of_another_address_is_found(device: Device) -> None:
    x, y = vector(device, 1.0, 24), vector(device, 0.0, 24)
    packed = arguments(device.driver, x, y)
    packed._pack("x_map", matrix(device.driver).at(y))
    with pytest.raises(SimulationError, match=rf"'x_map' has the address {y:#x}, but 'x' asks for "
                                              rf"{x:#x}"):
        launch(device, packed).run(0)


@pytest.mark.parametrize(("content", "sentence"), [
    (bytes(128), "'x_map' was not made by cuTensorMapEncodeTiled"),
    (b"\1" * 128, "'x_map' was not made by"),
])
def test_bytes_that_are_no_map(device: Device, content: bytes, sentence: str) -> None:
    x, y = vector(device, 1.0, 24), vector(device, 0.0, 24)
    packed = arguments(device.driver, x, y)
    packed.set("x_map", content)
    with pytest.raises(SimulationError, match=sentence):
        launch(device, packed).run(0)


def test_maps_are_read_back_as_they_were_made(device: Device) -> None:
    found = decoded(matrix(device.driver, 7, dtype="float16").at(0x1230))
    assert found is not None
    assert (found.dtype, found.address, found.extents, found.strides, found.box, found.swizzle) \
        == ("FLOAT16", 0x1230, (COLS, ROWS), (16,), (64, 7), "128B")
    assert np.frombuffer(NO_MAP, np.uint8).sum() == 0
    assert decoded(NO_MAP) is None
