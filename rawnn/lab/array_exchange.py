"""Exchanges arrays with other libraries without a copy: DLPack and the CUDA array interface.

rawnn.data.dlpack reads arrays of other libraries. This module orders the streams of both sides: a
launch with such an array follows what its library has enqueued, and later work of the library on
CUDA's default stream follows the launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from rawnn.common.errors import ConfigError
from rawnn.cuda.device import Device
from rawnn.cuda.errors import check
from rawnn.cuda.stream import OrderingEvent
from rawnn.data.dlpack import DeviceArray, capsule_of, read

_LEGACY = 1
"""CUDA's default stream in the numbering of DLPack and the CUDA array interface; it replaces the
driver's number 0."""
_CUDA = 2  # DLDeviceType
_SIMULATED = "sim"


@dataclass(frozen=True)
class Handle:
    """A stream that another library owns."""

    handle: int


def stream_of(stream: Any) -> Handle:
    """The argument of `using(stream=...)`: a number, or a stream of rawnn, PyTorch, CuPy, numba or
    cuda.core. Raises ConfigError for anything else."""
    if isinstance(stream, int) and not isinstance(stream, bool):
        return Handle(_known(stream))
    if hasattr(stream, "__cuda_stream__"):
        described = stream.__cuda_stream__
        return Handle(_known(int((described() if callable(described) else described)[1])))
    for name in ("cuda_stream", "ptr", "handle"):  # PyTorch, CuPy, rawnn and numba
        found = getattr(stream, name, None)
        if found is not None:
            return Handle(_known(int(getattr(found, "value", found) or 0)))
    raise ConfigError(f"stream = {stream!r}: pass a stream of PyTorch, CuPy, numba or cuda.core, "
                      f"or its address as a number")


def _known(handle: int) -> int:
    return 0 if handle == _LEGACY else handle


def order(device: Device, first: Any, then: Any) -> None:
    """Let later work on the stream `then` wait for the work on `first`; the host does not wait."""
    event = OrderingEvent(device.driver)
    try:
        event.record(first)
        check(device.driver, "cuStreamWaitEvent",
              device.driver.cuStreamWaitEvent(then.handle, event.handle, 0), "ordering two streams")
    finally:
        event.close()  # the driver keeps an event that is waited for


def capsule(address: int, shape: tuple[int, ...], dtype: np.dtype[Any], device: tuple[int, int],
            owner: object) -> Any:
    """A DLPack capsule of dense memory; it keeps `owner` alive until its consumer releases it."""
    try:
        return capsule_of(address, shape, dtype, device, owner)
    except KeyError:
        raise BufferError(f"DLPack has no type for {dtype}") from None


def exported(device: Device) -> tuple[int, int]:
    """DLPack's (device type, number). Raises BufferError for the simulated GPU, whose memory other
    libraries cannot read."""
    if device.backend.name == _SIMULATED:
        raise BufferError("the memory of the simulated GPU cannot be shared: copy it by numpy()")
    return _CUDA, device.info.ordinal


def interface(address: int, shape: tuple[int, ...], dtype: np.dtype[Any],
              device: Device) -> dict[str, Any]:
    """The CUDA array interface, version 3. Raises AttributeError (the array has none) for dtypes
    that it does not have, and on the simulated GPU."""
    if device.backend.name == _SIMULATED or dtype.kind not in "biufc":
        raise AttributeError(f"{dtype} on {device.info.name} has no CUDA array interface")
    return {"shape": shape, "typestr": dtype.str, "data": (address if prod(shape) else 0, False),
            "version": 3, "strides": None, "stream": int(device.stream.handle)}


def streams_before(argument: Any) -> tuple[int, ...]:
    """The streams that fill an array of another library. `read` joins DLPack's to the default
    stream; the interface names its own."""
    if hasattr(type(argument), "__dlpack__"):
        return (0,)
    described = getattr(argument, "__cuda_array_interface__", None) or {}
    return tuple(dict.fromkeys((0, _known(described.get("stream") or 0))))


def imported(argument: Any, name: str, device: Device, writable: bool) -> DeviceArray:
    """An array of another library in place. Raises ConfigError, with the fix, for one that a kernel
    cannot use; DataError if it cannot be shared at all."""
    if isinstance(argument, np.ndarray | np.generic):
        raise ConfigError(f"argument '{name}' is a NumPy array, on the host: copy it with "
                          f"rawnn.array(...)")
    described = getattr(argument, "__cuda_array_interface__", None) or {}
    if writable and (described.get("data", (0, False))[1]
                     or type(argument).__module__.partition(".")[0] in ("jax", "jaxlib")):
        raise ConfigError(f"argument '{name}' is written, and the array is read-only: declare the "
                          f"parameter const, or pass a copy (JAX's arrays never change)")
    found = read(argument, f"argument '{name}'")
    if not isinstance(found, DeviceArray):
        raise ConfigError(f"argument '{name}' is an array on the host: move it to the GPU "
                          f"(tensor.cuda(), cupy.asarray(...), rawnn.array(...))")
    if found.ordinal != device.info.ordinal:
        raise ConfigError(f"argument '{name}' lies on GPU {found.ordinal}, the kernel on GPU "
                          f"{device.info.ordinal}: copy it there")
    if len(found.shape) > 1 and found.shape[0] > 1 and found.pitch != prod(found.shape[1:]):
        raise ConfigError(f"argument '{name}' is not contiguous: pass a contiguous copy "
                          f"(tensor.contiguous(), cupy.ascontiguousarray(...))")
    return found
