"""Compares a kernel's result with the reference: by the norm of the error, and by element."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from rawnn.common.errors import ConfigError, nearest
from rawnn.common.tolerances import FACTOR, SMALLEST, TENSOR_CORE, UNIT, of_op
from rawnn.lab.red_zones import place

Values = NDArray[Any]
_NAMES = {"float8_e4m3fn": "float8_e4m3"}
_SPREAD = 8.0
"""How far one element's error may exceed the typical one: of normally distributed errors, one in
10^14 does."""
TENSOR_CORES = "tensor cores"
"""Value of `sums` in a work for tensor cores."""
_NOTHING = 1e-12
"""Below this fraction of the inputs' size an exact result is a remainder of cancellation: zero."""


@dataclass(frozen=True)
class Comparison:
    """One array of one trial.

    error: norm of the error over that of the result; `tolerance` is its bound.
    wrong: number of elements that are too far off by themselves.
    worst: the worst element, which is `got` instead of `expected`.
    reason: what is wrong with non-finite values.
    passed: follows from all of these.
    """

    operand: str
    dtype: str
    count: int
    error: float
    tolerance: float
    wrong: int
    worst: str
    expected: Any
    got: Any
    reason: str = ""

    @property
    def passed(self) -> bool:
        return not self.reason and not self.wrong and self.error <= self.tolerance

    def __str__(self) -> str:
        if self.tolerance == 0:
            return f"{self.operand} ({self.dtype}) " + (
                "equal" if self.passed else f"{self.wrong:,} of {self.count:,} elements differ; "
                f"the worst, {self.worst}: expected {self.expected}, got {self.got}")
        if self.reason:
            return (f"{self.operand} ({self.dtype}) has {self.reason}, of {self.count:,} elements; "
                    f"{self.worst}: expected {_text(self.expected)}, got {_text(self.got)}")
        end = f"the worst element, {self.worst}: expected {_text(self.expected)}, " \
              f"got {_text(self.got)}"
        head = f"{self.operand} ({self.dtype}) error {self.error:.1e} of its norm, " \
               f"{self.tolerance:.1e} allowed"
        wrong = "" if self.passed else (f"; {self.wrong:,} of {self.count:,} elements are wrong"
                                        if self.wrong else "")
        return f"{head}{wrong}; {end}"


def type_name(dtype: np.dtype[Any]) -> str:
    """The name of a storage dtype in rawnn's tolerances."""
    return _NAMES.get(dtype.name, dtype.name)


def allowed(dtype: np.dtype[Any], length: float, compute: str, sums: str | float) -> float:
    """The tolerance of a dtype: 0 for whole numbers. `sums` is the dtype of accumulators, "tensor
    cores" for those of tensor cores in float32, or their unit. Raises ConfigError for other
    values."""
    if sums == TENSOR_CORES:
        sums = TENSOR_CORE
    for given, known, what in ((sums, (*UNIT, TENSOR_CORES), "sums"), (compute, FACTOR, "compute")):
        if isinstance(given, str) and given not in known:
            raise ConfigError(f"{what} = \"{given}\": give one of {', '.join(known)}"
                              f"{nearest(given, known)}")
    if dtype.kind in "iub":
        return 0.0
    name = {"complex64": "float32", "complex128": "float64"}.get(dtype.name, type_name(dtype))
    return of_op(name, int(length), compute, sums)


def compare(operand: str, expected: Values, got: Values, tolerance: float, scale: float,
            nothing: float = 0.0) -> Comparison:
    """Compare `expected`, which is exact (float64, or whole numbers), with `got`, in the kernel's
    dtype. `scale` is the size of an element's terms; a smaller element is compared relative to it.
    Below `nothing` a result counts as zero.

    Whole numbers have to be equal, whatever the tolerance. Infinities have to be where they are
    expected, with their sign, or where the dtype overflows; NaN where NaN is.
    """
    if got.dtype.names:
        return min((compare(f"{operand}.{name}", expected[name], got[name], tolerance, scale)
                    for name in got.dtype.names), key=lambda c: (c.passed, -c.error))
    dtype = got.dtype
    if dtype.kind in "iub":
        return _equal(operand, expected, got)
    exact, found, size, off, mismatch = _distances(expected, got)
    count = max(int(got.size), 1)
    rms = _norm(size) / math.sqrt(count)
    scale = max(rms, scale)
    if scale <= nothing or scale == 0:
        scale = 1.0  # all of it is zero: results are compared relative to inputs of order 1
    name = type_name(dtype)
    floor = SMALLEST.get(name, 0.0) * UNIT.get(name, 0.0)
    stored = min(UNIT.get(name, 0.0), tolerance)  # the bound for every element
    limit = 1.01 * stored * size + _SPREAD * (tolerance - stored) * np.maximum(size, scale) + floor
    bad = mismatch | (off > limit)
    error = _norm(off) / math.sqrt(count) / scale
    if floor and error * scale <= floor:
        error = 0.0
    worst = int(np.argmax(np.where(mismatch, np.inf, off / np.maximum(limit, 1e-300))))
    reason = _describe_mismatch(exact, found, mismatch)
    return Comparison(operand, name, got.size, error, tolerance, int(bad.sum()),
                      place(worst, got.shape), exact.flat[worst].item(), found.flat[worst].item(),
                      reason)


