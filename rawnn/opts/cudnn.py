"""`cudnn`: the softmax forward pass by cuDNN."""

from __future__ import annotations

from dataclasses import replace

from rawnn.opts.registry import Machine, Rewritten, Toggle, register
from rawnn.policy import Policy
from rawnn.step.op import Op
from rawnn.step.plan import Plan


def apply(plan: Plan, policy: Policy, value: str | int | None) -> Rewritten:
    def softmax(op: Op) -> Op:
        return replace(op, impl="cudnn") if op.kind == "softmax" else op

    return plan.map_ops(softmax), policy


def needs(machine: Machine) -> str | None:
    if machine.has_package("nvidia.cudnn"):
        return None
    return "needs the cuDNN wheel: pip install 'rawnn[cu12]'"


register(Toggle(
    "cudnn",
    claim="softmax by cuDNN; with fuse, the fused kernel then starts at the probabilities",
    source="the report's cuDNN rung",
    group="kernels", apply=apply, needs=needs, needs_text="cuDNN",
))
