"""Arrays of another library, made up: NumPy memory or device addresses behind DLPack and the CUDA
array interface."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from rawnn.data import dlpack

HOST, CUDA = 1, 2
BFLOAT16 = (4, 16)

_LIVE: list[Any] = []  # what C structures point to must outlive whoever reads them


class Foreign:
    """A tensor that shares the memory of `array` through DLPack and nothing else.

    `kind` replaces the type (code, bits) that it says it has; with `address` it says that it lies
    at that address of GPU `ordinal`. `released` counts how often the memory was given back.
    """

    def __init__(self, array: np.ndarray, kind: tuple[int, int] | None = None,
                 address: int | None = None, ordinal: int = 0, device: int | None = None) -> None:
        self._array, self._kind, self._address = array, kind, address
        self._device = device or (HOST if address is None else CUDA)
        self._ordinal = ordinal
        self.released = 0
        self.streams: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device, self._ordinal

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any:
        self.streams.append(stream)
        array = self._array
        managed = dlpack._ManagedTensor()
        tensor = managed.tensor
        tensor.data = array.ctypes.data if self._address is None else self._address
        tensor.device_type, tensor.device_id = self._device, self._ordinal
        tensor.ndim = array.ndim
        codes = {"i": 0, "u": 1, "f": 2, "b": 6, "c": 5}
        tensor.code, tensor.bits = self._kind or (codes[array.dtype.kind], 8 * array.itemsize)
        tensor.lanes = 1
        shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        strides = (ctypes.c_int64 * array.ndim)(*(s // array.itemsize for s in array.strides))
        tensor.shape, tensor.strides = shape, strides

        def release(pointer: int) -> None:
            self.released += 1

        deleter = dlpack._Deleter(release)
        managed.deleter = ctypes.cast(deleter, ctypes.c_void_p).value
        _LIVE.extend([managed, shape, strides, deleter, array])
        make = ctypes.pythonapi.PyCapsule_New
        make.restype = ctypes.py_object
        make.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return make(ctypes.addressof(managed), b"dltensor", None)


class Interface:
    """A CUDA array as Numba and CuPy show theirs."""

    def __init__(self, address: int, shape: tuple[int, ...], dtype: Any,
                 strides: tuple[int, ...] | None = None,
                 changed: dict[str, Any] | None = None) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": np.dtype(dtype).str, "data": (address, False),
            "strides": strides, "version": 3, **(changed or {}),
        }
