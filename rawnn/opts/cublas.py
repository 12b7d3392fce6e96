"""`cublas`: matrix products by cuBLASLt."""

from __future__ import annotations

from dataclasses import replace

from rawnn.opts.registry import Machine, Rewritten, Toggle, register
from rawnn.policy import Policy
from rawnn.step.op import Op
from rawnn.step.plan import Plan
from rawnn.step.tensor import Role, Tensor

WORKSPACE_BYTES = 4 << 20
"""Scratch memory of each product. Each has its own, so that products without a dependency may run
side by side."""


def apply(plan: Plan, policy: Policy, value: str | int | None) -> Rewritten:
    scratch = {
        op.name: Tensor(f"{op.name}.workspace", (WORKSPACE_BYTES,), "uint8", Role.ACTIVATION)
        for op in plan.find(kind="matmul")
    }

    def product(op: Op) -> Op:
        if op.name not in scratch:
            return op
        operands = {**op.operands, "workspace": scratch[op.name].name}
        return replace(op, impl="cublas", operands=operands)

    return plan.with_tensors(*scratch.values()).map_ops(product), policy


def needs(machine: Machine) -> str | None:
    if machine.has_package("nvmath"):
        return None
    return "needs nvmath-python and the cuBLAS wheel: pip install 'rawnn[cu12]'"


register(Toggle(
    "cublas",
    claim="matrix products by cuBLASLt, its algorithm chosen once per shape",
    source="the report's cuBLAS rung; cuBLASLt through nvmath-python's bindings",
    group="kernels", apply=apply, needs=needs, needs_text="nvmath-python, cuBLAS",
))
