"""Arrays for the kernels' checks, and what they are allowed to be off by.

A tolerance is `4 eps sqrt(k)` times the sum of the magnitudes that were added (k terms, float32
eps): rounding errors of a sum add up like a random walk. What is stored in a small type may be off
by half a unit of its last place besides.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from rawnn.model.activations import ACTIVATIONS
from tests.runners import torch_formulas

EPS = float(np.finfo(np.float32).eps)
TINY = float(np.finfo(np.float32).tiny)
UNTOUCHED = -77777
RAGGED = (1, 31, 33, 127)
STEP = 3  # the step each check works on, as cursor 1 + offset 2

DTYPES: dict[str, Any] = {
    "float": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2,
    "int": np.int32, "unsigned char": np.uint8,
}  # fmt: skip
"""NumPy types by their names in CUDA C."""


def pitched(rows: int, cols: int, pad: int, dtype: Any = np.float32) -> np.ndarray:
    """A poisoned [rows, cols] view of a buffer of exactly rows * (cols + pad) elements."""
    poison = {np.int32: UNTOUCHED, np.uint8: 255}.get(dtype, np.nan)
    return np.full((rows, cols + pad), poison, dtype)[:, :cols]


def apart(pad: int, place: int) -> int:
    """The padding of one of several operands: another one of each, aligned alike; of 0 none."""
    return pad + 16 * place * (pad > 0)


def filled(values: np.ndarray, pad: int, dtype: Any = np.float32) -> np.ndarray:
    array = pitched(*values.shape, pad, dtype)
    array[:] = values
    return array


def pitch(array: np.ndarray) -> int:
    base = array if array.base is None else array.base
    return base.shape[-1]


def padding_untouched(*arrays: np.ndarray) -> None:
    """By the bits: a NaN that a kernel made is not the one that was there."""
    for array in arrays:
        padding = np.ascontiguousarray(array.base[:, array.shape[1] :])
        bits = f"u{padding.dtype.itemsize}"
        poison = np.full((), np.nan, padding.dtype).view(bits)
        assert (padding.view(bits) == poison).all(), "a kernel wrote into padding columns"


def close(got: np.ndarray, expected: np.ndarray, bound: np.ndarray | float) -> None:
    """Element by element within `bound`, and within what storing `expected` in got's type costs."""
    got = np.asarray(got)
    error = np.abs(got.astype(np.float64) - expected)
    worst = np.max(error - bound - storage_bound(got.dtype, np.abs(expected) + bound))
    assert worst <= 0, f"off by {np.max(error):.3g}, {worst:.3g} more than allowed"


def storage_bound(dtype: np.dtype, magnitude: np.ndarray) -> np.ndarray | float:
    """The most that storing numbers of this magnitude in a small type changes them; 0 for float32,
    whose rounding the bounds of the arithmetic hold."""
    if dtype == np.float32:
        return 0.0
    if dtype.kind in "iu":
        return 0.0
    info = ml_dtypes.finfo(dtype)
    return 0.5 * float(info.eps) * magnitude + 0.5 * float(info.smallest_subnormal)


def sum_bound(magnitude: np.ndarray | float, terms: int) -> np.ndarray | float:
    return 4 * EPS * math.sqrt(terms) * magnitude + TINY


def f64(array: np.ndarray) -> np.ndarray:
    return np.asarray(array).astype(np.float64)


def threads_for(emulator: Any, wanted: int) -> int:
    """`wanted`, but 64 at most where each is a thread of the host."""
    return min(wanted, 64) if emulator.quick else wanted


def softmax64(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def one_hot(y: np.ndarray, cols: int) -> np.ndarray:
    return (np.arange(cols) == y[:, None]).astype(np.float64)


def metrics() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cursor, loss and correct of an epoch of STEP + 2 steps."""
    loss = np.full(STEP + 2, np.nan, np.float32)
    return np.array([STEP - 2], np.int32), loss, np.full(STEP + 2, UNTOUCHED, np.int32)


def only_step_written(loss: np.ndarray | None, correct: np.ndarray | None) -> None:
    if loss is not None:
        assert np.isnan(np.delete(loss, STEP)).all()
    if correct is not None:
        assert (np.delete(correct, STEP) == UNTOUCHED).all()


def workspace(blocks: int) -> np.ndarray:
    """What the losses' kernels need for several blocks (metrics.cuh)."""
    words = np.full(1 + 2 * blocks, UNTOUCHED, np.int32)
    words[0] = 0
    return words


FUNCTORS = {a.functor: name for name, a in ACTIVATIONS.items()}
"""Activations by their names in CUDA C; None is the identity."""


def activation64(functor: str, z: np.ndarray) -> np.ndarray:
    """An activation in float64."""
    return z if functor == "None" else torch_formulas.ACTIVATIONS[FUNCTORS[functor]][0](z)


def steepest(functor: str) -> float:
    """The greatest slope of an activation."""
    if functor == "None":
        return 1.0
    slope = torch_formulas.ACTIVATIONS[FUNCTORS[functor]][1]
    return float(np.abs(slope(np.linspace(-8, 8, 1601))).max())


def slope64(functor: str, saved: np.ndarray) -> np.ndarray:
    """Its slope, from what the forward pass saves: tests/plan/test_reference.py compares it with
    its closed form."""
    return np.ones_like(saved) if functor == "None" else \
        np.asarray(ACTIVATIONS[FUNCTORS[functor]].slope(saved), np.float64)
