"""Optimizer steps. Each writes the parameter, its low-precision copy if there is one, and the
optimizer's state. A step whose gradients overflowed changes nothing."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from rawnn.common import random
from rawnn.common.dtypes import rounded
from rawnn.model.optimizers import UPDATE_RULES, UpdateRule
from rawnn.plan.op import Attributes, Reference, define
from rawnn.plan.ops.common import Array, matrix_view, multiply, step_of

_CONTEXT = ("rates", "cursor", "clock", "loss_scale", "overflow")
"""Operands that any update may have: the schedule's rates, the position of this step, and float16's
loss scaling. With `other`, what another rank has of the gradient, the gradient is `share` times dw
and `other_share` times `other`."""


def _skipped(t: SimpleNamespace) -> bool:
    return hasattr(t, "overflow") and bool(t.overflow[0])


def _rate(t: SimpleNamespace, a: Attributes) -> float:
    return float(t.rates[step_of(t, a)]) if hasattr(t, "rates") else float(a["lr"])


def _gradient(t: SimpleNamespace, gradient: Array, a: Attributes) -> Array:
    """The gradient with another rank's part of it, if given, and without the loss scale."""
    if hasattr(t, "other"):
        number = gradient.dtype.type
        gradient = rounded(number(a["share"]) * gradient + number(a["other_share"]) * t.other,
                           a.get("stored", {}).get("dw", "float32"))
    return gradient / gradient.dtype.type(t.loss_scale[0]) if hasattr(t, "loss_scale") else gradient


def _global_step(t: SimpleNamespace, a: Attributes) -> int:
    return int(t.clock[1]) + step_of(t, a)


def _store(t: SimpleNamespace, a: Attributes, w: Array, value: Array) -> None:
    """Write the parameter, and its copy times `copy_scale`. With `stochastic`, round it up or down
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


def _updates(rule: UpdateRule) -> Reference:
    """The op of a step: w, its state and its copy, from dw."""

    def update(t: SimpleNamespace, a: Attributes) -> None:
        if _skipped(t):
            return
        number = t.w.dtype.type
        count = _global_step(t, a) + 1 if rule.counts_steps else 0
        state = {name: getattr(t, name) for name in rule.keeps}
        _store(t, a, t.w, rule.formula(t.w, _gradient(t, t.dw, a), state, a, number(_rate(t, a)),
                                       count))

    update.__doc__ = rule.formula.__doc__
    return update


def _updates_from_gemm(rule: UpdateRule) -> Reference:
    """The same with the gradient dz^T x, which is never stored, and for the bias the column sums of
    dz."""
    update = _updates(rule)

    def update_both(t: SimpleNamespace, a: Attributes) -> None:
        bias = SimpleNamespace(**{name: getattr(t, name) for name in _CONTEXT if hasattr(t, name)})
        update(SimpleNamespace(**vars(t), dw=multiply(a, t.dz.T, t.x)), a)
        if hasattr(t, "bias"):
            bias.w, bias.dw = t.bias, t.dz.sum(axis=0)
            for name in rule.keeps:
                setattr(bias, name, getattr(t, f"bias_{name}"))
            update(bias, {**a, "stochastic": False})

    update_both.__doc__ = f"{rule.kind} with the gradient dz^T x, and the bias likewise."
    return update_both


def define_ops(rule: UpdateRule) -> None:
    """Define the ops of an optimizer's step: `kind`, and `fused_kind`, which includes the GEMM."""
    context = tuple(name for name in _CONTEXT
                    if not (rule.counts_steps and name in ("cursor", "clock")))
    define(rule.kind, reads=("w", "dw", "other", *rule.keeps, *_CONTEXT),
           writes=("w", *rule.keeps, "copy"), optional=("other", "copy", *context))(_updates(rule))
    if rule.is_fused:
        biases = ("bias", *(f"bias_{name}" for name in rule.keeps))
        define(rule.fused_kind, reads=("dz", "x", "w", *rule.keeps, *biases, *_CONTEXT),
               writes=("w", *rule.keeps, *biases, "copy"),
               optional=(*biases, "copy", *context))(_updates_from_gemm(rule))


for _rule in UPDATE_RULES.values():
    define_ops(_rule)


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
