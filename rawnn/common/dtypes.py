"""Storage dtypes of tensors: their names, sizes, NumPy types and names in CUDA C.

NumPy has no bfloat16 and no 8-bit floats; they are `ml_dtypes`.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from rawnn.common.errors import ConfigError, unknown

_NUMPY: dict[str, Any] = {
    "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2,
    "int32": np.int32, "uint8": np.uint8,
}
_C_TYPES = {"float32": "float", "int32": "int", "uint8": "unsigned char"}

CUDA_TYPES = {"half": "float16", "__half": "float16", "nv_bfloat16": "bfloat16",
              "__nv_bfloat16": "bfloat16", "__nv_fp8_e4m3": "float8_e4m3",
              "__nv_fp8_e5m2": "float8_e5m2"}
"""Storage dtypes of the types in CUDA's headers."""

LARGEST = {"float8_e4m3": 448.0, "float8_e5m2": 57344.0}
"""The largest value of each dtype that saturates."""

LOW_PRECISION = ("float16", "bfloat16", "float8_e4m3", "float8_e5m2")
"""Dtypes to which values are rounded when they are stored; arithmetic is in float32."""

FLOATS = ("float32", *LOW_PRECISION)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy type of a storage dtype. Raises ConfigError for an unknown name."""
    if name not in _NUMPY:
        raise unknown("type", name, _NUMPY, "the types are")
    found: np.dtype[Any] = np.dtype(_NUMPY[name])
    return found


def check_unmasked(values: object, what: str) -> None:
    """Raise ConfigError, which begins with `what`, for a masked array of NumPy that hides a value:
    converted to an array it would hold what lies beneath the mask."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values).any():
        raise ConfigError(f"{what}: {np.count_nonzero(np.ma.getmaskarray(values)):,} values are "
                          f"masked: fill them in first, with array.filled(...)")


def first_lossy(given: NDArray[Any], converted: NDArray[Any]) -> tuple[int, ...] | None:
    """The place of the first number of `given` that the conversion to `converted`, of the same
    shape, changed: fractions and numbers out of range of whole numbers, those out of range of
    floats, imaginary parts.
    Rounding to a float is no change. None where there is none, or where `given` holds no numbers.
    """
    if given.dtype == converted.dtype or given.dtype.kind not in "iubfc":
        return None
    if given.dtype.kind == "c":
        if converted.dtype.kind == "c":
            return first_lossy(np.maximum(abs(given.real), abs(given.imag)),
                               np.maximum(abs(converted.real), abs(converted.imag)))
        bad = np.asarray(given.imag != 0)
        if not bad.any():
            return first_lossy(given.real, converted)
    elif converted.dtype.kind in "iub":
        bad = np.asarray(converted != given)
    elif converted.dtype.kind in "fV" and converted.dtype.type is not np.void:  # V: ml_dtypes
        bad = np.asarray(np.isfinite(given) & ~np.isfinite(converted))
    else:
        return None
    return tuple(map(int, np.unravel_index(int(bad.argmax()), bad.shape))) if bad.any() else None


def c_type(name: str) -> str:
    """The dtype's name in CUDA C (types.cuh has those that C lacks)."""
    return _C_TYPES.get(name, name)


def itemsize(name: str) -> int:
    """Bytes of one element."""
    return numpy_dtype(name).itemsize


def rounded(values: NDArray[Any], name: str) -> NDArray[Any]:
    """Float `values` rounded to what the storage dtype can represent, in their own dtype.

    The 8-bit dtypes saturate: larger values become the largest one, as on the device.
    """
    if name in LARGEST:
        values = np.clip(values, -LARGEST[name], LARGEST[name])
    with np.errstate(over="ignore"):
        return values.astype(numpy_dtype(name)).astype(values.dtype)


def overflows(values: NDArray[Any], name: str) -> bool:
    """Whether any of `values` is NaN, or too large for the storage dtype."""
    if name in LARGEST:
        return not bool((np.abs(values) <= LARGEST[name]).all())
    return not bool(np.isfinite(rounded(values, name)).all())
