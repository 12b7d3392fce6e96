"""The ops of softmax cross-entropy with class labels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

from rawnn.model.losses.cross_entropy import gradient, log_loss, softmax_of
from rawnn.plan.op import Attributes, define
from rawnn.plan.ops.common import Array, step_of, write_gradient
from rawnn.plan.ops.metrics import PARTS, report

if TYPE_CHECKING:
    from rawnn.plan.build import Builder

_SCALING = ("loss_scale", "overflow")


def _metrics(t: SimpleNamespace, a: Attributes, p: Array) -> None:
    right = int(np.count_nonzero(p.argmax(axis=1) == t.y))
    report(t, a, log_loss(p, t.z, t.y).mean(), len(t.y), right)


@define("softmax", reads=("z",), writes=("p",))
def softmax(t: SimpleNamespace, a: Attributes) -> None:
    """p = exp(z - max z) / sum, along each row."""
    t.p[...] = softmax_of(t.z)


@define("cross_entropy", reads=("p", "z", "y", "cursor", "workspace"), writes=("loss", "workspace"),
        slotted=("loss",), optional=("workspace",))
def cross_entropy(t: SimpleNamespace, a: Attributes) -> None:
    """loss[s] = mean of -log p[y] over the batch, from z where p[y] is no normal float32."""
    t.loss[step_of(t, a)] = log_loss(t.p, t.z, t.y).mean()


@define("accuracy", reads=("p", "y", "cursor", "workspace"), writes=("correct", "workspace"),
        slotted=("correct",), optional=("workspace",))
def accuracy(t: SimpleNamespace, a: Attributes) -> None:
    """correct[s] = how many rows have their largest probability (the first of equals) at y."""
    t.correct[step_of(t, a)] = np.count_nonzero(t.p.argmax(axis=1) == t.y)


@define("loss_accuracy", reads=("p", "z", "y", "cursor", "workspace"),
        writes=("loss", "correct", "workspace"), slotted=("loss", "correct"),
        optional=("workspace",))
def loss_accuracy(t: SimpleNamespace, a: Attributes) -> None:
    """cross_entropy and accuracy in one pass over p."""
    _metrics(t, a, t.p)


@define("softmax_backward", reads=("p", "y", *_SCALING), writes=("dz", "overflow"),
        optional=_SCALING)
def softmax_backward(t: SimpleNamespace, a: Attributes) -> None:
    """dz = (p - onehot(y)) / B, the gradient of the mean cross-entropy."""
    write_gradient(t, a, gradient(t.p, t.y))


@define("loss_gradient", reads=("p", "z", "y", "cursor", "workspace", *_SCALING),
        writes=("dz", "loss", "correct", *PARTS, "overflow", "workspace"),
        slotted=("loss", "correct", *PARTS),
        optional=(*_SCALING, "loss", "correct", *PARTS, "workspace"), unmeasured="softmax_backward")
def loss_gradient(t: SimpleNamespace, a: Attributes) -> None:
    """loss_accuracy and softmax_backward in one pass over p."""
    _metrics(t, a, t.p)
    write_gradient(t, a, gradient(t.p, t.y))


@define("softmax_loss_gradient", reads=("z", "y", "cursor", "workspace", *_SCALING),
        writes=("dz", "loss", "correct", *PARTS, "overflow", "workspace"),
        slotted=("loss", "correct", *PARTS),
        optional=(*_SCALING, "loss", "correct", *PARTS, "workspace"))
def softmax_loss_gradient(t: SimpleNamespace, a: Attributes) -> None:
    """softmax, loss_accuracy and softmax_backward in one pass over z."""
    p = softmax_of(t.z)
    _metrics(t, a, p)
    write_gradient(t, a, gradient(p, t.y))


def measure(b: Builder) -> None:
    b.activation("p", b.shape(b.logits))
    b.op("softmax", "softmax", {"z": b.logits, "p": "p"})
    b.measure("cross_entropy", {"p": "p", "z": b.logits, "y": "y", "loss": "loss"})
    b.measure("accuracy", {"p": "p", "y": "y", "correct": "correct"})


def backward(b: Builder) -> None:
    b.op("softmax_backward", "softmax_backward", {"p": "p", "y": "y", "dz": b.last_gradient})
