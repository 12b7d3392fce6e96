from __future__ import annotations

import copy
import gc
import pickle
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rawnn
from rawnn.common.errors import ConfigError, DeviceError, OutOfMemory
from rawnn.cuda.device import Device
from rawnn.lab import Array
from rawnn.lab.arrays import default_device
from rawnn.sim import Simulation


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "uint8", "int16",
                                   "int32", "uint32", "int64", "uint64", "bool"])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 4), (0,), (3, 0)])
def test_values_come_back_as_they_went(device: Device, dtype: str, shape: tuple[int, ...]) -> None:
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    made = rawnn.array(values, device=device)
    back = made.numpy()
    assert (back.dtype, back.shape) == (values.dtype, values.shape)
    np.testing.assert_array_equal(back, values)
    assert made.nbytes == values.nbytes


@pytest.mark.parametrize("values", [[[1, 2], [3, 4]], 5, (1.5, 2.5), range(4)])
def test_what_numpy_takes_can_be_copied(device: Device, values: Any) -> None:
    np.testing.assert_array_equal(rawnn.array(values, device=device).numpy(), np.array(values))
    assert rawnn.array(values, np.float32, device=device).dtype == np.float32


@pytest.mark.parametrize(("values", "dtype", "shown"), [
    ([0.0, 1.7], "int32", r"cannot hold 1.7 \(element \[1\]\)"),
    (np.array([[3, 300]]), "uint8", r"cannot hold 300 \(element \[0, 1\]\)"),
    (np.array([-1]), "uint64", "cannot hold -1"),
    (np.array([2**64 - 1], np.uint64), "int64", "cannot hold 18446744073709551615"),
    (np.array([2.0**31]), "int32", "cannot hold 2147483648"),
    (np.array([np.nan]), "int32", "cannot hold nan"),
    ([2], "bool", "cannot hold 2"),
    ([70000.0], "float16", "cannot hold 70000"),
    ([1e40], "float32", "cannot hold 1e[+]40"),
    (np.array([1e39]), ml_dtypes.bfloat16, "cannot hold 1e[+]39"),
    (np.array([1, 2j]), "float32", r"cannot hold 2j \(element \[1\]\)"),
    (np.array([1e4]), ml_dtypes.float8_e4m3fn, "cannot hold 10000"),
    ([2**40], "int32", "cannot hold these values"),
    (["a"], "float32", "cannot hold these values"),
    ([[1], [2, 3]], None, "cannot hold these values"),
])
def test_values_that_the_dtype_cannot_hold_are_refused(device: Device, values: Any, dtype: Any,
                                                       shown: str) -> None:
    with pytest.raises(ConfigError, match=shown):
        rawnn.array(values, dtype, device=device)


def test_rounding_to_a_float_is_no_refusal(device: Device) -> None:
    for values, dtype in (([0.1, np.inf, np.nan, 2**24 + 1], "float32"), ([True, False], "int8"),
                          ([3.0, -2.0], "int16"), ([65504.0], "float16")):
        np.testing.assert_array_equal(rawnn.array(values, dtype, device=device).numpy(),
                                      np.array(values).astype(dtype))


def test_strided_values_are_made_contiguous(device: Device) -> None:
    values = np.arange(24).reshape(4, 6)
    for view in (values.T, values[::2, ::-1], np.broadcast_to(values[0], (3, 6))):
        np.testing.assert_array_equal(rawnn.array(view, device=device).numpy(), view)


def test_an_array_is_a_copy_both_ways(device: Device) -> None:
    values = np.zeros(4, np.float32)
    made = rawnn.array(values, device=device)
    values[:] = 1
    made.numpy()[:] = 2
    assert (made.numpy() == 0).all()


@pytest.mark.parametrize(("shape", "extents"), [(5, (5,)), ((2, 3), (2, 3)), ([2, 3], (2, 3)),
                                                ((), ())])
def test_empty_arrays_have_the_shape_asked_for(device: Device, shape: Any,
                                               extents: tuple[int, ...]) -> None:
    made = rawnn.empty(shape, np.int16, device=device)
    assert (made.shape, made.dtype) == (extents, np.int16)
    assert rawnn.empty(shape, device=device).dtype == np.float32


def test_memory_is_freed_with_the_array(device: Device) -> None:
    made = rawnn.empty(1000, device=device)
    assert device.memory.current == 4000
    del made
    gc.collect()
    assert device.memory.current == 0


def test_an_array_may_outlive_its_device() -> None:
    simulation = Simulation()
    device = Device(simulation.backend())
    made = rawnn.empty(10, device=device)
    device.close()
    freed = simulation.faults.count("cuMemFree")
    made._free()  # as its end would call it
    assert simulation.faults.count("cuMemFree") == freed
    simulation.assert_clean()


def test_an_array_says_what_it_is(device: Device) -> None:
    assert repr(rawnn.empty((2, 3), device=device)) == \
        "rawnn.Array(float32[2, 3] on simulated GPU)"


def test_too_large_an_array_is_one_sentence(device: Device) -> None:
    with pytest.raises(OutOfMemory, match=r"no room for 68,719,476,736 bytes \(array float32\["):
        rawnn.empty((1 << 17, 1 << 17), device=device)


def test_the_default_device_is_opened_once(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def open_gpu(ordinal: int, notify: object) -> Device:
        opened.append(ordinal)
        return device

    monkeypatch.setattr("rawnn.lab.arrays.open_gpu", open_gpu)
    default_device.cache_clear()
    try:
        assert isinstance(rawnn.empty(1), Array)
        assert rawnn.array([1]).device is device
        assert opened == [0]
    finally:
        default_device.cache_clear()


def test_without_a_gpu_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(ordinal: int, notify: object) -> Device:
        raise DeviceError("no NVIDIA driver can be loaded")

    monkeypatch.setattr("rawnn.lab.arrays.open_gpu", refuse)
    default_device.cache_clear()
    with pytest.raises(DeviceError, match="no NVIDIA driver"):
        rawnn.array([1.0])


def test_what_an_array_says_of_itself(device: Device) -> None:
    made = rawnn.empty(np.int64(6), device=device)
    assert (made.size, made.ndim, made.shape) == (6, 1, (6,))
    assert (rawnn.empty((2, 3), device=device).size, rawnn.empty((), device=device).ndim) == (6, 0)


def test_numpy_and_pickle_are_told_how_to_take_it(device: Device) -> None:
    made = rawnn.array([1.0, 2.0], device=device)
    for take in (np.asarray, pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match=r"numpy\(\)"):
            take(made)


def test_elements_of_an_array_are_not_read_or_written_one_by_one(device: Device) -> None:
    x = rawnn.array([1.0, 2.0], device=device)
    with pytest.raises(TypeError, match=r"read elements of its numpy\(\)"):
        x[0]
    with pytest.raises(TypeError, match="make another array"):
        x[:] = 3
    assert rawnn.array(np.ma.array([1, 2]), device=device).numpy().tolist() == [1, 2]


@pytest.mark.parametrize("values", [
    np.array(["ab"]), np.array([b"ab"]), np.array([None]), np.array(["2026-01-01"], "M8[D]"),
    np.array([5], "m8[s]")])
def test_what_kernels_cannot_read_is_refused(device: Device, values: np.ndarray) -> None:
    for make in (lambda: rawnn.array(values, device=device),
                 lambda: rawnn.empty(3, values.dtype, device=device)):
        with pytest.raises(ConfigError, match=f"holds numbers, not {re.escape(str(values.dtype))}"):
            make()
