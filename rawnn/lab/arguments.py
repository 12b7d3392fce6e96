"""Converts a user's kernel arguments to packed values: checked by dtype, width, constness,
contiguity and device. Errors are one sentence with the fix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from rawnn.common.errors import ConfigError
from rawnn.cuda.compiling.signature import Parameter
from rawnn.cuda.compiling.structs import Struct, vector
from rawnn.cuda.device import Device
from rawnn.cuda.launch import Value
from rawnn.lab.array_exchange import imported, streams_before
from rawnn.lab.arrays import Array
from rawnn.lab.maps import TensorMap

Streams = list[int]
"""Streams of other libraries' arrays, which the launch has to follow."""
Convert = Callable[[Any, Streams], Value]

_SMALL: dict[str, Any] = {
    "__half": np.float16, "half": np.float16, "float16": np.float16,
    "__nv_bfloat16": ml_dtypes.bfloat16, "nv_bfloat16": ml_dtypes.bfloat16,
    "bfloat16": ml_dtypes.bfloat16,
    "__nv_fp8_e4m3": ml_dtypes.float8_e4m3fn, "float8_e4m3": ml_dtypes.float8_e4m3fn,
    "__nv_fp8_e5m2": ml_dtypes.float8_e5m2, "float8_e5m2": ml_dtypes.float8_e5m2,
}
_INTEGERS = "bBhHiIqQ"
_LONG = np.dtype("long")
ELEMENTS: dict[str, Any] = {
    "float": "float32", "double": "float64", "int": "int32", "unsigned int": "uint32",
    "short": "int16", "unsigned short": "uint16", "char": "int8", "signed char": "int8",
    "unsigned char": "uint8", "long long": "int64", "unsigned long long": "uint64",
    "long": _LONG, "unsigned long": np.dtype("ulong"), "size_t": "uint64", "ptrdiff_t": "int64",
    "int8_t": "int8", "uint8_t": "uint8", "int16_t": "int16", "uint16_t": "uint16",
    "int32_t": "int32", "uint32_t": "uint32", "int64_t": "int64", "uint64_t": "uint64",
    "intptr_t": "int64", "uintptr_t": "uint64", "uint": "uint32", "ushort": "uint16",
    "ulong": np.dtype("ulong"), "bool": "bool", **_SMALL,
    "half2": np.float16, "__half2": np.float16, "nv_bfloat162": ml_dtypes.bfloat16,
    "__nv_bfloat162": ml_dtypes.bfloat16, "cuComplex": "complex64", "cuFloatComplex": "complex64",
    "cuDoubleComplex": "complex128",
}  # fmt: skip
"""The NumPy type of a C type."""


def converter(parameter: Parameter, layout: Struct | None, device: Device) -> Convert:
    """A converter of arguments for `parameter` to packed values. `layout` is that of a pointer's
    target, if it is known."""
    if parameter.tensor_map:
        return lambda argument, streams: _map(parameter, argument, streams)
    if parameter.pointer:
        return _pointer(parameter, layout, device)
    if parameter.struct is not None:
        struct = parameter.struct
        return lambda argument, streams: struct.packed(_record(parameter, argument))
    if parameter.ctype in _SMALL:
        small = np.dtype(_SMALL[parameter.ctype])
        return lambda argument, streams: _small(parameter, small, argument)
    if parameter.ctype == "bool":
        return lambda argument, streams: _truth(parameter, argument)
    is_integer = parameter.format in _INTEGERS

    def number(argument: Any, streams: Streams) -> Value:
        kind = type(argument)
        if kind is int or (kind is float and not is_integer):
            value: int | float = argument
            return value
        value = _scalar(parameter, argument)
        if is_integer and isinstance(value, float):
            raise ConfigError(f"argument '{parameter.name}' ({parameter.ctype}) cannot hold "
                              f"{value!r}, which is no whole number: pass int(...)")
        return value

    return number


def _pointer(parameter: Parameter, layout: Struct | None, device: Device) -> Convert:
    accepted = _accepted(parameter, layout)
    name, const = parameter.name, parameter.const

    def convert(argument: Any, streams: Streams) -> Value:
        if type(argument) is Array:
            if argument.device is device and (accepted is None or argument.dtype in accepted):
                return argument.address
            if argument.device is not device:
                raise ConfigError(f"argument '{name}' is an array on {argument.device.info.name} "
                                  f"opened by itself: make array and kernel with the same device=")
            _refuse(parameter, layout, argument.dtype)
        if argument is None:
            return 0
        if isinstance(argument, TensorMap):
            raise ConfigError(f"argument '{name}' is a pointer, not a tensor map")
        if not (hasattr(type(argument), "__dlpack__")
                or getattr(argument, "__cuda_array_interface__", None) is not None):
            raise ConfigError(f"argument '{name}' is a pointer: pass a rawnn array (make one with "
                              f"rawnn.array), a CUDA array of another library or None, not "
                              f"{type(argument).__name__}")
        found = imported(argument, name, device, not const)
        if accepted is not None and found.dtype not in accepted:
            _refuse(parameter, layout, found.dtype)
        streams.extend(streams_before(argument))
        return found.address

    return convert


