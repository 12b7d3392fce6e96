"""Functions that several references share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.common.dtypes import overflows
from rawnn.plan.op import Attributes

Array = NDArray[Any]


def step_of(t: SimpleNamespace, a: Attributes) -> int:
    """The step in the epoch that an op works on."""
    return int(t.cursor[0]) + int(a.get("offset", 0))


def multiply(a: Attributes, left: Array, right: Array, out: Array | None = None) -> Array:
    """left @ right, by the attribute `multiply` that a runner gives, or NumPy."""
    found: Array = a.get("multiply", np.matmul)(left, right, out)
    return found


def batch_rows(t: SimpleNamespace, a: Attributes, rows: int) -> Any:
    """The rows of the op's batch in the data: batch s begins at row s * stride + first, of `order`
    if it is given. An index for NumPy."""
    first = step_of(t, a) * int(a["stride"]) + int(a.get("first", 0))
    window = slice(first, first + rows)
    return t.order[window] if hasattr(t, "order") else window


def matrix_view(w: Array) -> Array:
    """A vector as a matrix of one row."""
    return w.reshape(1, -1) if w.ndim == 1 else w


def write_gradient(t: SimpleNamespace, a: Attributes, dz: Array) -> None:
    """Store a loss gradient, times the loss scale if the plan has one."""
    if hasattr(t, "loss_scale"):
        dz = dz * t.dz.dtype.type(t.loss_scale[0])
    t.dz[...] = dz
    flag_overflow(t, a, "dz")


def flag_overflow(t: SimpleNamespace, a: Attributes, operand: str) -> None:
    """Set `overflow`, if the op has it, when the operand's storage dtype cannot hold a value.
    Runners add the storage dtypes as an attribute; the default is float32."""
    if hasattr(t, "overflow"):
        dtype = a.get("stored", {}).get(operand, "float32")
        if overflows(getattr(t, operand), dtype):
            t.overflow[0] = 1
