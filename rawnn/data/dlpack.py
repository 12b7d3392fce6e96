"""Arrays of other libraries, read without importing them: DLPack and `__cuda_array_interface__`.

A host array becomes a NumPy array that shares its memory. A CUDA array becomes a `DeviceArray`: its
address, shape and pitch, and the owner of the memory. NumPy's `from_dlpack` reads neither CUDA
memory nor bfloat16, hence this reader of the C structures.
"""

from __future__ import annotations

import ctypes
import math
import sys
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from rawnn.common.errors import DataError

if TYPE_CHECKING:
    from rawnn.cuda.device import Device

_HOST, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13  # DLDeviceType
_DTYPES: dict[tuple[int, int], Any] = {  # (DLDataTypeCode, bits)
    (0, 8): np.int8, (0, 16): np.int16, (0, 32): np.int32, (0, 64): np.int64,
    (1, 8): np.uint8, (1, 16): np.uint16, (1, 32): np.uint32, (1, 64): np.uint64,
    (2, 16): np.float16, (2, 32): np.float32, (2, 64): np.float64,
    (4, 16): ml_dtypes.bfloat16, (6, 8): np.bool_,
    (5, 64): np.complex64, (5, 128): np.complex128,
    (10, 8): ml_dtypes.float8_e4m3fn, (12, 8): ml_dtypes.float8_e5m2,
}
_LEGACY_STREAM = 1
"""CUDA's legacy default stream in DLPack's numbering: the producer lets it wait for the work that
fills the array, and rawnn waits for it before it reads."""


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """Memory of another library on GPU `ordinal`. `pitch` is in elements from row to row, where a
    row is all axes after the first.

    `owner` keeps the memory alive as long as this object lives.
    """

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    pitch: int
    ordinal: int
    owner: Any

    def fits(self, dtype: str, pitch: int, ordinal: int) -> bool:
        """Whether a kernel can read it in place: dtype, row pitch in elements (a vector has none),
        GPU, and 16-byte alignment."""
        rows_fit = len(self.shape) < 2 or self.pitch == pitch or self.shape[0] == 1
        return (self.dtype == dtype and rows_fit and self.ordinal == ordinal
                and self.address % 16 == 0)

    def numpy(self, device: Device | None = None) -> NDArray[Any]:
        """A copy on the host, after all work of the GPU is done. `device` is this GPU if it is
        already open. Raises DeviceError."""
        if device is None:
            from rawnn.engine.machine import open_gpu

            opened = open_gpu(self.ordinal, lambda message: None)
            try:
                return self.numpy(opened)
            finally:
                opened.close()
        from rawnn.cuda.errors import check

        rows, width = self.shape[0], math.prod(self.shape[1:])
        if 0 in self.shape:
            return np.zeros(self.shape, self.dtype)
        block = np.empty((rows, self.pitch if len(self.shape) > 1 else 1), self.dtype)
        check(device.driver, "cuCtxSynchronize", device.driver.cuCtxSynchronize(), repr(self))
        filled = block.reshape(-1)[: (rows - 1) * block.shape[1] + width]  # nothing after the end
        device.to_host(filled, self.address, repr(self))
        return np.ascontiguousarray(block[:, :width]).reshape(self.shape)

    def __repr__(self) -> str:
        return f"DeviceArray({self.dtype}{list(self.shape)} on GPU {self.ordinal})"


