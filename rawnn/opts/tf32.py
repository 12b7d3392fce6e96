"""`tf32`: float32 GEMMs on tensor cores, with factors rounded to 10 bits of mantissa."""

from __future__ import annotations

from rawnn.opts.precision import needs_capability, with_compute_type
from rawnn.opts.registry import Rewritten, Toggle, register
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy


def apply(plan: Plan, policy: Policy, value: str | int | None) -> Rewritten:
    return with_compute_type(plan, "tf32"), policy


register(Toggle(
    "tf32",
    claim="float32 GEMMs on tensor cores, factors rounded to 10 bits; with cublas or mma",
    source="NVIDIA A100 whitepaper; torch.backends.cuda.matmul.allow_tf32",
    group="numbers", apply=apply, needs=needs_capability(8, 0, "tensor cores for tf32"),
    needs_text="compute capability 8.0", conflicts=("fp16", "bf16", "fp8"),
))
