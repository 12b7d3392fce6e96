"""A whole step of a network of narrow layers in three ops, straight from the data set; the last of
one step and the first of the next can be one (rawnn/step/joining.py).

Layers 1 to D have the sizes n1 .. nD, none above W = rows of `activations` / D. `activations` and
`gradients` are [D * W, B]: rows (l - 1) * W on hold layer l, features by batch. `partial` is
[S * n1, B]: row s * n1 + j is what the s-th share of 256 features adds to pre-activation j of the
first layer. `row_p` holds the probability of each row's class. Values are rounded to the type
`dtype` where the kernels store them or multiply them; nothing is in the float64 of the oracle.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from rawnn.activations import activation
from rawnn.dtypes import rounded
from rawnn.losses.cross_entropy import gradient, softmax_of
from rawnn.step.op import Attributes, define
from rawnn.step.ops.common import Array, batch_rows, step_of

MAX_DEPTH = 6
FEATURES_A_SHARE = 256
"""Features of the first layer whose products one block sums: 8 warps of 32."""

ROWS_A_BLOCK = 8
"""Rows of the batch that one block takes through all layers behind the first."""


def shared_bytes(depth: int, width: int, slots: int, classes: int) -> int:
    """Shared memory of such a block; `slots` layers' weights are there at a time."""
    head, pitch, warps = -(-classes // 16) * 16, width + 8, width // 16
    weights = (min(depth - 2, slots) * width + head) * pitch
    vectors = (2 * width + head) * ROWS_A_BLOCK
    return 2 * (weights + vectors) + 4 * warps * ROWS_A_BLOCK * (head + 4)


_LAYERS = range(1, MAX_DEPTH + 1)
_W = tuple(f"w{i}" for i in _LAYERS)
_C = tuple(f"c{i}" for i in _LAYERS)
_B = tuple(f"b{i}" for i in _LAYERS)


def _rounded(value: Array, a: Attributes) -> Array:
    return value if value.dtype == np.float64 else rounded(value, str(a["dtype"]))


def _given(t: SimpleNamespace, names: tuple[str, ...]) -> list[Array]:
    return [getattr(t, name) for name in names if hasattr(t, name)]


def _bias(t: SimpleNamespace, layer: int) -> Array | float:
    bias: Array | float = getattr(t, f"b{layer}", 0.0)
    return bias


def _store(block: Array, value: Array) -> None:
    """A layer's [B, n] values in its rows of a [D * W, B] tensor, zeros behind them."""
    block[: value.shape[1]], block[value.shape[1] :] = value.T, 0


def _product_of_first(t: SimpleNamespace, a: Attributes, pixels: Array) -> None:
    """partial = the first layer's product with a batch, share by share."""
    number = t.w1.dtype.type
    w, x = _rounded(t.w1, a), pixels.astype(number)
    for share in range(len(t.partial) // len(w)):
        columns = slice(share * FEATURES_A_SHARE, (share + 1) * FEATURES_A_SHARE)
        t.partial[share * len(w) : (share + 1) * len(w)] = \
            (w[:, columns] @ x[:, columns].T) * number(a["scale"])


@define("narrow_input", reads=("images", "order", "cursor", "w1"), writes=("partial",),
        optional=("order",))
def narrow_input(t: SimpleNamespace, a: Attributes) -> None:
    """partial = the first layer's product with the batch, from the uint8 data set."""
    _product_of_first(t, a, t.images[batch_rows(t, a, t.partial.shape[1])])


@define("narrow_inner", reads=("partial", "labels", "order", "cursor", *_C[1:], *_B),
        writes=("activations", "gradients", "row_p", "row_correct"),
        optional=("order", *_C[2:], *_B))
def narrow_inner(t: SimpleNamespace, a: Attributes) -> None:
    """All layers behind the first, forward and backward, with softmax and loss, row by row."""
    copies = _given(t, _C)
    depth, between = len(copies) + 1, activation(a["activation"])
    width, first = len(t.activations) // depth, copies[0].shape[1]
    z = t.partial.reshape(-1, first, t.partial.shape[1]).sum(axis=0).T + _bias(t, 1)
    outputs = []
    for layer, w in enumerate(copies, 1):
        outputs.append(_rounded(np.asarray(between.function(z)), a))
        _store(t.activations[(layer - 1) * width :][:width], outputs[-1])
        z = outputs[-1] @ w.T + _bias(t, layer + 1)
    y = t.labels[batch_rows(t, a, len(z))].astype("int32")
    p = softmax_of(z)
    t.row_p[...] = p[np.arange(len(y)), y]
    t.row_correct[...] = p.argmax(axis=1) == y
    dz = _rounded(gradient(p, y), a)
    for layer in range(depth, 0, -1):
        rows = width if layer < depth else -(-dz.shape[1] // 16) * 16
        _store(t.gradients[(layer - 1) * width :][:rows], dz)
        if layer > 1:
            slope = between.slope(outputs[layer - 2])
            dz = _rounded((dz @ copies[layer - 2]) * slope, a)


@define("narrow_update",
        reads=("images", "order", "cursor", "rates", "activations", "gradients", "row_p",
               "row_correct", *_W, *_B),
        writes=(*_W, *_C, *_B, "loss", "correct", "partial"), slotted=("loss", "correct"),
        optional=("order", "rates", "partial", *_W[2:], *_C, *_B))
def narrow_update(t: SimpleNamespace, a: Attributes) -> None:
    """SGD on all layers, and the batch's metrics; with `partial`, then the next narrow_input."""
    masters = _given(t, _W)
    depth, s, rows = len(masters), step_of(t, a), len(t.row_p)
    width, number = len(t.gradients) // depth, masters[0].dtype.type
    lr, decay = number(t.rates[s] if hasattr(t, "rates") else a["lr"]), number(a["decay"])
    below = t.images[batch_rows(t, a, rows)].astype(number)
    scale = number(a["scale"])
    for layer, w in enumerate(masters, 1):
        dz = t.gradients[(layer - 1) * width :][: len(w)]
        w -= lr * ((dz @ below) * scale + decay * w)
        if hasattr(t, f"c{layer}"):
            getattr(t, f"c{layer}")[...] = w
        if hasattr(t, f"b{layer}"):
            bias = getattr(t, f"b{layer}")
            bias -= lr * (dz.sum(axis=1) + decay * bias)
        below, scale = t.activations[(layer - 1) * width :][: len(w)].T, number(1)
    tiny = np.finfo(np.float32).tiny  # as in the kernels, whatever the type of p
    t.loss[s] = -np.log(np.where(t.row_p < tiny, tiny, t.row_p)).mean()
    t.correct[s] = t.row_correct.sum()
    if hasattr(t, "partial"):
        following = {**a, "offset": int(a.get("offset", 0)) + 1}
        _product_of_first(t, a, t.images[batch_rows(t, following, rows)])
