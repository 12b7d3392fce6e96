"""What several references share."""

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
    """left @ right, by what a runner gives as the attribute `multiply`, or NumPy's."""
    found: Array = a.get("multiply", np.matmul)(left, right, out)
    return found


def batch_rows(t: SimpleNamespace, a: Attributes, rows: int) -> Any:
    """Where in the data the op's batch lies: batch s begins at row s * stride + first, of
    `order` where it is given. An index for NumPy."""
    first = step_of(t, a) * int(a["stride"]) + int(a.get("first", 0))
    window = slice(first, first + rows)
    return t.order[window] if hasattr(t, "order") else window


def matrix_view(w: Array) -> Array:
    """A vector as a matrix of one row."""
    return w.reshape(1, -1) if w.ndim == 1 else w


def write_gradient(t: SimpleNamespace, a: Attributes, dz: Array) -> None:
    """Store a loss gradient, scaled where the plan scales losses."""
    if hasattr(t, "loss_scale"):
        dz = dz * t.dz.dtype.type(t.loss_scale[0])
    t.dz[...] = dz
    flag_overflow(t, a, "dz")


def flag_overflow(t: SimpleNamespace, a: Attributes, operand: str) -> None:
    """Set `overflow`, where the op has it, if the operand's storage type cannot hold a value. What
    operands are stored in is an attribute that runners add; float32 where they did not."""
    if hasattr(t, "overflow"):
        dtype = a.get("stored", {}).get(operand, "float32")
        if overflows(getattr(t, operand), dtype):
            t.overflow[0] = 1
