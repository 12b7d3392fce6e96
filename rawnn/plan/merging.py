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
"""Kinds of ops that do a complete step -> the op that does several from there on."""

PARTIAL_BATCHES: dict[str, Callable[[Op, Plan, int], Op]] = {KIND: with_partial}
"""Kinds of ops that do a complete step -> the op that also does the step of another plan, on the
partial batch after the given number of full ones."""

BOUNDARIES: dict[str, Callable[[Op, Op], Op]] = {KIND: with_boundary}
"""Kinds of ops that do a complete step -> the op over all steps of an epoch that also does the
given op of the epoch boundary."""

DEFERRED: dict[str, Callable[[Op, int], Op]] = {metrics.KIND: spanning}
"""Kinds of ops that can be deferred -> the op that does several steps at once."""

Merge = Callable[[Op, Op], Op]
MERGES: dict[tuple[str, str], Merge] = {}
"""(kind, kind of the next op) -> the op that does both, on the step of the first."""


def spans(plan: Plan) -> bool:
    """Whether the plan is one op that can do many steps."""
    return len(plan.ops) == 1 and plan.ops[0].kind in SPANS


def with_partial_batch(plan: Plan, partial: Plan, whole: int) -> Plan:
    """The plan of one op that does complete steps; it also does `partial` after `whole` of them."""
    return replace(plan, ops=(PARTIAL_BATCHES[plan.ops[0].kind](plan.ops[0], partial, whole),))


def with_epoch_boundary(plan: Plan, between: Plan) -> Plan | None:
    """The plan of one op that does complete steps; it also does `between`, the epoch boundary. None
    if that has other ops, or more examples than its kernel has threads for."""
    if [op.kind for op in between.ops] != ["epoch_boundary"]:
        return None
    op, boundary = plan.ops[0], between.ops[0]
    if op.kind not in BOUNDARIES or \
            boundary.attributes["count"] > op.attributes.get("max_shuffled", 0):
        return None
    return replace(plan, tensors={**between.tensors, **plan.tensors},
                   ops=(BOUNDARIES[op.kind](op, boundary),))


def merge_neighbours(ops: Sequence[Op]) -> tuple[Op, ...]:
    """`ops`, with each op merged into its predecessor if one launch can do both."""
    found: list[Op] = []
    for op in ops:
        join = MERGES.get((found[-1].kind, op.kind)) if found else None
        if join is None:
            found.append(op)
        else:
            found[-1] = join(found[-1], op)
    return tuple(found)
