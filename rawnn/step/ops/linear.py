"""A whole step of a one-layer network in two ops, straight from the data set."""

from __future__ import annotations

from types import SimpleNamespace

from rawnn.losses.cross_entropy import gradient, log_loss, softmax_of
from rawnn.step.op import Attributes, define
from rawnn.step.ops.common import Array, batch_rows, step_of


def _batch(t: SimpleNamespace, a: Attributes, rows: Array) -> tuple[object, Array]:
    window = batch_rows(t, a, len(rows))
    return window, t.images[window] * t.w.dtype.type(a["scale"])


@define("linear_forward", reads=("images", "labels", "order", "cursor", "w", "bias"),
        writes=("dz", "row_loss", "row_correct"), optional=("order",))
def linear_forward(t: SimpleNamespace, a: Attributes) -> None:
    """Gather, product, bias, softmax, loss and gradient of a one-layer network, row by row."""
    window, x = _batch(t, a, t.row_loss)
    y = t.labels[window].astype("int32")
    p = softmax_of(x @ t.w.T + t.bias)
    t.dz[...] = gradient(p, y)
    t.row_loss[...] = log_loss(p, y)
    t.row_correct[...] = p.argmax(axis=1) == y


@define("linear_update",
        reads=("images", "order", "cursor", "dz", "row_loss", "row_correct", "w", "bias", "rates"),
        writes=("w", "bias", "loss", "correct"), slotted=("loss", "correct"),
        optional=("order", "rates"))
def linear_update(t: SimpleNamespace, a: Attributes) -> None:
    """Weight and bias gradients of a one-layer network, the SGD update, and the batch's metrics."""
    _, x = _batch(t, a, t.row_loss)
    s = step_of(t, a)
    number = t.w.dtype.type
    lr, decay = number(t.rates[s] if hasattr(t, "rates") else a["lr"]), number(a["decay"])
    t.w -= lr * (t.dz.T @ x + decay * t.w)
    t.bias -= lr * (t.dz.sum(axis=0) + decay * t.bias)
    t.loss[s] = t.row_loss.mean()
    t.correct[s] = t.row_correct.sum()
