"""Tensor maps of the simulated driver: what it refuses, and what a launch compares them with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rawnn.cuda.compiling.signature import parse_kernels
from rawnn.cuda.device import Device
from rawnn.cuda.tensormap import NO_MAP, MappedMatrix
from rawnn.sim import Simulation, SimulationError
from rawnn.sim.tensormap import SimMap, check_maps, decoded

GOOD = SimMap("BFLOAT16", 0x7f0000000010, (100, 30), (208,), (64, 256), "128B", "L2_256B")


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data(), st.integers(1, 5))
def test_maps_are_decoded_as_they_were_encoded(data: st.DataObject, rank: int) -> None:
    made = SimMap(
        data.draw(st.sampled_from(["FLOAT32", "UINT8", "FLOAT64"])),
        16 * data.draw(st.integers(1, 2**59)),
        tuple(data.draw(st.lists(st.integers(1, 2**32 - 1), min_size=rank, max_size=rank))),
        tuple(16 * data.draw(st.integers(1, 2**35)) for _ in range(rank - 1)),
        (16, *data.draw(st.lists(st.integers(1, 256), min_size=rank - 1, max_size=rank - 1))),
        data.draw(st.sampled_from(["NONE", "128B"])), "L2_128B")
    encoded = made.encoded()
    assert len(encoded) == 128
    assert decoded(encoded) == made


@pytest.mark.parametrize("changed", [
    {"dtype": "FLOAT8"}, {"swizzle": "256B"}, {"promotion": "L2_512B"}, {"address": 0},
    {"address": 8}, {"extents": ()}, {"extents": (100,)}, {"extents": (1,) * 6},
    {"extents": (0, 30)}, {"extents": (100, 2**32 + 1)}, {"strides": ()}, {"strides": (200,)},
    {"strides": (0,)}, {"strides": (2**40,)}, {"strides": (208, 16)}, {"box": (64,)},
    {"box": (0, 8)}, {"box": (64, 257)}, {"box": (4, 8)}, {"box": (72, 8)},
    {"box": (64, 8), "swizzle": "64B"}, {"box": (32, 8), "swizzle": "32B"},
])
def test_what_the_driver_refuses(device: Device, changed: dict[str, Any]) -> None:
    wrong = replace(GOOD, **changed)
    encode = device.driver.cuTensorMapEncodeTiled
    result = encode(wrong.dtype, wrong.address, wrong.extents, wrong.strides, wrong.box,
                    wrong.swizzle, wrong.promotion)
    assert result == (1, b"")
    assert encode(GOOD.dtype, GOOD.address, GOOD.extents, GOOD.strides, GOOD.box, GOOD.swizzle,
                  GOOD.promotion) == (0, GOOD.encoded())


@pytest.mark.parametrize("changed", [
    {"address": 16}, {"extents": (1, 1)}, {"extents": (100, 2**32)}, {"strides": (2**40 - 16,)},
    {"strides": (16,)}, {"box": (64, 256)}, {"box": (8, 1)}, {"box": (32, 8), "swizzle": "64B"},
    {"box": (16, 8), "swizzle": "32B"}, {"box": (256, 8), "swizzle": "NONE"},
    {"extents": (9,), "strides": (), "box": (8,)},
    {"extents": (9,) * 5, "strides": (32,) * 4, "box": (8, *[1] * 4)}])
def test_what_lies_at_the_drivers_limits(device: Device, changed: dict[str, Any]) -> None:
    good = replace(GOOD, **changed)
    assert device.driver.cuTensorMapEncodeTiled(
        good.dtype, good.address, good.extents, good.strides, good.box, good.swizzle,
        good.promotion) == (0, good.encoded())


def test_older_gpus_have_no_maps() -> None:
    device = Device(Simulation(compute_capability=(8, 9)).backend())
    with pytest.raises(SimulationError, match=r"tensor maps need compute capability 9\.0"):
        MappedMatrix(device.driver, "w", 4, 8, 8, "float32", 4).at(0x1000)


# -- at a launch ----------------------------------------------------------------------------------
SIGNATURE = parse_kernels("__global__ void k(float* w, int ldw, TensorMap w_map) {}")["k"]


FLOAT = np.dtype(np.float32)


@dataclass
class Operand:
    """As the simulated kernel knows it."""

    name: str = "w"
    dtype: Any = FLOAT
    address: int = 0x1000
    rows: int = 30
    cols: int = 100
    ld: int = 104
    matrix: bool = True
    window: bool = False


RIGHT = SimMap("FLOAT32", 0x1000, (100, 30), (416,), (32, 8), "128B", "L2_256B")


def checked(raw: bytes, *operands: Operand, boxes: Any = lambda s: {"w": 8 * s["half"]},
            **changed: Any) -> None:
    values = {"w": 0x1000, "ldw": 104, "w_map": raw}
    check_maps("k", changed.get("signature", SIGNATURE), values, operands, boxes, {"half": 1})


def test_a_map_that_fits() -> None:
    checked(RIGHT.encoded(), Operand())
    checked(replace(RIGHT, promotion="NONE").encoded(), Operand())
    checked(replace(RIGHT, box=(32, 77)).encoded(), Operand(), boxes=None)
    checked(NO_MAP)


@pytest.mark.parametrize(("changed", "sentence"), [
    ({"dtype": "FLOAT16", "box": (64, 8)}, "the dtype FLOAT16, but 'w' asks for FLOAT32"),
    ({"address": 0x1010}, "the address 0x1010, but 'w' asks for 0x1000"),
    ({"extents": (104, 30)}, "the extents (104, 30), but 'w' asks for (100, 30)"),
    ({"strides": (400,)}, "the strides (400,), but 'w' asks for (416,)"),
    ({"box": (32, 16)}, "the box (32, 16), but 'w' asks for (32, 8)"),
    ({"box": (16, 8), "swizzle": "64B"}, "the box (16, 8), but"),
    ({"swizzle": "NONE"}, "the swizzle NONE, but 'w' asks for 128B"),
    ({"extents": (100, 30, 2), "strides": (416, 16), "box": (32, 8, 1)}, "the extents (100, 30,"),
])
def test_a_map_that_does_not_fit(changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SimulationError) as caught:
        checked(replace(RIGHT, **changed).encoded(), Operand())
    assert f"k: the map 'w_map' has {sentence}" in str(caught.value)


def test_maps_that_nothing_can_be_compared_with() -> None:
    right = RIGHT.encoded()
    with pytest.raises(SimulationError, match="'w_map' is given, but 'w' is left out"):
        checked(right)
    with pytest.raises(SimulationError, match="'w' is no matrix"):
        checked(right, Operand(matrix=False))
    with pytest.raises(SimulationError, match="or one that moves with the step"):
        checked(right, Operand(window=True))
    with pytest.raises(SimulationError, match="'w_map' has no box in the table of kernels"):
        checked(right, Operand(), boxes=lambda s: {"x": 8})
    with pytest.raises(SimulationError, match="boxes of its maps depend on 'units', which neither"):
        checked(right, Operand(), boxes=lambda s: {"w": s["units"]})
    named = parse_kernels("__global__ void k(float* w, TensorMap w_tiles) {}")["k"]
    with pytest.raises(SimulationError, match="'w_tiles' is of no operand"):
        check_maps("k", named, {"w": 0x1000, "w_tiles": right}, [Operand()], None, {})
