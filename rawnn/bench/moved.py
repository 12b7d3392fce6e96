"""Bytes that the ops of a plan read and write."""

from __future__ import annotations

from collections.abc import Iterator

from rawnn.plan.op import Op
from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Role


def touched(op: Op, plan: Plan) -> Iterator[tuple[str, int]]:
    """Each tensor that an op reads or writes, as often as it does, with its bytes; what a library
    keeps for itself is not known."""
    for name, _ in (*op.reads, *op.writes):
        if name != op.operands.get("workspace"):
            yield name, touched_bytes(plan, name)


def moved_by(op: Op, plan: Plan) -> int:
    """Bytes that an op reads and writes."""
    return sum(nbytes for _, nbytes in touched(op, plan))


def moved(plan: Plan) -> int:
    """Bytes that all ops of a plan read and write."""
    return sum(moved_by(op, plan) for op in plan.ops)


def least(plan: Plan) -> int:
    """Bytes that no order of the same work could do without: what each step brings anew, and what
    it changes, read and written."""
    names = {name for op in plan.ops for name, _ in (*op.reads, *op.writes)}
    data = sum(touched_bytes(plan, name) * plan.steps for name in names
               if plan[name].role.of_data)
    kept = sum(plan[name].nbytes for name in names
               if plan[name].role in (Role.PARAMETER, Role.STATE))
    return data + 2 * kept


def touched_bytes(plan: Plan, name: str) -> int:
    """Bytes of a tensor that one op touches: of the data set the rows of a batch, of metrics and
    of the order of examples as many elements as it works on."""
    tensor = plan[name]
    if tensor.role.of_data:
        return tensor.nbytes // max(tensor.shape[0], 1) * plan.batch
    if tensor.role is Role.METRIC:
        return tensor.nbytes // max(tensor.shape[0], 1)
    return min(tensor.nbytes, 4 * plan.batch) if name == "order" else tensor.nbytes
