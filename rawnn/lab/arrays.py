"""Dense arrays in device memory."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from functools import cache
from math import prod
from operator import index
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rawnn.common.dtypes import check_unmasked, first_lossy
from rawnn.common.errors import ConfigError, DeviceError, check_type
from rawnn.cuda.device import Device
from rawnn.engine.machine import open_gpu
from rawnn.lab.array_exchange import capsule, exported, interface, order, stream_of

RECORDING: list[Any] = []
"""Graphs that are being recorded (rawnn.lab.graph): launches of their threads become nodes."""


def check_not_recording(what: str) -> None:
    """Raise ConfigError, whose sentence `what` begins, while this thread records a graph."""
    if any(graph.here() for graph in RECORDING):
        raise ConfigError(f"{what} launches kernels, which a `with rawnn.Graph()` block records "
                          f"instead of running them: call it outside of the block")


@cache
def default_device() -> Device:
    """The first GPU, opened once per process. Raises DeviceError if there is none."""
    try:
        return open_gpu(0, print)
    except DeviceError as error:
        raise DeviceError(f"{error}; without a GPU, pass device=rawnn.lab.simulated() to kernels "
                          f"and arrays: kernels are compiled and their launches checked there"
                          ) from None


def chosen_device(device: Device | None, default: Callable[[], Device]) -> Device:
    """The device that a caller names; for None what `default` opens. Raises ConfigError,
    DeviceError."""
    if device is None:
        return default()
    check_type("device", device, Device, "a device, such as rawnn.lab.simulated(), or None for the "
                                         "first GPU")
    return device


def simulated() -> Device:
    """A new simulated GPU for kernels and arrays, for machines without a real one.

    NVRTC compiles kernels for it if it is installed. It checks arguments, geometry, accesses and
    order; the results of kernels come from references (`rawnn.sim.register`).
    """
    from rawnn.sim import sim_backend

    return Device(sim_backend(), notify=lambda message: print(f"rawnn: {message}"))


class Array:
    """A C-contiguous array of `shape` and NumPy `dtype` on a device; its memory is freed with it.

    Create one with `rawnn.array` or `rawnn.empty`; read it back with `numpy()`. Raises ConfigError
    for elements that are Python objects or text, which kernels cannot read.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any, device: Device) -> None:
        try:
            np.dtype(dtype)
        except TypeError as error:
            raise ConfigError(f"dtype = {dtype!r}: {error}") from None
        if np.dtype(dtype).hasobject or np.dtype(dtype).kind in "USmM":
            raise ConfigError(f"an array on a GPU holds numbers, not {np.dtype(dtype)}: say "
                              f"dtype=np.float32, or another type that a kernel can read")
        self.shape, self.dtype, self.device = shape, np.dtype(dtype), device
        memory = device.memory
        allocation = memory.allocate(self.nbytes, f"array {self.dtype}{list(shape)}")
        self.address: int = allocation.address
        self._free = weakref.finalize(self, memory.free, allocation)
        self._free.atexit = False  # the end of the process frees all memory

    @classmethod
    def at(cls, address: int, shape: tuple[int, ...], dtype: Any, device: Device) -> Array:
        """An array in memory of another owner, which must keep it as long as it is used."""
        result = cls.__new__(cls)
        result.shape, result.dtype, result.device = shape, np.dtype(dtype), device
        result.address = address
        return result

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * int(self.dtype.itemsize)

    def numpy(self) -> NDArray[Any]:
        """A copy on the host, after all work enqueued so far. Raises ConfigError while a graph is
        recorded that writes this array: its nodes have not run."""
        for graph in RECORDING:
            graph.check_read(self)
        host = np.empty(self.shape, self.dtype)
        self.device.to_host(host, self.address, repr(self))
        return host

    def __dlpack_device__(self) -> tuple[int, int]:
        return exported(self.device)

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any:
        """A capsule of this memory; `stream`, the consumer's, waits for the work enqueued so far
        (None: CUDA's default stream; -1: nothing waits). Raises BufferError for another device, a
        copy, a dtype that DLPack does not have, and the simulated GPU."""
        here = exported(self.device)
        if copy or dl_device not in (None, here):
            raise BufferError("a rawnn array is shared where it lies: copy it afterwards")
        result = capsule(self.address, self.shape, self.dtype, here, self)
        if stream != -1:
            order(self.device, self.device.stream, stream_of(stream or 0))
        return result

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return interface(self.address, self.shape, self.dtype, self.device)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        """NumPy would make an array of one Python object. Raises TypeError with the fix."""
        raise TypeError(f"{self!r} lies on a GPU: copy it to the host by numpy()")

    def __getitem__(self, key: object) -> NoReturn:
        """Elements lie on a device. Raises TypeError with the fix."""
        raise TypeError(f"{self!r} lies on a GPU: read elements of its numpy()")

    def __setitem__(self, key: object, value: object) -> NoReturn:
        """Elements lie on a device. Raises TypeError with the fix."""
        raise TypeError(f"{self!r} lies on a GPU: let a kernel write it, or make another array by "
                        f"rawnn.array(values)")

    def __reduce__(self) -> NoReturn:
        """Device memory cannot be pickled or copied. Raises TypeError with the fix."""
        raise TypeError(f"{self!r} cannot be pickled or copied: take its numpy()")

    def __repr__(self) -> str:
        return f"rawnn.Array({self.dtype}{list(self.shape)} on {self.device.info.name})"


