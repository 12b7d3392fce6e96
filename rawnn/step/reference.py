"""The NumPy reference of every op: the meaning that each CUDA kernel is checked against.

Operands are views without padding. Shapes: B rows of a batch, F features, C classes.
`s = cursor + offset` is the step in the epoch; batch s holds rows s*B to s*B + B - 1 of the data.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.step.op import Attributes, define

Array = NDArray[Any]


def _step(t: SimpleNamespace, a: Attributes) -> int:
    return int(t.cursor[0]) + int(a["offset"])


def _window(t: SimpleNamespace, a: Attributes, rows: int) -> slice:
    first = _step(t, a) * rows
    return slice(first, first + rows)


def _log_loss(p: Array, y: Array) -> Array:
    picked = p[np.arange(len(y)), y]
    tiny = np.finfo(np.float32).tiny  # as in the kernels, whatever the type of p
    return -np.log(np.where(picked < tiny, tiny, picked))  # a NaN stays NaN


def _softmax(z: Array) -> Array:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    e /= e.sum(axis=1, keepdims=True)
    return np.asarray(e)


def _gradient(p: Array, y: Array, dz: Array) -> None:
    rows = len(y)
    np.divide(p, rows, out=dz)
    dz[np.arange(rows), y] -= 1.0 / rows


def _metrics(t: SimpleNamespace, a: Attributes, p: Array) -> None:
    s = _step(t, a)
    t.loss[s] = _log_loss(p, t.y).mean()
    t.correct[s] = np.count_nonzero(p.argmax(axis=1) == t.y)


@define("upload", reads=("images", "labels", "cursor"), writes=("x", "y"))
def upload(t: SimpleNamespace, a: Attributes) -> None:
    """Copy one batch, normalised already, from host memory to the device."""
    window = _window(t, a, len(t.y))
    t.x[...] = t.images[window]
    t.y[...] = t.labels[window]


@define("gather", reads=("images", "labels", "cursor"), writes=("x", "y"))
def gather(t: SimpleNamespace, a: Attributes) -> None:
    """x = images * scale for one batch of the uint8 data set; y = its labels."""
    window = _window(t, a, len(t.y))
    np.multiply(t.images[window], t.x.dtype.type(a["scale"]), out=t.x)
    t.y[...] = t.labels[window]


@define("matmul", reads=("a", "b", "bias"), writes=("c", "workspace"),
        optional=("bias", "workspace"))
def matmul(t: SimpleNamespace, a: Attributes) -> None:
    """c = act(alpha * op(a) op(b) + beta * c + bias); layout nt, nn or tn names the transposes.

    `workspace` is scratch memory that a library may write.
    """
    left = t.a.T if a["layout"][0] == "t" else t.a
    right = t.b.T if a["layout"][1] == "t" else t.b
    alpha, beta = a["alpha"], a["beta"]
    if alpha == 1.0 and beta == 0.0:
        np.matmul(left, right, out=t.c)
    else:
        product = left @ right
        product *= alpha
        t.c[...] = product if beta == 0.0 else product + beta * t.c
    if a["bias"]:
        t.c += t.bias
    if a["relu"]:
        np.maximum(t.c, 0, out=t.c)


@define("matmul_slices", reads=("a", "b"), writes=("partial", "workspace"),
        optional=("workspace",))
def matmul_slices(t: SimpleNamespace, a: Attributes) -> None:
    """partial = op(a)[:, K] op(b)[K] for each slice K of the inner dimension, stacked by rows."""
    left = t.a.T if a["layout"][0] == "t" else t.a
    right = t.b.T if a["layout"][1] == "t" else t.b
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
    if a["relu"]:
        np.maximum(t.c, 0, out=t.c)


@define("slices_sgd", reads=("partial", "w", "dz", "bias", "cursor"),
        writes=("w", "bias", "cursor"), optional=("cursor",))
def slices_sgd(t: SimpleNamespace, a: Attributes) -> None:
    """w -= lr * sum of the slices of partial; bias -= lr * column sums of dz.

    Given a cursor, it also advances it by `steps`.
    """
    if hasattr(t, "cursor"):
        t.cursor[0] += a["steps"]
    lr = t.w.dtype.type(a["lr"])
    t.w -= lr * t.partial.reshape(a["slices"], *t.w.shape).sum(axis=0)
    t.bias -= lr * t.dz.sum(axis=0)


@define("bias_add", reads=("z", "bias"), writes=("z",))
def bias_add(t: SimpleNamespace, a: Attributes) -> None:
    """z += bias, row by row."""
    t.z += t.bias


@define("relu", reads=("z",), writes=("a",))
def relu(t: SimpleNamespace, a: Attributes) -> None:
    """a = max(z, 0)."""
    np.maximum(t.z, 0, out=t.a)


@define("relu_backward", reads=("da", "a"), writes=("dz",))
def relu_backward(t: SimpleNamespace, a: Attributes) -> None:
    """dz = da where a > 0, else 0."""
    np.multiply(t.da, t.a > 0, out=t.dz)


@define("softmax", reads=("z",), writes=("p",))
def softmax(t: SimpleNamespace, a: Attributes) -> None:
    """p = exp(z - max z) / sum, along each row."""
    t.p[...] = _softmax(t.z)


@define("cross_entropy", reads=("p", "y", "cursor"), writes=("loss",), slotted=("loss",))
def cross_entropy(t: SimpleNamespace, a: Attributes) -> None:
    """loss[s] = mean of -log p[y] over the batch."""
    t.loss[_step(t, a)] = _log_loss(t.p, t.y).mean()


@define("accuracy", reads=("p", "y", "cursor"), writes=("correct",), slotted=("correct",))
def accuracy(t: SimpleNamespace, a: Attributes) -> None:
    """correct[s] = how many rows have their largest probability (the first of equals) at y."""
    t.correct[_step(t, a)] = np.count_nonzero(t.p.argmax(axis=1) == t.y)


@define("loss_accuracy", reads=("p", "y", "cursor"), writes=("loss", "correct"),
        slotted=("loss", "correct"))
def loss_accuracy(t: SimpleNamespace, a: Attributes) -> None:
    """cross_entropy and accuracy in one pass over p."""
    _metrics(t, a, t.p)


@define("softmax_backward", reads=("p", "y"), writes=("dz",))
def softmax_backward(t: SimpleNamespace, a: Attributes) -> None:
    """dz = (p - onehot(y)) / B, the gradient of the mean cross-entropy."""
    _gradient(t.p, t.y, t.dz)


@define("loss_gradient", reads=("p", "y", "cursor"), writes=("dz", "loss", "correct"),
        slotted=("loss", "correct"))
def loss_gradient(t: SimpleNamespace, a: Attributes) -> None:
    """loss_accuracy and softmax_backward in one pass over p."""
    _metrics(t, a, t.p)
    _gradient(t.p, t.y, t.dz)


@define("softmax_loss_gradient", reads=("z", "y", "cursor"), writes=("dz", "loss", "correct"),
        slotted=("loss", "correct"))
def softmax_loss_gradient(t: SimpleNamespace, a: Attributes) -> None:
    """softmax, loss_accuracy and softmax_backward in one pass over z."""
    p = _softmax(t.z)
    _metrics(t, a, p)
    _gradient(p, t.y, t.dz)


@define("bias_grad", reads=("dz",), writes=("db",))
def bias_grad(t: SimpleNamespace, a: Attributes) -> None:
    """db = column sums of dz."""
    np.sum(t.dz, axis=0, out=t.db)


@define("sgd", reads=("w", "dw"), writes=("w",))
def sgd(t: SimpleNamespace, a: Attributes) -> None:
    """w -= lr * dw."""
    t.w -= t.w.dtype.type(a["lr"]) * t.dw


@define("bias_sgd", reads=("dz", "bias"), writes=("bias",))
def bias_sgd(t: SimpleNamespace, a: Attributes) -> None:
    """bias -= lr * column sums of dz: bias_grad and sgd in one."""
    t.bias -= t.bias.dtype.type(a["lr"]) * t.dz.sum(axis=0)


@define("linear_forward", reads=("images", "labels", "cursor", "w", "bias"),
        writes=("dz", "row_loss", "row_correct"))
def linear_forward(t: SimpleNamespace, a: Attributes) -> None:
    """Gather, product, bias, softmax, loss and gradient of a one-layer network, row by row."""
    window = _window(t, a, len(t.row_loss))
    x = t.images[window] * t.w.dtype.type(a["scale"])
    y = t.labels[window].astype(np.int32)
    p = _softmax(x @ t.w.T + t.bias)
    _gradient(p, y, t.dz)
    t.row_loss[...] = _log_loss(p, y)
    t.row_correct[...] = p.argmax(axis=1) == y


@define("linear_update",
        reads=("images", "cursor", "dz", "row_loss", "row_correct", "w", "bias"),
        writes=("w", "bias", "loss", "correct"), slotted=("loss", "correct"))
def linear_update(t: SimpleNamespace, a: Attributes) -> None:
    """Weight and bias gradients of a one-layer network, the SGD update, and the batch's metrics."""
    x = t.images[_window(t, a, len(t.row_loss))] * t.w.dtype.type(a["scale"])
    lr = t.w.dtype.type(a["lr"])
    t.w -= lr * (t.dz.T @ x)
    t.bias -= lr * t.dz.sum(axis=0)
    s = _step(t, a)
    t.loss[s] = t.row_loss.mean()
    t.correct[s] = t.row_correct.sum()


@define("advance", reads=("cursor",), writes=("cursor",))
def advance(t: SimpleNamespace, a: Attributes) -> None:
    """cursor += steps."""
    t.cursor[0] += a["steps"]
