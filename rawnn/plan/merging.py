"""Merges ops that one launch can do: the last op of a step with the first op of the next.

A plan of one step has no such pair, so ops are merged when a plan is unrolled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rawnn.plan.op import Op
from rawnn.plan.ops import metrics
from rawnn.plan.ops.train_steps import KIND, spanning, with_boundary, with_partial

if TYPE_CHECKING:
    from rawnn.plan.plan import Plan

SPANS: dict[str, Callable[[Op, int], Op]] = {KIND: spanning}
"""Kinds of ops that do a whole step -> the op that does so many from it on."""

PARTIAL_BATCHES: dict[str, Callable[[Op, Plan, int], Op]] = {KIND: with_partial}
"""Kinds of ops that do a whole step -> the op that also does that of another plan, on the partial
batch behind so many whole ones."""

BOUNDARIES: dict[str, Callable[[Op, Op], Op]] = {KIND: with_boundary}
"""Kinds of ops that do a whole step -> the op that, over all steps of an epoch, also does the op
`turn` behind them."""

DEFERRED: dict[str, Callable[[Op, int], Op]] = {metrics.KIND: spanning}
"""Kinds of ops that need not be done step by step -> the op that does it for so many from it on."""

Merge = Callable[[Op, Op], Op]
MERGES: dict[tuple[str, str], Merge] = {}
"""(kind, kind of the op directly behind it) -> the op that does both. It works on the step of the
first."""


def spans(plan: Plan) -> bool:
    """Whether the plan is one op that can do many steps."""
    return len(plan.ops) == 1 and plan.ops[0].kind in SPANS


def with_partial_batch(plan: Plan, rest: Plan, whole: int) -> Plan:
    """The plan of one op that does whole steps, which also does `rest` behind `whole` of them."""
    return replace(plan, ops=(PARTIAL_BATCHES[plan.ops[0].kind](plan.ops[0], rest, whole),))


def with_epoch_boundary(plan: Plan, between: Plan) -> Plan | None:
    """The plan of one op that does whole steps, which also does what stands `between` two epochs.
    None where that is more than a turn, or of more examples than its kernel has threads for."""
    if [op.kind for op in between.ops] != ["epoch_boundary"]:
        return None
    op, turn = plan.ops[0], between.ops[0]
    if op.kind not in BOUNDARIES or turn.attributes["count"] > op.attributes.get("most_turned", 0):
        return None
    return replace(plan, tensors={**between.tensors, **plan.tensors},
                   ops=(BOUNDARIES[op.kind](op, turn),))


def merge_neighbours(ops: Sequence[Op]) -> tuple[Op, ...]:
    """`ops`, where one directly behind another that can take it in is taken in."""
    found: list[Op] = []
    for op in ops:
        join = MERGES.get((found[-1].kind, op.kind)) if found else None
        if join is None:
            found.append(op)
        else:
            found[-1] = join(found[-1], op)
    return tuple(found)