def array(values: ArrayLike, dtype: Any = None, *, device: Device | None = None) -> Array:
    """Copy host values to a device (the first GPU by default). Raises ConfigError for values that
    are no numbers or that the dtype cannot hold, DeviceError, OutOfMemory.

    Parameters
    ----------
    values
        numbers of any shape, as np.asarray takes them
    dtype
        of the elements on the device; None: that of the values
    device
        a device, such as `rawnn.lab.simulated()`; None: the first GPU
    """
    try:
        given = np.asarray(values)
        with np.errstate(over="ignore", invalid="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
            host = np.asarray(values, dtype=dtype, order="C")
    except (OverflowError, TypeError, ValueError) as error:
        raise ConfigError(f"an array on a GPU cannot hold these values: {error}") from None
    check_unmasked(values, "the array")
    _check_complete(given, host)
    place = first_lossy(given, host)
    if place is not None:
        raise ConfigError(f"an array of {host.dtype} cannot hold {given[place]} (element "
                          f"{list(place)}): round or clip the values first, or give another dtype")
    result = Array(host.shape, host.dtype, chosen_device(device, default_device))
    result.device.to_device(result.address, host, repr(result))
    return result


def _check_complete(given: NDArray[Any], host: NDArray[Any]) -> None:
    """Raise ConfigError for None, of which NumPy makes NaN."""
    objects = given.reshape(-1).tolist() if given.dtype.kind == "O" != host.dtype.kind else ()
    if any(value is None for value in objects):
        raise ConfigError("the array holds None, which is no number: fill it in first, for example "
                          "with NaN")


def empty(shape: int | tuple[int, ...], dtype: Any = np.float32, *,
          device: Device | None = None) -> Array:
    """An array whose elements are whatever the memory held. Raises ConfigError for a shape that is
    none, DeviceError, OutOfMemory.

    Parameters
    ----------
    shape
        an int or a sequence of ints
    dtype
        of the elements
    device
        a device, such as `rawnn.lab.simulated()`; None: the first GPU
    """
    try:
        extents = tuple(map(index, shape if isinstance(shape, tuple | list) else (shape,)))
    except TypeError:
        extents = (-1,)
    if min(extents, default=0) < 0:
        raise ConfigError(f"shape = {shape!r}: give a whole number of at least 0, or a tuple of "
                          f"them")
    return Array(extents, dtype, chosen_device(device, default_device))
