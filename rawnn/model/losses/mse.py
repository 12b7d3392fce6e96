"""Mean squared error, the mean over all elements, as torch.nn.MSELoss."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

from rawnn.model.losses import Array, Loss, register
from rawnn.plan.op import Attributes, define
from rawnn.plan.ops.common import write_gradient
from rawnn.plan.ops.metrics import report

if TYPE_CHECKING:
    from rawnn.plan.build import Builder

_SCALING = ("loss_scale", "overflow")


@define("mse", reads=("z", "t", "cursor", "workspace"), writes=("loss", "workspace"),
        slotted=("loss",), optional=("workspace",))
def mse(t: SimpleNamespace, a: Attributes) -> None:
    """loss[s] = mean of (z - t)^2 over all elements."""
    report(t, a, np.square(t.z - t.t).mean(), t.z.size)


@define("mse_backward", reads=("z", "t", *_SCALING), writes=("dz", "overflow"), optional=_SCALING)
def mse_backward(t: SimpleNamespace, a: Attributes) -> None:
    """dz = 2 (z - t) / number of elements."""
    write_gradient(t, a, (t.z - t.t) * t.z.dtype.type(2.0 / t.z.size))


@define("mse_gradient", reads=("z", "t", "cursor", "workspace", *_SCALING),
        writes=("dz", "loss", "loss_parts", "overflow", "workspace"),
        slotted=("loss", "loss_parts"),
        optional=(*_SCALING, "loss", "loss_parts", "workspace"), unmeasured="mse_backward")
def mse_gradient(t: SimpleNamespace, a: Attributes) -> None:
    """mse and mse_backward in one pass."""
    mse(t, a)
    mse_backward(t, a)


def _total(z: Array, t: Array) -> float:
    return float(np.square(z - t).sum(dtype=np.float64))


def _measure(b: Builder) -> None:
    b.measure("mse", {"z": b.logits, "t": b.targets, "loss": "loss"})


def _backward(b: Builder) -> None:
    b.op("mse_backward", "mse_backward", {"z": b.logits, "t": b.targets, "dz": b.last_gradient})


register(Loss("mse", "targets", _measure, _backward, ("mse", "mse_backward"), "mse_gradient",
              lambda outputs: 0, _total, functor="SquaredError", unit_power=2))
