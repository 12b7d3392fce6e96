"""Stochastic gradient descent with momentum, Nesterov's momentum and weight decay, as
torch.optim.SGD (Sutskever et al., 2013)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rawnn.model.optimizers import Array, OptimizerSpec, UpdateRule, register, register_rule


def _sgd(w: Array, g: Array, state: Mapping[str, Array], a: Mapping[str, Any], rate: Any,
         t: int) -> Array:
    """w - rate * (g + decay * w)."""
    result: Array = w - rate * (g + w.dtype.type(a["decay"]) * w)
    return result


def _momentum(w: Array, g: Array, state: Mapping[str, Array], a: Mapping[str, Any], rate: Any,
              t: int) -> Array:
    """g += decay * w; v = momentum * v + g; w - rate * v, or - rate * (g + momentum * v)."""
    g = g + w.dtype.type(a["decay"]) * w
    v, momentum = state["v"], w.dtype.type(a["momentum"])
    v[...] = momentum * v + g
    result: Array = w - rate * (g + momentum * v if a["nesterov"] else v)
    return result


register_rule(UpdateRule("sgd", "Sgd", _sgd))
register_rule(UpdateRule("momentum", "Momentum", _momentum, keeps=("v",)))
register(OptimizerSpec(
    "sgd", {"momentum": 0.0, "nesterov": 0.0, "decay": 0.0},
    kind=lambda s: "momentum" if s["momentum"] else "sgd",
    state=lambda s: ("v",) if s["momentum"] else (),
    attributes=lambda s: {"momentum": s["momentum"], "nesterov": bool(s["nesterov"])}
    if s["momentum"] else {},
))
