"""`cublas`: GEMMs by cuBLASLt.

A GEMM with a small result and a long inner dimension is cut into slices of k. One strided batch
computes them in parallel, and a kernel of rawnn adds them up, starting with the bias.

Without a value it computes all GEMMs. `auto` are those of a step that it is expected to compute
faster than `mma` (opts/cublas_payoff.py), OP+OP those of the ops that are named; `mma` computes
the others, and those that measure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace

from rawnn.common.errors import ConfigError, unknown
from rawnn.opts.cublas_payoff import expected_times
from rawnn.opts.registry import Machine, Outcome, Parameter, Rewritten, Toggle, register
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy
from rawnn.plan.tensor import Role, Tensor

WORKSPACE_BYTES = 4 << 20
"""Scratch memory of each GEMM. Each has its own, so that independent GEMMs may run
concurrently."""
LARGE_WORKSPACE_BYTES = 32 << 20
"""The same beside `mma`, of large GEMMs. With it the input gradient of 4096 x 4096 at batch 4096
takes 340 us instead of 430 (tf32, H200), and the update of 512 x 512 19 us instead of 28."""

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


def _slice_forward(plan: Plan, names: Collection[str]) -> Plan:
    changes: list[tuple[list[Op], list[Op]]] = []
    partials: list[Tensor] = []
    for op in plan.find(kind="matmul"):
        slices = slices_of(op)
        if op.name not in names or op.attributes["layout"] != "nt" or slices == 1:
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


def gemms_of(plan: Plan, value: str | int | None) -> list[str]:
    """The names of the GEMMs of a plan that cuBLASLt computes. Raises ConfigError for a name that
    is none of a training step."""
    names = [op.name for op in plan.find(kind="matmul")]
    if value is None:
        return names
    if plan.name == "evaluate":
        return []
    if value == "auto":
        return [each.op.name for each in expected_times(plan) if each.is_faster]
    wanted = str(value).split("+")
    for name in wanted if names else ():
        if name not in names:
            raise unknown("GEMM", name, names, "the GEMMs of a step are")
    return [name for name in names if name in wanted]


def apply(plan: Plan, policy: Policy, value: str | int | None) -> Rewritten:
    names = gemms_of(plan, value)
    plan = _slice_forward(plan, names)
    gemms = [op for op in plan.find(kind="matmul") + plan.find(kind="matmul_slices")
             if op.name in names]
    nbytes = WORKSPACE_BYTES if value is None else LARGE_WORKSPACE_BYTES
    scratch = {
        op.name: Tensor(f"{op.name}.workspace", (nbytes,), "uint8", Role.ACTIVATION)
        for op in gemms
    }

    def gemm(op: Op) -> Op:
        if op.name not in scratch:
            return op
        operands = {**op.operands, "workspace": scratch[op.name].name}
        return replace(op, impl="cublas", operands=operands)

    return plan.with_tensors(*scratch.values()).map_ops(gemm), policy


def parse(text: str) -> str:
    if not re.fullmatch(r"[\w.]+(\+[\w.]+)*", text):
        raise ConfigError(f"cublas={text}: give auto, or GEMMs of the step, as in "
                          f"cublas=fc1.forward+fc1.weight_grad")
    return text


def library_gemms(plan: Plan) -> list[str]:
    """The names of the GEMMs in a rewritten plan that cuBLASLt computes, as in the plan of before.
    A weight gradient that does the update is named after the update."""
    weights = {tensor.name for tensor in plan.tensors.values() if tensor.role is Role.PARAMETER}
    return [f"{op.operands['c']}_grad" if op.operands.get("c") in weights else op.name
            for op in plan.ops if op.impl == "cublas"]


def resolved_value(value: str | int | None, plan: Plan) -> str | int | None:
    """The GEMMs by name; "auto" if there are none."""
    return value and ("+".join(library_gemms(plan)) or value)


def outcomes(plan: Plan, value: str | int | None) -> list[Outcome]:
    """Which GEMMs `auto` takes, and what is expected of each."""
    if value != "auto":
        return []
    return [Outcome(each.op.name, "" if each.is_faster else
                    f"{each.cublas:.1f} us are expected of it, {each.own:.1f} by mma")
            for each in expected_times(plan)]


def beside(names: Collection[str], machine: Machine) -> str | None:
    if isinstance(names, Mapping) and names["cublas"] == "auto" and "mma" not in names:
        return "cublas=auto chooses between cuBLASLt and mma: add mma, or write cublas alone"
    return None


def needs(machine: Machine) -> str | None:
    if machine.has_package("nvmath"):
        return None
    return ("needs nvmath-python and the cuBLAS wheel: pip install 'rawnn[cu12]' "
            "(or 'rawnn[cu13]' for CUDA 13)")


register(Toggle(
    "cublas",
    claim="GEMMs by cuBLASLt, its algorithm chosen once per shape; auto: those that it is expected "
          "to compute faster than mma, OP+OP: those of the ops named",
    source="the report's cuBLAS rung; cuBLASLt through nvmath-python's bindings",
    group="kernels", apply=apply, needs=needs, needs_text="nvmath-python, cuBLAS",
    parameter=Parameter("auto|OP+OP", parse, ""), resolved_value=resolved_value,
    beside=beside,
    combines=lambda value: () if value is None else ("mma", "tiled"), outcomes=outcomes,
))
