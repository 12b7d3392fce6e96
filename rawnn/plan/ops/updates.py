"""Optimizer steps. Each writes the parameter, its low-precision copy where there is one, and the
optimizer's state; none of them does anything in a step whose gradients overflowed."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from rawnn.common import random
from rawnn.common.dtypes import rounded
from rawnn.plan.op import Attributes, Reference, define
from rawnn.plan.ops.common import Array, matrix_view, multiply, step_of

_CONTEXT = ("rates", "cursor", "clock", "loss_scale", "overflow")
"""Operands that any update may have: the schedule's rates, where and when this step is, and the
loss scaling of float16. With `other` the gradient is `share` times dw and `other_share` times that:
what two ranks have of it."""


def _skipped(t: SimpleNamespace) -> bool:
    return hasattr(t, "overflow") and bool(t.overflow[0])


def _rate(t: SimpleNamespace, a: Attributes) -> float:
    return float(t.rates[step_of(t, a)]) if hasattr(t, "rates") else float(a["lr"])


def _gradient(t: SimpleNamespace, gradient: Array, a: Attributes) -> Array:
    """With what another rank has of it, where that is given, and without the loss scale."""
    if hasattr(t, "other"):
        number = gradient.dtype.type
        gradient = rounded(number(a["share"]) * gradient + number(a["other_share"]) * t.other,
                           a.get("stored", {}).get("dw", "float32"))
    return gradient / gradient.dtype.type(t.loss_scale[0]) if hasattr(t, "loss_scale") else gradient


def _global_step(t: SimpleNamespace, a: Attributes) -> int:
    return int(t.clock[1]) + step_of(t, a)


def _store(t: SimpleNamespace, a: Attributes, w: Array, value: Array) -> None:
    """Write the parameter, and its copy times `copy_scale`; with `stochastic`, round it up or down
    at random so that the mean is right and small updates are not lost (Gupta et al., 2015)."""
    if a["stochastic"] and w.dtype == np.float32:
        flat = matrix_view(value)
        bits = random.rounding_bits(a["seed"], a["stream"], _global_step(t, a),
                                    np.arange(flat.size))
        words = value.astype(np.float32).view(np.uint32)
        finite = np.isfinite(value)
        words = np.where(finite, words + bits.reshape(value.shape).astype(np.uint32), words)
        value = (words & np.uint32(0xFFFF0000)).view(np.float32)
    w[...] = value
    if hasattr(t, "copy"):
        t.copy[...] = w * w.dtype.type(a["copy_scale"])


@define("sgd", reads=("w", "dw", "other", *_CONTEXT), writes=("w", "copy"),
        optional=("other", "copy", *_CONTEXT))
def sgd(t: SimpleNamespace, a: Attributes) -> None:
    """w -= lr * (dw + decay * w)."""
    if _skipped(t):
        return
    lr, decay = t.w.dtype.type(_rate(t, a)), t.w.dtype.type(a["decay"])
    _store(t, a, t.w, t.w - lr * (_gradient(t, t.dw, a) + decay * t.w))


@define("momentum", reads=("w", "dw", "other", "v", *_CONTEXT), writes=("w", "v", "copy"),
        optional=("other", "copy", *_CONTEXT))
def momentum(t: SimpleNamespace, a: Attributes) -> None:
    """g = dw + decay * w; v = momentum * v + g; w -= lr * v, or lr * (g + momentum * v)."""
    if _skipped(t):
        return
    number = t.w.dtype.type
    lr, mu = number(_rate(t, a)), number(a["momentum"])
    g = _gradient(t, t.dw, a) + number(a["decay"]) * t.w
    t.v[...] = mu * t.v + g
    _store(t, a, t.w, t.w - lr * (g + mu * t.v if a["nesterov"] else t.v))


@define("adam", reads=("w", "dw", "other", "m", "v", *_CONTEXT), writes=("w", "m", "v", "copy"),
        optional=("other", "copy", "rates", "loss_scale", "overflow"))
def adam(t: SimpleNamespace, a: Attributes) -> None:
    """Adam (Kingma and Ba, 2015), bias-corrected.

    `decoupled` decays the weights beside the gradient (AdamW: Loshchilov and Hutter, 2019)."""
    if _skipped(t):
        return
    number = t.w.dtype.type
    lr, decay = number(_rate(t, a)), number(a["decay"])
    step = _global_step(t, a) + 1
    g, w = _gradient(t, t.dw, a), t.w
    if a["decoupled"]:
        w = w - lr * decay * w
    else:
        g = g + decay * w
    t.m[...] = number(a["beta1"]) * t.m + number(1 - a["beta1"]) * g
    t.v[...] = number(a["beta2"]) * t.v + number(1 - a["beta2"]) * g * g
    first = t.m / number(1 - a["beta1"] ** step)
    second = np.sqrt(t.v / number(1 - a["beta2"] ** step)) + number(a["eps"])
    _store(t, a, t.w, w - lr * first / second)


@define("bias_sgd", reads=("dz", "bias", "rates", "cursor", "loss_scale", "overflow"),
        writes=("bias",), optional=("rates", "cursor", "loss_scale", "overflow"))
def bias_sgd(t: SimpleNamespace, a: Attributes) -> None:
    """bias -= lr * (column sums of dz + decay * bias): bias_grad and sgd in one."""
    if not _skipped(t):
        _update_bias(t, a)


def _update_bias(t: SimpleNamespace, a: Attributes) -> None:
    number = t.bias.dtype.type
    gradient = _gradient(t, t.dz.sum(axis=0), a)
    t.bias -= number(_rate(t, a)) * (gradient + number(a["decay"]) * t.bias)


@define("weight_update", reads=("dz", "x", "w", "bias", *_CONTEXT), writes=("w", "bias", "copy"),
        optional=("bias", "copy", *_CONTEXT))
def weight_update(t: SimpleNamespace, a: Attributes) -> None:
    """w -= lr * (dz^T x + decay * w), and the bias likewise.

    Gradient and SGD in one, the gradient never stored."""
    if _skipped(t):
        return
    number = t.w.dtype.type
    lr, decay = number(_rate(t, a)), number(a["decay"])
    _store(t, a, t.w, t.w - lr * (_gradient(t, multiply(a, t.dz.T, t.x), a) + decay * t.w))
    if hasattr(t, "bias"):
        _update_bias(t, a)


def _with_bias(update: Reference, t: SimpleNamespace, a: Attributes, *state: str) -> None:
    """`update` of the weights with the gradient dz^T x, and of the bias with column sums of dz."""
    bias = SimpleNamespace(**{name: getattr(t, name) for name in _CONTEXT if hasattr(t, name)})
    update(SimpleNamespace(**vars(t), dw=multiply(a, t.dz.T, t.x)), a)
    if hasattr(t, "bias"):
        bias.w, bias.dw = t.bias, t.dz.sum(axis=0)
        for name in state:
            setattr(bias, name, getattr(t, f"bias_{name}"))
        update(bias, {**a, "stochastic": False})


@define("weight_momentum",
        reads=("dz", "x", "w", "v", "bias", "bias_v", *_CONTEXT),
        writes=("w", "v", "bias", "bias_v", "copy"),
        optional=("bias", "bias_v", "copy", *_CONTEXT))
def weight_momentum(t: SimpleNamespace, a: Attributes) -> None:
    """momentum with the gradient dz^T x, which is never stored, and the bias likewise."""
    _with_bias(momentum, t, a, "v")


@define("weight_adam",
        reads=("dz", "x", "w", "m", "v", "bias", "bias_m", "bias_v", *_CONTEXT),
        writes=("w", "m", "v", "bias", "bias_m", "bias_v", "copy"),
        optional=("bias", "bias_m", "bias_v", "copy", "rates", "loss_scale", "overflow"))
def weight_adam(t: SimpleNamespace, a: Attributes) -> None:
    """adam with the gradient dz^T x, which is never stored, and the bias likewise."""
    _with_bias(adam, t, a, "m", "v")


@define("slices_sgd", reads=("partial", "w", "dz", "bias", "rates", "cursor"),
        writes=("w", "bias", "copy", "cursor"), optional=("copy", "rates", "cursor"))
def slices_sgd(t: SimpleNamespace, a: Attributes) -> None:
    """w -= lr * (sum of the slices of partial + decay * w); bias likewise, by column sums of dz.

    With `steps` above 0, and then no rates, it also advances the cursor by them.
    """
    number = t.w.dtype.type
    lr, decay = number(_rate(t, a)), number(a["decay"])
    gradient = t.partial.reshape(a["slices"], *t.w.shape).sum(axis=0)
    t.w -= lr * (gradient + decay * t.w)
    if hasattr(t, "copy"):
        t.copy[...] = t.w
    _update_bias(t, a)
    if a["steps"]:
        t.cursor[0] += a["steps"]
