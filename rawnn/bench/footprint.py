"""Why a step takes as long as it does: its launches and the bytes that they move."""

from __future__ import annotations

from typing import Any

import msgspec

from rawnn.runners.base import Work
from rawnn.step.plan import Plan
from rawnn.step.tensor import Role


class Footprint(msgspec.Struct, frozen=True, kw_only=True):
    """`launches` of kernels, library calls and copies a step; `bytes` that they read and write by
    the plan, a tensor counted as often as an op touches it (what a library keeps for itself is not
    known); `least_bytes` that any program must
    move: each example and its answer once, parameters and optimizer state read and written once.
    `nodes` of the graph, None without one."""

    launches: float
    bytes: int
    least_bytes: int
    nodes: int | None = None


def footprint(work: Work, facts: dict[str, Any]) -> Footprint:
    """Of a run's measured step; `facts` are what its runner describes."""
    plan = work.train
    return Footprint(launches=len(plan.ops) / plan.steps, bytes=moved(plan) // plan.steps,
                     least_bytes=least(plan) // plan.steps, nodes=facts.get("graph_nodes"))


def moved(plan: Plan) -> int:
    """Bytes that all ops of a plan read and write."""
    return sum(_touched(plan, name) for op in plan.ops for name, _ in (*op.reads, *op.writes)
               if name != op.operands.get("workspace"))


def least(plan: Plan) -> int:
    """Bytes that no order of the same work could do without: what each step brings anew, and what
    it changes, read and written."""
    names = {name for op in plan.ops for name, _ in (*op.reads, *op.writes)}
    data = sum(_touched(plan, name) * plan.steps for name in names
               if plan[name].role in (Role.DATA, Role.HOST))
    kept = sum(plan[name].nbytes for name in names
               if plan[name].role in (Role.PARAMETER, Role.STATE))
    return data + 2 * kept


def _touched(plan: Plan, name: str) -> int:
    """Bytes of a tensor that one op touches: of the data set the rows of a batch, of metrics and
    of the order of examples as many elements as it works on."""
    tensor = plan[name]
    if tensor.role in (Role.DATA, Role.HOST):
        return tensor.nbytes // max(tensor.shape[0], 1) * plan.batch
    if tensor.role is Role.METRIC:
        return tensor.nbytes // max(tensor.shape[0], 1)
    return min(tensor.nbytes, 4 * plan.batch) if name == "order" else tensor.nbytes
