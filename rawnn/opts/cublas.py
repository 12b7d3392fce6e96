"""`cublas`: GEMMs by cuBLASLt.

A GEMM with a small result and a long inner dimension is cut into slices of k. One strided batch
computes them in parallel, and a kernel of rawnn adds them up, starting with the bias.
"""

from __future__ import annotations

from dataclasses import replace

from rawnn.opts.registry import Machine, Rewritten, Toggle, register
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy
from rawnn.plan.tensor import Role, Tensor

WORKSPACE_BYTES = 4 << 20
"""Scratch memory of each GEMM. Each has its own, so that independent GEMMs may run
concurrently."""


MAX_TILES = 16
"""Output tiles of 128 x 64 up to which a GEMM is too small to fill a GPU."""
MIN_SLICE = 16
MAX_SLICES = 28
"""Upper bound: adding more than 32 slices takes a second pass through L2, 1.75 us instead of
1.34."""


def slices_of(op: Op) -> int:
    """The number of slices of k into which a GEMM is cut, 1 for none: each keeps at least 16 of k.

    784-10 at batch 128 on an H200: cuBLASLt's first choice takes 17.9 us (four kernels), the best
    of 477 configurations 6.2 us, 28 slices as one strided batch 2.8 us and their sum 1.3 us. The
    weight gradient takes 4.1 us uncut and 2.6 us in 8 slices. That gains nothing if the sum is a
    launch of its own (in a graph 4.9 us uncut, 3.1 + 1.6 us sliced).
    """
    m, n, k = (op.attributes[d] for d in "mnk")
    if -(-m // 128) * -(-n // 64) > MAX_TILES:
        return 1
    return max((s for s in range(2, MAX_SLICES + 1) if k % (4 * s) == 0 and k // s >= MIN_SLICE),
               default=1)


def sliced(plan: Plan, op: Op, slices: int) -> tuple[Tensor, Op]:
    """The partial sums of `op` cut into slices, and the op that computes them."""
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
        added = plan.consumers(op.operands["c"], "bias_add")  # the sum starts with the bias
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
    claim="GEMMs by cuBLASLt, its algorithm chosen once per shape",
    source="the report's cuBLAS rung; cuBLASLt through nvmath-python's bindings",
    group="kernels", apply=apply, needs=needs, needs_text="nvmath-python, cuBLAS",
))
