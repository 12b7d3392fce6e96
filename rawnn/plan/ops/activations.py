"""Bias and activation, forward and backward."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from rawnn.model.activations import activation
from rawnn.plan.op import Attributes, define
from rawnn.plan.ops.common import flag_overflow


@define("bias_add", reads=("z", "bias"), writes=("z",))
def bias_add(t: SimpleNamespace, a: Attributes) -> None:
    """z += bias, row by row."""
    t.z += t.bias


@define("bias_grad", reads=("dz",), writes=("db",))
def bias_grad(t: SimpleNamespace, a: Attributes) -> None:
    """db = column sums of dz."""
    np.sum(t.dz, axis=0, out=t.db)


@define("activate", reads=("z",), writes=("a",))
def activate(t: SimpleNamespace, a: Attributes) -> None:
    """a = activation(z)."""
    t.a[...] = activation(a["activation"]).function(t.z)


@define("activate_backward", reads=("da", "saved", "overflow"), writes=("dz", "overflow"),
        optional=("overflow",))
def activate_backward(t: SimpleNamespace, a: Attributes) -> None:
    """dz = da * the activation's slope at `saved`, its output or input."""
    np.multiply(t.da, activation(a["activation"]).slope(t.saved), out=t.dz)
    flag_overflow(t, a, "dz")
