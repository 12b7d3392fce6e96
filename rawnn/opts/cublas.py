"""`cublas`: matrix products by cuBLASLt.

A product whose output is small and whose inner dimension is long is cut into slices of k, which
one strided batch computes side by side; a kernel of ours adds them up.
"""

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


MAX_TILES = 8
"""Output tiles of 128 x 64 up to which a product is too small to fill a GPU by itself."""
MAX_SLICES = 28
MIN_INNER = 256


def slices_of(op: Op) -> int:
    """Into how many slices of k a product is cut, 1 for none.

    784-10 at batch 128 on an H200: cuBLASLt's first choice takes 17.9 us (four kernels), the best
    of 477 configurations 6.2 us, 28 slices as one strided batch 2.8 us and their sum 1.3 us.
    """
    m, n, k = (op.attributes[d] for d in "mnk")
    tiles = -(-m // 128) * -(-n // 64)
    if op.attributes["layout"] != "nt" or tiles > MAX_TILES or k < MIN_INNER:
        return 1
    return max(s for s in range(1, MAX_SLICES + 1) if k % (4 * s) == 0 or s == 1)


def _sliced(plan: Plan) -> Plan:
    for op in plan.find(kind="matmul"):
        slices = slices_of(op)
        if slices == 1:
            continue
        c = plan[op.operands["c"]]
        partial = Tensor(f"{op.name}.partial", (slices * c.shape[0], c.shape[1]), c.dtype,
                         Role.ACTIVATION, c.packed)
        sizes = {d: op.attributes[d] for d in "mnk"}
        product = Op("matmul_slices", op.name,
                     {"a": op.operands["a"], "b": op.operands["b"], "partial": partial.name},
                     {**sizes, "slices": slices})
        total = Op("sum_slices", f"{op.name}.sum", {"partial": partial.name, "c": c.name},
                   {"slices": slices, "bias": False, "relu": False})
        plan = plan.with_tensors(partial).substitute([op], [product, total])
    return plan


def apply(plan: Plan, policy: Policy, value: str | int | None) -> Rewritten:
    plan = _sliced(plan)
    products = plan.find(kind="matmul") + plan.find(kind="matmul_slices")
    scratch = {
        op.name: Tensor(f"{op.name}.workspace", (WORKSPACE_BYTES,), "uint8", Role.ACTIVATION)
        for op in products
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
