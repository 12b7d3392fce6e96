"""`cublas`: matrix products by cuBLASLt.

A product whose output is small and whose inner dimension is long is cut into slices of k, which
one strided batch computes side by side; a kernel of ours adds them up, from the bias on.
"""

from __future__ import annotations

from dataclasses import replace

from rawnn.opts.registry import Machine, Rewritten, Toggle, register
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy
from rawnn.plan.tensor import Role, Tensor

WORKSPACE_BYTES = 4 << 20
"""Scratch memory of each product. Each has its own, so that products without a dependency may run
side by side."""


MAX_TILES = 16
"""Output tiles of 128 x 64 up to which a product is too small to fill a GPU by itself."""
MIN_SLICE = 16
MAX_SLICES = 28
"""The sum of more than 32 slices takes a second trip to the L2 cache: 1.75 us in place of 1.34."""


def slices_of(op: Op) -> int:
    """Into how many slices of k a product is cut, 1 for none: as many as leave 16 of k to each.

    784-10 at batch 128 on an H200: cuBLASLt's first choice takes 17.9 us (four kernels), the best
    of 477 configurations 6.2 us, 28 slices as one strided batch 2.8 us and their sum 1.3 us. The
    weight gradient takes 4.1 us whole, 2.6 us in 8 slices, which earn nothing where a launch of its
    own adds them up (4.9 us whole, 3.1 and 1.6 in a graph).
    """
    m, n, k = (op.attributes[d] for d in "mnk")
    if -(-m // 128) * -(-n // 64) > MAX_TILES:
        return 1
    return max((s for s in range(2, MAX_SLICES + 1) if k % (4 * s) == 0 and k // s >= MIN_SLICE),
               default=1)


def sliced(plan: Plan, op: Op, slices: int) -> tuple[Tensor, Op]:
    """The partial products of `op` cut into slices, and the op that computes them."""
    c = plan[op.operands["c"]]
    partial = Tensor(f"{op.name}.partial", (slices * c.shape[0], c.shape[1]), "float32",
                     Role.ACTIVATION, c.packed)
    operands = {role: op.operands[role] for role in ("a", "b", "workspace") if role in op.operands}
    attributes = {name: op.attributes[name] for name in ("layout", "m", "n", "k", "compute")}
    return partial, Op("matmul_slices", op.name, {**operands, "partial": partial.name},
                       {**attributes, "slices": slices}, op.impl)


def _slice_forward(plan: Plan) -> Plan:
    changes: list[tuple[list[Op], list[Op]]] = []
    partials: list[Tensor] = []
    for op in plan.find(kind="matmul"):
        slices = slices_of(op)
        if op.attributes["layout"] != "nt" or slices == 1:
            continue
        partial, gemm = sliced(plan, op, slices)
        operands = {"partial": partial.name, "c": op.operands["c"]}
        added = plan.consumers(op.operands["c"], "bias_add")  # its sum begins with the bias
        if added:
            operands["bias"] = added[0].operands["bias"]
        total = Op("sum_slices", f"{op.name}.sum", operands,
                   {"slices": slices, "bias": bool(added), "activation": ""})
        partials.append(partial)
        changes.append(([op, *added], [gemm, total]))
    return plan.with_tensors(*partials).substitute_all(changes)


def apply(plan: Plan, policy: Policy, value: str | int | None) -> Rewritten:
    plan = _slice_forward(plan)
    gemms = plan.find(kind="matmul") + plan.find(kind="matmul_slices")
    scratch = {
        op.name: Tensor(f"{op.name}.workspace", (WORKSPACE_BYTES,), "uint8", Role.ACTIVATION)
        for op in gemms
    }

    def gemm(op: Op) -> Op:
        if op.name not in scratch:
            return op
        operands = {**op.operands, "workspace": scratch[op.name].name}
        return replace(op, impl="cublas", operands=operands)

    return plan.with_tensors(*scratch.values()).map_ops(gemm), policy


def needs(machine: Machine) -> str | None:
    if machine.has_package("nvmath"):
        return None
    return ("needs nvmath-python and the cuBLAS wheel: pip install 'rawnn[cu12]' "
            "(or 'rawnn[cu13]' for CUDA 13)")


register(Toggle(
    "cublas",
    claim="matrix products by cuBLASLt, its algorithm chosen once per shape",
    source="the report's cuBLAS rung; cuBLASLt through nvmath-python's bindings",
    group="kernels", apply=apply, needs=needs, needs_text="nvmath-python, cuBLAS",
))
