"""GEMMs."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from rawnn.model.activations import activation
from rawnn.plan.op import Attributes, define
from rawnn.plan.ops.common import Array, flag_overflow, multiply


def factors(t: SimpleNamespace, a: Attributes) -> tuple[Array, Array]:
    """op(a) and op(b)."""
    left = t.a.T if a["layout"][0] == "t" else t.a
    right = t.b.T if a["layout"][1] == "t" else t.b
    return left, right


@define("matmul", reads=("a", "b", "bias", "saved", "overflow"),
        writes=("c", "pre", "workspace", "overflow"),
        optional=("bias", "saved", "pre", "workspace", "overflow"))
def matmul(t: SimpleNamespace, a: Attributes) -> None:
    """c = act(alpha * op(a) op(b) + beta * c + bias) * slope(saved).

    The layout nt, nn or tn names the transposes; `pre` receives the argument of `act`, if needed;
    `workspace` is scratch memory for a library.
    """
    left, right = factors(t, a)
    alpha, beta = a["alpha"], a["beta"]
    if alpha == 1.0 and beta == 0.0:
        multiply(a, left, right, t.c)
    else:
        found = multiply(a, left, right)
        found *= alpha
        t.c[...] = found if beta == 0.0 else found + beta * t.c
    if a["bias"]:
        t.c += t.bias
    if hasattr(t, "pre"):
        t.pre[...] = t.c
    if a["activation"]:
        t.c[...] = activation(a["activation"]).function(t.c)
    if a["slope"]:
        t.c *= activation(a["slope"]).slope(t.saved)
    flag_overflow(t, a, "c")


@define("matmul_slices", reads=("a", "b"), writes=("partial", "workspace"),
        optional=("workspace",))
def matmul_slices(t: SimpleNamespace, a: Attributes) -> None:
    """partial = op(a)[:, K] op(b)[K] for each slice K of the inner dimension, stacked by rows."""
    left, right = factors(t, a)
    m, part = a["m"], a["k"] // a["slices"]
    for s in range(a["slices"]):
        inner = slice(s * part, (s + 1) * part)
        np.matmul(left[:, inner], right[inner], out=t.partial[s * m : (s + 1) * m])


@define("sum_slices", reads=("partial", "bias"), writes=("c",), optional=("bias",))
def sum_slices(t: SimpleNamespace, a: Attributes) -> None:
    """c = act(sum of the slices of partial + bias)."""
    np.sum(t.partial.reshape(a["slices"], *t.c.shape), axis=0, out=t.c)
    if a["bias"]:
        t.c += t.bias
    if a["activation"]:
        t.c[...] = activation(a["activation"]).function(t.c)
