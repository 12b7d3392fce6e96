"""`tiled`: GEMMs through tiles in shared memory and registers."""

from __future__ import annotations

from dataclasses import replace

from rawnn.opts.registry import Rewritten, Toggle, register
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy


def apply(plan: Plan, policy: Policy, value: str | int | None) -> Rewritten:
    """Every GEMM that accumulates in float32; others are unchanged."""

    def tiled(op: Op) -> Op:
        fits = op.kind == "matmul" and op.attributes["compute"] != "float16"
        return replace(op, impl="tiled") if fits else op

    return plan.map_ops(tiled), policy


register(Toggle(
    "tiled",
    claim="GEMMs by our own kernels through tiles in shared memory and registers, in float",
    source="Volkov and Demmel, Benchmarking GPUs to tune dense linear algebra, 2008",
    group="kernels", apply=apply, conflicts=("cublas",),
))