def _accepted(parameter: Parameter, layout: Struct | None) -> tuple[np.dtype[Any], ...] | None:
    """The dtypes that an array may have; None for any."""
    if parameter.ctype in ELEMENTS:
        return (np.dtype(ELEMENTS[parameter.ctype]),)
    if parameter.ctype.endswith("*"):
        return (np.dtype(np.uint64),)
    if layout is None:
        return None
    members = {member.code for member in layout.members}
    if vector(layout.name) is None:
        return (layout.dtype,)
    return (layout.dtype, np.dtype(members.pop()))  # float4 by floats


@dataclass(frozen=True)
class Elements:
    """The NumPy type of a pointer's target: `dtype` is None if unknown, `width` the numbers per
    element, such as 4 for float4."""

    dtype: np.dtype[Any] | None
    width: int = 1


def elements_of(parameter: Parameter, layout: Struct | None) -> Elements:
    """The elements of a pointer parameter; `layout` as for `converter`."""
    accepted = _accepted(parameter, layout)
    if accepted is None:
        return Elements(None)
    if len(accepted) == 2 and layout is not None:
        return Elements(accepted[1], len(layout.members))
    return Elements(accepted[0])


def _refuse(parameter: Parameter, layout: Struct | None, given: np.dtype[Any]) -> None:
    wanted = parameter.ctype
    if layout is not None and given.names:
        layout.check(given)
    if wanted.endswith("*"):
        raise ConfigError(f"argument '{parameter.name}' points to pointers ({wanted}), and the "
                          f"array holds {given}: pass an array of addresses, uint64, such as "
                          f"rawnn.array([x.address, y.address], np.uint64)")
    known = f" (NumPy's {np.dtype(ELEMENTS[wanted])})" if wanted in ELEMENTS else ""
    raise ConfigError(f"argument '{parameter.name}' points to {wanted}, but the array holds "
                      f"{given}: convert it to {wanted}{known}, or change the kernel's type")


def _map(parameter: Parameter, argument: Any, streams: Streams) -> Value:
    if not isinstance(argument, TensorMap):
        raise ConfigError(f"argument '{parameter.name}' is a tensor map: make one with "
                          f"rawnn.tensor_map(array, box)")
    if not isinstance(argument.array, Array):
        streams.extend(streams_before(argument.array))
    return argument.content


def _record(parameter: Parameter, argument: Any) -> Any:
    """A struct's value on the host, of any kind."""
    if isinstance(argument, list):  # as TOML and JSON have its members
        return tuple(argument)
    if isinstance(argument, bytes | tuple | complex | np.generic | np.ndarray):
        return argument
    return _scalar(parameter, argument)


def _scalar(parameter: Parameter, argument: Any) -> Any:
    """A number or a structured scalar. Raises ConfigError for other arguments."""
    what = f"argument '{parameter.name}' is a {parameter.ctype}"
    if argument is None:
        raise ConfigError(f"{what}, and None is no value: only a pointer may be None")
    if isinstance(argument, TensorMap):
        raise ConfigError(f"{what}, not a tensor map")
    if isinstance(argument, np.void):
        return argument
    if isinstance(argument, np.generic) or (isinstance(argument, np.ndarray)
                                            and argument.shape == ()):
        return argument if argument.dtype.names else argument.item()
    if isinstance(argument, Array | np.ndarray | list | tuple) or hasattr(argument, "__dlpack__") \
            or hasattr(argument, "__cuda_array_interface__"):
        raise ConfigError(f"{what}, not an array: pass one number (x.item()), or declare it "
                          f"{parameter.ctype}*")
    return argument


def _truth(parameter: Parameter, argument: Any) -> bool:
    """Raises ConfigError for what is neither a truth value nor 0 or 1: C would make true of it."""
    value = _scalar(parameter, argument)
    if not isinstance(value, int) or value not in (0, 1):
        raise ConfigError(f"argument '{parameter.name}' (bool) cannot hold {value!r}: pass True or "
                          f"False")
    return bool(value)


def _small(parameter: Parameter, dtype: np.dtype[Any], argument: Any) -> int:
    """The bits of a number in a 16-bit or 8-bit type."""
    value = _scalar(parameter, argument)
    if not isinstance(value, int | float):
        raise ConfigError(f"argument '{parameter.name}' ({parameter.ctype}) cannot hold {value!r}")
    with np.errstate(over="ignore"):
        converted = np.asarray(value, np.float64).astype(dtype)
    if np.isfinite(value) and not np.isfinite(converted.astype(np.float64)):
        raise ConfigError(f"argument '{parameter.name}' ({parameter.ctype}) cannot hold {value!r}: "
                          f"it is beyond the largest number of {dtype}")
    return int(converted.view(f"u{dtype.itemsize}"))