def read(array: Any, name: str) -> NDArray[Any] | DeviceArray:
    """`array` as a NumPy array or a DeviceArray, with shared memory if possible.

    Takes NumPy arrays, objects with `__dlpack__` or `__cuda_array_interface__`, and what
    `numpy.asarray` accepts. `name` begins the sentence of a DataError.
    """
    if array is None:
        raise DataError(f"{name} are None" if name.startswith("the ") else f"{name} is None")
    if isinstance(array, np.ma.MaskedArray):
        masked = np.count_nonzero(array.mask)
        if masked:
            raise DataError(f"{name}: {masked:,} values are masked: fill them in with "
                            f"array.filled(...), or leave their rows out")
        return np.asarray(array)
    if isinstance(array, np.ndarray):
        return np.asarray(array)  # numpy.matrix slices in another way than an array
    if isinstance(array, DeviceArray):
        return array
    if hasattr(type(array), "__dlpack__"):
        kind, ordinal = (int(part) for part in array.__dlpack_device__())
        if kind in (_HOST, _CUDA_HOST):
            return _host(array, name)
        if kind in (_CUDA, _CUDA_MANAGED):
            return _Managed(_capsule(array, name, stream=_LEGACY_STREAM)).device(ordinal, name)
        raise DataError(f"{name} lies on a device that is neither the host nor a CUDA GPU "
                        f"(DLPack device type {kind}): move it to the host first")
    if getattr(array, "__cuda_array_interface__", None) is not None:
        return _from_interface(array, name)
    try:
        return np.asarray(array)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} is no array: {error}") from None


def _capsule(array: Any, name: str, **options: Any) -> Any:
    try:
        return array.__dlpack__(**options)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise DataError(f"{name} cannot be shared through DLPack: {error}") from None


def _host(array: Any, name: str) -> NDArray[Any]:
    try:
        shared: NDArray[Any] = np.from_dlpack(array)
        return shared
    except (BufferError, RuntimeError, TypeError, ValueError):
        return _Managed(_capsule(array, name)).host(name)  # bfloat16, or a clear error


# -- the C structures -----------------------------------------------------------------------------


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    )


class _ManagedTensor(ctypes.Structure):
    """DLManagedTensor, the target of a capsule named "dltensor"."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_api = ctypes.pythonapi
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_api.PyCapsule_SetName.argtypes = (ctypes.py_object, ctypes.c_char_p)
_USED = ctypes.create_string_buffer(b"used_dltensor")  # a capsule stores only the pointer


def _delete(pointer: int) -> None:
    managed = _ManagedTensor.from_address(pointer)
    if managed.deleter:
        _Deleter(managed.deleter)(pointer)


_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_api.PyCapsule_IsValid.argtypes = (ctypes.py_object, ctypes.c_char_p)
_api.Py_IncRef.argtypes = (ctypes.py_object,)
_NAME = ctypes.create_string_buffer(b"dltensor")
_exported: dict[int, tuple[Any, ...]] = {}
"""Memory that capsules' consumers still use, by the address of the managed tensor."""
_offered: dict[int, Any] = {}
"""Capsules that had no consumer at the last check."""


def _forget(pointer: int) -> None:
    _exported.pop(pointer, None)


_release = _Deleter(_forget)
_api.Py_IncRef(_release)  # never freed: a consumer may outlive this module


def _sweep() -> None:
    """Release the memory of capsules that ended unused. A destructor in the capsule would have to
    be C: NumPy ends a capsule that it refuses with an error pending, which Python code would
    raise."""
    for pointer in list(_offered):
        if not _api.PyCapsule_IsValid(_offered[pointer], b"dltensor"):
            del _offered[pointer]  # its consumer releases it
        elif sys.getrefcount(_offered[pointer]) <= 2:  # only the table's and this call's
            del _offered[pointer]
            _forget(pointer)


def capsule_of(address: int, shape: tuple[int, ...], dtype: np.dtype[Any],
               device: tuple[int, int], owner: object) -> Any:
    """A DLPack capsule of C-contiguous memory on `device` (DLDeviceType, number). `owner` is kept
    alive until the consumer releases it, or without a consumer until the next capsule is made.
    Raises KeyError for a dtype that DLPack does not have."""
    code, bits = next((key for key, known in _DTYPES.items() if dtype == known), (-1, 0))
    if code < 0:
        raise KeyError(dtype)
    extents = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    steps = (ctypes.c_int64 * max(len(shape), 1))(*_packed(shape))
    managed = _ManagedTensor(
        _Tensor(address, *device, len(shape), code, bits, 1, extents, steps, 0), None,
        ctypes.cast(_release, ctypes.c_void_p))
    pointer = ctypes.addressof(managed)
    _exported[pointer] = (managed, extents, steps, owner)
    _sweep()
    made = _api.PyCapsule_New(pointer, ctypes.cast(_NAME, ctypes.c_char_p), None)
    _offered[pointer] = made
    return made