def _distances(expected: Values, got: Values) -> tuple[Values, Values, Values, Values, Values]:
    """For every element: the exact value (as the dtype represents it), the value found, the size of
    the former and the distance between them (0 if either is not finite), and whether only one of
    them is not finite."""
    dtype = got.dtype
    kind = np.complex128 if dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        exact, found = expected.astype(kind, copy=False), got.astype(kind)
        size, off = np.abs(exact), np.abs(found - exact)
        # NaN and infinities propagate to the sums.
        plain = math.isfinite(float(off.sum())) and float(size.max(initial=0)) <= _largest(dtype)
        if plain:
            return exact, found, size, off, np.zeros(exact.shape, bool)
        held = expected.astype(dtype).astype(kind)  # overflows if the dtype does
        exact = np.where(np.isfinite(held), exact, held)
        finite = np.isfinite(exact)
        mismatch = np.where(finite, ~np.isfinite(found),
                            ~((exact == found) | (np.isnan(exact) & np.isnan(found))))
        off = np.where(finite & ~mismatch, np.abs(found - exact), 0)
    return exact, found, np.where(finite, size, 0), off, mismatch


def _largest(dtype: np.dtype[Any]) -> float:
    limits: Any = ml_dtypes.finfo  # NumPy's, with the small types
    return float("inf") if dtype.kind in "iub" else float(limits(dtype).max)


def _norm(values: Values) -> float:
    flat = values.reshape(-1)
    largest = float(flat.max(initial=0))
    if largest == 0 or 1e-140 < largest < 1e140:  # its square is representable
        return math.sqrt(float(np.dot(flat, flat)))
    flat = flat / largest
    return largest * math.sqrt(float(np.dot(flat, flat)))


def _equal(operand: str, expected: Values, got: Values) -> Comparison:
    wanted = expected
    if wanted.dtype.kind in "fc":
        wanted = np.rint(wanted.real)
    different = wanted != got
    wrong = int(different.sum())
    distance = np.abs(wanted.astype(np.float64) - got.astype(np.float64))
    worst = int(np.argmax(distance)) if wrong else 0
    return Comparison(operand, got.dtype.name, got.size, float(wrong / max(got.size, 1)), 0.0,
                      wrong, place(worst, got.shape), wanted.flat[worst].item(),
                      got.flat[worst].item())


def _describe_mismatch(exact: Values, found: Values, mismatch: Values) -> str:
    """A description of mismatches of infinities and NaN."""
    if not mismatch.any():
        return ""
    parts = []
    for count, words in (
            (int((mismatch & np.isnan(found)).sum()), "NaN where there should be a number"),
            (int((mismatch & np.isinf(found)).sum()),
             "infinite where there should be another value"),
            (int((mismatch & np.isfinite(found)).sum()),
             "a number where there should be NaN or infinity")):
        if count:
            parts.append(f"{count:,} {words}")
    return ", ".join(parts)


def _text(value: Any) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def sensitivity(expected: Values, perturbed: Values, by: float) -> float:
    """The size of a result's terms: how much it changes, in root mean square, if inputs change by
    the fraction `by` of themselves."""
    if expected.dtype.kind not in "fc":
        return 0.0
    with np.errstate(all="ignore"):
        moved = np.abs(perturbed - expected) / by
    return _finite_rms(moved.astype(np.float64))  # a reference may return float16


def is_nothing(values: Values) -> float:
    """The value below which a result of these inputs counts as zero."""
    if values.dtype.names or values.dtype.kind in "iub":
        return 0.0
    with np.errstate(all="ignore"):
        size = np.abs(values.astype(np.complex128 if values.dtype.kind == "c" else np.float64))
    return _NOTHING * _finite_rms(size)


def _finite_rms(size: Values) -> float:
    """The root mean square of what is finite; 0 of nothing."""
    finite = size[np.isfinite(size)]
    return _norm(finite) / math.sqrt(max(finite.size, 1))
