"""Ways of training that every fusion of whole networks is tried with."""

from __future__ import annotations

from typing import Any

from rawnn.model.optimizers import Optimizer
from rawnn.plan.plan import Plan

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no biases": {"network_options": {"bias": False}},
    "tanh": {"network_options": {"activation": "tanh"}},
    "shuffled": {"shuffle": True},
    "scheduled": {"schedule": "cosine"},
    "decay": {"optimizer": Optimizer(lr=0.1, given={"decay": 0.1})},
    "a rest": {"partial": True, "batch": 12},
}
"""In words -> what make_work takes."""


def kinds(plan: Plan) -> list[str]:
    return [op.kind for op in plan.ops]
