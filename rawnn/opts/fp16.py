"""`fp16`: inputs, activations, their gradients and a copy of the weights in float16, with dynamic
loss scaling; `fp16=acc16` also accumulates GEMMs in half precision, except weight gradients."""

from __future__ import annotations

from rawnn.opts.precision import choice, with_compute_type, with_loss_scale, with_storage_types
from rawnn.opts.registry import Parameter, Rewritten, Toggle, register
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy

GUARDED = ("nt", "nn")
"""Layouts that acc16 accumulates in half precision: forward GEMMs, and gradients of activations,
whose overflow the loss scale detects. The overflow of a weight gradient would go straight into the
weights: wide1024 became NaN at step 6,004, when the scale can have doubled a third time."""


def apply(plan: Plan, policy: Policy, value: str | int | None) -> Rewritten:
    plan = with_loss_scale(with_storage_types(plan, "float16"))
    if value == "acc16":
        plan = with_compute_type(plan, "float16", GUARDED)
    return plan, policy


register(Toggle(
    "fp16",
    claim="inputs, activations and gradients in float16, float32 masters, dynamic loss scaling; "
          "acc16 accumulates in half precision too",
    source="Micikevicius et al., Mixed Precision Training, 2018",
    group="numbers", apply=apply, conflicts=("bf16", "fp8", "tf32"), host=True,
    parameter=Parameter("acc32|acc16", choice("fp16", "acc32", "acc16"), "acc32"),
))
