"""Arrays of other libraries: shared where they lie on the host, described where on a GPU."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rawnn.common.errors import DataError
from rawnn.cuda.device import Device
from rawnn.data.dlpack import DeviceArray, read
from tests.data.foreign import BFLOAT16, Foreign, Interface


def shared(array: Any) -> np.ndarray:
    found = read(array, "X")
    assert isinstance(found, np.ndarray)
    return found


def on_gpu(array: Any) -> DeviceArray:
    found = read(array, "X")
    assert isinstance(found, DeviceArray)
    return found


def test_numpy_arrays_are_themselves_and_lists_become_arrays() -> None:
    x = np.ones((2, 3))
    assert shared(x) is x
    assert shared([[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]
    with pytest.raises(DataError, match="X is no array"):
        read([[1], [2, 3]], "X")


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float16", "float32", "float64", "bool"])
def test_host_tensors_are_shared(dtype: str) -> None:
    x = np.arange(12).reshape(3, 4).astype(dtype)
    found = shared(Foreign(x))
    np.testing.assert_array_equal(found, x)
    x[1, 1] = not x[1, 1]
    np.testing.assert_array_equal(found, x)


@pytest.mark.parametrize("view", [lambda x: x, lambda x: x.T, lambda x: x[::2, 1:],
                                  lambda x: x[:0]])
def test_bfloat16_is_shared_with_its_strides(view: Any) -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6).astype(ml_dtypes.bfloat16)
    tensor = Foreign(view(x.view(np.uint16)), BFLOAT16)
    found = shared(tensor)
    assert found.dtype == ml_dtypes.bfloat16
    assert not found.flags.writeable or not found.size
    np.testing.assert_array_equal(found.astype(np.float32), view(x).astype(np.float32))
    row = found[:1]
    del found
    gc.collect()
    assert tensor.released == (0 if row.size else 1)  # a view keeps the memory
    del row
    gc.collect()
    assert tensor.released == 1


def test_a_type_that_is_not_known() -> None:
    x = np.zeros((2, 2), np.uint8)
    with pytest.raises(DataError, match=r"X has a type that rawnn does not know .*code 11, 8 bits"):
        read(Foreign(x, (11, 8)), "X")
    with pytest.raises(DataError, match="negative strides"):
        read(Foreign(x.view(np.uint16)[::-1], BFLOAT16), "X")


def test_other_devices_are_refused() -> None:
    with pytest.raises(DataError, match=r"neither the host nor a CUDA GPU .*type 10"):
        read(Foreign(np.zeros(2), device=10), "X")


def test_a_tensor_that_cannot_be_shared() -> None:
    class Refusing(Foreign):
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("it requires grad")

    with pytest.raises(DataError, match="X cannot be shared through DLPack: it requires grad"):
        read(Refusing(np.zeros(2)), "X")


# -- CUDA -----------------------------------------------------------------------------------------


def place(device: Device, array: np.ndarray) -> int:
    address = device.memory.allocate(array.nbytes, "X").address
    device.to_device(address, np.ascontiguousarray(array), "X")
    return address


def test_a_cuda_tensor_keeps_its_owner_and_can_be_copied(device: Device) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    tensor = Foreign(x, address=place(device, x), ordinal=0)
    found = on_gpu(tensor)
    assert (found.shape, found.dtype, found.pitch, found.ordinal) == ((3, 4), np.float32, 4, 0)
    assert tensor.streams == [1]  # ordered behind the producer's work
    np.testing.assert_array_equal(found.numpy(device), x)
    assert tensor.released == 0
    del found
    gc.collect()
    assert tensor.released == 1
    device.memory.free_all()


def test_the_cuda_array_interface(device: Device) -> None:
    x = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    array = Interface(place(device, x), x.shape, x.dtype)
    found = on_gpu(array)
    assert (found.shape, found.pitch, found.owner) == ((2, 3, 4), 12, array)
    np.testing.assert_array_equal(found.numpy(device), x)
    device.memory.free_all()


def test_rows_may_be_apart(device: Device) -> None:
    block = np.arange(32, dtype=np.float32).reshape(4, 8)
    found = on_gpu(Interface(place(device, block), (4, 5), "f4", (32, 4)))
    assert found.pitch == 8
    np.testing.assert_array_equal(found.numpy(device), block[:, :5])
    assert found.fits("float32", 8, 0)
    assert not found.fits("float32", 5, 0)
    assert not found.fits("float16", 8, 0)
    assert not found.fits("float32", 8, 1)
    device.memory.free_all()


def test_the_end_of_a_pitched_array_is_not_read_past(device: Device) -> None:
    """The last row of a view ends with the allocation: its padding is somebody else's memory."""
    x = np.arange(7, dtype=np.float32)
    found = on_gpu(Interface(place(device, x), (2, 3), "f4", (16, 4)))
    np.testing.assert_array_equal(found.numpy(device), [[0, 1, 2], [4, 5, 6]])
    device.memory.free_all()


