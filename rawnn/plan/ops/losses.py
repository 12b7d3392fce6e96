"""The ops of losses that are a mean over all elements of z and t, made from their formulas: for a
loss NAME the kinds NAME, NAME_backward, NAME_gradient and, if outputs can be correct,
NAME_accuracy. Also the functions that add the ops of any loss to a plan."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING

from rawnn.model.losses import LOSSES, Loss
from rawnn.plan.op import OPS, Attributes, define
from rawnn.plan.ops import cross_entropy
from rawnn.plan.ops.common import step_of, write_gradient
from rawnn.plan.ops.metrics import PARTS, report

if TYPE_CHECKING:
    from rawnn.plan.build import Builder

Build = Callable[["Builder"], None]

_SCALING = ("loss_scale", "overflow")


def define_ops(loss: Loss) -> None:
    """Define the ops of a loss that has `terms` and `gradient`."""
    name, terms, gradient = loss.name, loss.terms, loss.gradient
    assert terms is not None, name
    assert gradient is not None, name
    has_accuracy = loss.counts(1) > 0
    parts = PARTS if has_accuracy else PARTS[:1]
    metrics = ("loss", "correct") if has_accuracy else ("loss",)

    def measure(t: SimpleNamespace, a: Attributes) -> None:
        """loss[s] = the mean of the loss over all elements."""
        report(t, a, terms(t.z, t.t).mean(), t.z.size)

    def accuracy(t: SimpleNamespace, a: Attributes) -> None:
        """correct[s] = how many elements are correct."""
        t.correct[step_of(t, a)] = loss.count_correct(t.z, t.t)

    def backward(t: SimpleNamespace, a: Attributes) -> None:
        """dz = the gradient of the mean."""
        write_gradient(t, a, gradient(t.z, t.t))

    def fused(t: SimpleNamespace, a: Attributes) -> None:
        """The loss, the correct count and the gradient in one pass."""
        report(t, a, terms(t.z, t.t).mean(), t.z.size, loss.count_correct(t.z, t.t))
        backward(t, a)

    define(name, reads=("z", "t", "cursor", "workspace"), writes=("loss", "workspace"),
           slotted=("loss",), optional=("workspace",))(measure)
    if has_accuracy:
        define(f"{name}_accuracy", reads=("z", "t", "cursor", "workspace"),
               writes=("correct", "workspace"), slotted=("correct",),
               optional=("workspace",))(accuracy)
    define(f"{name}_backward", reads=("z", "t", *_SCALING), writes=("dz", "overflow"),
           optional=_SCALING)(backward)
    define(f"{name}_gradient", reads=("z", "t", "cursor", "workspace", *_SCALING),
           writes=("dz", *metrics, *parts, "overflow", "workspace"), slotted=(*metrics, *parts),
           optional=(*_SCALING, *metrics, *parts, "workspace"),
           unmeasured=f"{name}_backward")(fused)


def _ops_of(loss: Loss) -> tuple[Build, Build]:
    """The functions that add its ops to a plan: those that measure, and the last gradient."""
    name = loss.name

    def measure(b: Builder) -> None:
        operands = {"z": b.logits, "t": b.targets}
        b.measure(name, {**operands, "loss": "loss"})
        if loss.counts(1):
            b.measure(f"{name}_accuracy", {**operands, "correct": "correct"})

    def backward(b: Builder) -> None:
        b.op(f"{name}_backward", f"{name}_backward",
             {"z": b.logits, "t": b.targets, "dz": b.last_gradient})

    return measure, backward


def builders(loss: Loss) -> tuple[Build, Build]:
    """The functions that add the ops of a loss to a plan: those that measure, and those that
    compute the gradient of the last outputs."""
    if loss.measure is not None and loss.backward is not None:
        return loss.measure, loss.backward
    if loss.name == "cross_entropy":
        return cross_entropy.measure, cross_entropy.backward
    if loss.fused not in OPS:  # registered from outside the package
        define_ops(loss)
    return _ops_of(loss)


for _loss in LOSSES.values():
    if _loss.terms is not None:
        define_ops(_loss)
