"""`bf16`: inputs, activations, their gradients and a copy of the weights in bfloat16."""

from __future__ import annotations

from rawnn.opts.precision import with_storage_types
from rawnn.opts.registry import Rewritten, Toggle, register
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy


def apply(plan: Plan, policy: Policy, value: str | int | None) -> Rewritten:
    return with_storage_types(plan, "bfloat16"), policy


register(Toggle(
    "bf16",
    claim="inputs, activations and gradients in bfloat16, weights as copies of float32 masters",
    source="Micikevicius et al., Mixed Precision Training, 2018; Kalamkar et al., 2019",
    group="numbers", apply=apply, conflicts=("fp16", "fp8", "tf32"), host=True,
))
