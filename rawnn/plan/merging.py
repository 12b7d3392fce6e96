"""Merges ops that one launch can do: the last op of a step with the first op of the next, and an
update with the next GEMM that reads its weights.

A plan of one step has no such pair, so ops are merged when a plan is unrolled.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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

DEFERS = "defers"
"""The attribute of an update that may be deferred: the steps whose updates one kernel computes."""

DEFERRABLE: dict[str, tuple[Callable[[Plan, Op, Op], bool],
                            Callable[[Sequence[Op], Op | None, bool, Plan], Op]]] = {}
"""Kinds of updates -> whether a GEMM may be merged into one; and the op that does such updates of
one or several steps, then the GEMM if there is one, and stores the new weights or does not."""

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


def defer_updates(plan: Plan, ops: Sequence[Op]) -> tuple[Op, ...]:
    """`ops`, with each update that may be deferred moved to the next GEMM that reads its weights
    and merged with it. The merged op leaves its new weights to that of the next step, as often as
    the attribute `defers` allows and if no other op needs them; the last one always stores them."""
    found: list[Op | None] = list(ops)
    updates: dict[str, list[_Deferred]] = {}
    accesses = _Accesses(ops)
    for index, op in enumerate(ops):
        if DEFERS in op.attributes and op.kind in DEFERRABLE:
            updates.setdefault(op.operands["w"], []).append(accesses.deferred(plan, index))
    for of_layer in updates.values():
        waiting: list[_Deferred] = []
        for update, following in zip(of_layer, [*of_layer[1:], None], strict=True):
            waiting.append(update)
            stores = following is None or len(waiting) >= ops[update.index].attributes[DEFERS] \
                or not update.is_only_left_to(following, waiting, accesses)
            gemm = None if update.gemm is None else ops[update.gemm]
            if gemm is not None or len(waiting) > 1:
                merge = DEFERRABLE[ops[update.index].kind][1]
                found[update.index] = None
                found[update.place] = merge([ops[each.index] for each in waiting], gemm, stores,
                                            plan)
            if stores:
                waiting = []
    return tuple(op for op in found if op is not None)


@dataclass(frozen=True)
class _Deferred:
    """An update at position `index`, and the position of the GEMM that it is merged with. `kept`
    are the tensors that it reads only, `changed` those that it writes."""

    index: int
    gemm: int | None
    kept: frozenset[str]
    changed: frozenset[str]

    @property
    def place(self) -> int:
        """The position of the merged op."""
        return self.index if self.gemm is None else self.gemm

    def is_only_left_to(self, following: _Deferred, waiting: Sequence[_Deferred],
                        accesses: _Accesses) -> bool:
        """Whether `following` is the next that needs the new weights behind this update's GEMM, and
        then finds what all updates `waiting` read."""
        return self.gemm is not None \
            and accesses.next_use(self.changed, self.gemm) == following.index \
            and not any(accesses.is_written(each.kept, each.index, following.place)
                        for each in waiting)


class _Accesses:
    """The positions of the ops that use each tensor, and of those that write it."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self._ops = ops
        self._uses: dict[str, list[int]] = {}
        self._writes: dict[str, list[int]] = {}
        for index, op in enumerate(ops):
            for name in {name for name, _ in (*op.reads, *op.writes)}:
                self._uses.setdefault(name, []).append(index)
            for name in {name for name, _ in op.writes}:
                self._writes.setdefault(name, []).append(index)

    def deferred(self, plan: Plan, index: int) -> _Deferred:
        """The update at a position, with the GEMM behind it that it can be merged with."""
        update = self._ops[index]
        changed = frozenset(name for name, _ in update.writes)
        kept = frozenset(name for name, _ in update.reads) - changed
        gemm = self.next_use(changed, index)
        if gemm is not None and (not DEFERRABLE[update.kind][0](plan, update, self._ops[gemm])
                                 or self.is_written(kept, index, gemm)):
            gemm = None
        return _Deferred(index, gemm, kept, changed)

    def next_use(self, tensors: frozenset[str], behind: int) -> int | None:
        """The first position behind another at which an op uses one of the tensors."""
        return min((found for name in tensors
                    if (found := _first(self._uses.get(name, ()), behind)) is not None),
                   default=None)

    def is_written(self, tensors: frozenset[str], behind: int, last: int) -> bool:
        """Whether an op behind a position, up to another one, writes one of the tensors."""
        return any((found := _first(self._writes.get(name, ()), behind)) is not None
                   and found <= last for name in tensors)


def _first(positions: Sequence[int], behind: int) -> int | None:
    place = bisect_right(positions, behind)
    return positions[place] if place < len(positions) else None
