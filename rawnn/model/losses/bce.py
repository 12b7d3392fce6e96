"""Binary cross-entropy on logits, the mean over all elements, as torch.nn.BCEWithLogitsLoss."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

from rawnn.model.losses import Loss, register
from rawnn.plan.op import Attributes, define
from rawnn.plan.ops.common import Array, step_of, write_gradient
from rawnn.plan.ops.metrics import PARTS, report

if TYPE_CHECKING:
    from rawnn.plan.build import Builder

_SCALING = ("loss_scale", "overflow")


def _sigmoid(z: Array) -> Array:
    e = np.exp(-np.abs(z))  # at most 1: no overflow on either side
    return np.where(z >= 0, 1 / (1 + e), e / (1 + e))


@define("bce", reads=("z", "t", "cursor", "workspace"), writes=("loss", "workspace"),
        slotted=("loss",), optional=("workspace",))
def bce(t: SimpleNamespace, a: Attributes) -> None:
    """loss[s] = mean of max(z, 0) - z t + log(1 + exp(-|z|)) over all elements."""
    t.loss[step_of(t, a)] = _terms(t.z, t.t).mean()


def _terms(z: Array, t: Array) -> Array:
    found: Array = np.maximum(z, 0) - z * t + np.log1p(np.exp(-np.abs(z)))
    return found


def _total(z: Array, t: Array) -> float:
    return float(_terms(z, t).sum(dtype=np.float64))


def _right(t: SimpleNamespace) -> int:
    return int(np.count_nonzero((t.z > 0) == (t.t > 0.5)))


@define("bce_accuracy", reads=("z", "t", "cursor", "workspace"), writes=("correct", "workspace"),
        slotted=("correct",), optional=("workspace",))
def bce_accuracy(t: SimpleNamespace, a: Attributes) -> None:
    """correct[s] = how many elements have z > 0 where t > 0.5, and z <= 0 elsewhere."""
    t.correct[step_of(t, a)] = _right(t)


@define("bce_backward", reads=("z", "t", *_SCALING), writes=("dz", "overflow"), optional=_SCALING)
def bce_backward(t: SimpleNamespace, a: Attributes) -> None:
    """dz = (sigmoid(z) - t) / number of elements."""
    write_gradient(t, a, (_sigmoid(t.z) - t.t) * t.z.dtype.type(1.0 / t.z.size))


@define("bce_gradient", reads=("z", "t", "cursor", "workspace", *_SCALING),
        writes=("dz", "loss", "correct", *PARTS, "overflow", "workspace"),
        slotted=("loss", "correct", *PARTS),
        optional=(*_SCALING, "loss", "correct", *PARTS, "workspace"), unmeasured="bce_backward")
def bce_gradient(t: SimpleNamespace, a: Attributes) -> None:
    """bce, bce_accuracy and bce_backward in one pass."""
    report(t, a, _terms(t.z, t.t).mean(), t.z.size, _right(t))
    bce_backward(t, a)


def _measure(b: Builder) -> None:
    common = {"z": b.logits, "t": b.targets}
    b.measure("bce", {**common, "loss": "loss"})
    b.measure("bce_accuracy", {**common, "correct": "correct"})


def _backward(b: Builder) -> None:
    b.op("bce_backward", "bce_backward", {"z": b.logits, "t": b.targets, "dz": b.last_gradient})


register(Loss("bce", "targets", _measure, _backward, ("bce", "bce_accuracy", "bce_backward"),
              "bce_gradient", lambda outputs: outputs, _total, "sigmoid", "LogitCrossEntropy"))
