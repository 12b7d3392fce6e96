"""Adam and AdamW, as torch.optim's: they differ in where the weights decay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rawnn.model.optimizers import (
    Array,
    OptimizerSpec,
    Settings,
    UpdateRule,
    register,
    register_rule,
)


def _step(w: Array, g: Array, state: Mapping[str, Array], a: Mapping[str, Any], rate: Any,
          t: int) -> Array:
    """Adam (Kingma and Ba, 2015), bias-corrected.

    `decoupled` decays the weights beside the gradient (AdamW: Loshchilov and Hutter, 2019)."""
    number = w.dtype.type
    beta1, beta2 = a["beta1"], a["beta2"]
    if a["decoupled"]:
        w = w - rate * number(a["decay"]) * w
    else:
        g = g + number(a["decay"]) * w
    m, v = state["m"], state["v"]
    m[...] = number(beta1) * m + number(1 - beta1) * g
    v[...] = number(beta2) * v + number(1 - beta2) * g * g
    first = m / number(1 - beta1 ** t)
    second = np.sqrt(v / number(1 - beta2 ** t)) + number(a["eps"])
    result: Array = w - rate * first / second
    return result


def _recount(state: Mapping[str, Array], a: Mapping[str, Any], before: int, after: int
             ) -> dict[str, Array]:
    """Moments whose bias-corrected values are those of before."""
    factors = {name: (1 - a[beta] ** after) / (1 - a[beta] ** before)
               for name, beta in (("m", "beta1"), ("v", "beta2"))}
    return {name: array * array.dtype.type(factors[name]) for name, array in state.items()}


def _adam(name: str, decay: float, decoupled: bool) -> OptimizerSpec:
    def attributes(s: Settings) -> dict[str, float | bool]:
        return {"beta1": s["beta1"], "beta2": s["beta2"], "eps": s["eps"], "decoupled": decoupled}

    return OptimizerSpec(name, {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decay": decay},
                         kind=lambda s: "adam", state=lambda s: ("m", "v"), attributes=attributes,
                         counts_steps=True)


register_rule(UpdateRule("adam", "Adam", _step, keeps=("m", "v"), counts_steps=True,
                         recount=_recount))
register(_adam("adam", 0.0, decoupled=False))
register(_adam("adamw", 0.01, decoupled=True))