class _Managed:
    """A consumed capsule: calls the producer's deleter when nothing refers to this any more."""

    def __init__(self, capsule: Any) -> None:
        pointer = _api.PyCapsule_GetPointer(capsule, b"dltensor")
        _api.PyCapsule_SetName(capsule, ctypes.cast(_USED, ctypes.c_char_p))
        self._finalizer = weakref.finalize(self, _delete, pointer)
        tensor = _ManagedTensor.from_address(pointer).tensor
        self.address = (tensor.data or 0) + tensor.byte_offset
        self.shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
        self.strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) \
            if tensor.strides else _packed(self.shape)
        self._type = (tensor.code, tensor.bits, tensor.lanes)

    def dtype(self, name: str) -> np.dtype[Any]:
        code, bits, lanes = self._type
        if lanes != 1 or (code, bits) not in _DTYPES:
            raise DataError(f"{name} has a type that rawnn does not know (DLPack code {code}, "
                            f"{bits} bits, {lanes} lanes)")
        found: np.dtype[Any] = np.dtype(_DTYPES[code, bits])
        return found

    def host(self, name: str) -> NDArray[Any]:
        dtype = self.dtype(name)
        if 0 in self.shape:
            return np.zeros(self.shape, dtype)
        if min(self.strides, default=0) < 0:
            raise DataError(f"{name} has negative strides: make a copy of it first")
        extent = 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        memory = (ctypes.c_char * (extent * dtype.itemsize)).from_address(self.address)
        memory._owner = self  # NumPy's view refers to `memory`, and `memory` to the tensor
        steps = tuple(s * dtype.itemsize for s in self.strides)
        shared: NDArray[Any] = np.ndarray(self.shape, dtype, memory, strides=steps)
        shared.flags.writeable = False
        return shared

    def device(self, ordinal: int, name: str) -> DeviceArray:
        return _device_array(self.address, self.shape, self.dtype(name), self.strides, ordinal,
                             self, name)


def _packed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def _from_interface(array: Any, name: str) -> DeviceArray:
    """The CUDA array interface, version 2 or 3. It names no GPU: the current one is assumed, 0
    unless the array has a `device` attribute."""
    interface = array.__cuda_array_interface__
    try:
        shape, dtype = tuple(map(int, interface["shape"])), np.dtype(interface["typestr"])
        address, given = int(interface["data"][0]), interface.get("strides")
        strides = _packed(shape) if given is None else tuple(s // dtype.itemsize for s in given)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DataError(f"{name} has a malformed __cuda_array_interface__ ({error})") from None
    ordinal = getattr(getattr(array, "device", None), "id", 0)
    return _device_array(address, shape, dtype, strides, int(ordinal), array, name)


def _device_array(address: int, shape: tuple[int, ...], dtype: np.dtype[Any],
                  strides: tuple[int, ...], ordinal: int, owner: Any, name: str) -> DeviceArray:
    """Rows may have a pitch, but all else must be dense: trailing axes are flattened into the
    row."""
    row = _packed(shape)
    dense = all(s == p or n == 1 for n, s, p in
                zip(shape[1:], strides[1:], row[1:], strict=True))
    if not dense or (shape and shape[0] > 1 and strides[0] < math.prod(shape[1:])):
        raise DataError(f"{name} is a CUDA array whose rows are not contiguous: make a contiguous "
                        f"copy of it first")
    width = math.prod(shape[1:])
    if len(shape) == 1 and shape[0] > 1 and strides[0] != 1:
        raise DataError(f"{name} is a CUDA array whose elements are not contiguous: make a "
                        f"contiguous copy of it first")
    pitch = width if len(shape) < 2 or shape[0] == 1 else strides[0]
    return DeviceArray(address, shape, dtype, pitch, ordinal, owner)