@pytest.mark.parametrize(("shape", "strides"), [((3, 4), (4, 12)), ((5,), (8,)),
                                                ((3, 4), (8, 4)), ((2, 3, 4), (60, 20, 4))])
def test_rows_must_be_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match="not contiguous"):
        read(Interface(4096, shape, "f4", strides), "X")


def test_alignment_and_vectors() -> None:
    assert on_gpu(Interface(4096, (5,), "i4")).fits("int32", 0, 0)
    assert not on_gpu(Interface(4100, (5,), "i4")).fits("int32", 0, 0)
    assert on_gpu(Interface(4096, (1, 5), "f4", (999 * 4, 4))).fits("float32", 8, 0)


def test_an_empty_array_needs_no_copy(device: Device) -> None:
    assert on_gpu(Interface(0, (0, 5), "f4")).numpy(device).shape == (0, 5)


@pytest.mark.parametrize("changed", [{"typestr": "nonsense"}, {"strides": 7}, {"data": 7}])
def test_a_malformed_interface(changed: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="malformed __cuda_array_interface__"):
        read(Interface(4096, (2, 2), "f4", changed=changed), "X")


@pytest.mark.parametrize("kind", range(1, 18))
def test_memory_of_every_kind_of_device_is_read_or_refused(kind: int) -> None:
    """By the numbers of DLPack: the host (1, and 3 where it is page-locked) and NVIDIA GPUs (2, and
    13 for managed memory)."""
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    if kind in (1, 3):
        found = read(Foreign(values, device=kind), "the inputs")
        assert isinstance(found, np.ndarray)
        assert np.array_equal(found, values)
    elif kind in (2, 13):
        found = read(Foreign(values, address=4096, ordinal=2, device=kind), "the inputs")
        assert isinstance(found, DeviceArray)
        assert (found.address, found.ordinal, found.shape) == (4096, 2, (2, 3))
    else:
        with pytest.raises(DataError, match=rf"neither the host .* \(DLPack device type {kind}\)"):
            read(Foreign(values, device=kind), "the inputs")


@pytest.mark.parametrize("pitch", [0, 1, 3, 4])
@pytest.mark.parametrize("shape", [(5,), (1, 3), (5, 3), (1,)])
def test_what_a_kernel_reads_in_place_has_its_pitch_type_and_place(shape: tuple[int, ...],
                                                                   pitch: int) -> None:
    """A vector has no pitch, and a single row fits any."""
    array = DeviceArray(4096, shape, np.dtype(np.float32), 3, 1, None)
    fits = len(shape) == 1 or shape[0] == 1 or pitch == 3
    assert array.fits("float32", pitch, 1) == fits
    assert not array.fits("float16", pitch, 1)
    assert not array.fits("float32", pitch, 0)
    for address in (4097, 4104):
        assert not replace(array, address=address).fits("float32", pitch, 1)
    assert replace(array, address=4112).fits("float32", pitch, 1) == fits
