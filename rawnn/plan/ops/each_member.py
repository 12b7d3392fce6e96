"""The op that does another op for each of many networks, the members, in one launch.

The attribute `single` is the op of one network, of the plan `plan`. Operands have its roles;
`stacks` says of each whose part a member uses: its OWN part of a stack of all members' tensors,
that of its FOLD, what is SHARED, or the INDEXED rows of a shared matrix. The member's part of
`order` names these: `batch` of them from step * `stride` on, where step is `cursor` + `offset`.
`active` lists the members of a launch, `launched` of them, -1 for none. `setting_places` has the
optimizer's settings that come from a member's row of `members`, each with its place among those of
a row. `folds` is the number of lists of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from rawnn.plan.op import OPS, Attributes, Op, OpSpec
from rawnn.plan.ops.common import Array, batch_rows
from rawnn.plan.ops.members import MemberWords, active_members

if TYPE_CHECKING:
    from rawnn.plan.plan import Plan
    from rawnn.plan.tensor import Tensor

KIND = "each_member"
OWN, FOLD, SHARED, INDEXED = "own", "fold", "shared", "indexed"
INDEXED_BY = ("order", "cursor")
"""Operands that say which rows of a shared matrix are a member's at a step."""


def each_member(op: Op, plan: Plan, operands: Mapping[str, str], stacks: Mapping[str, str],
                setting_names: Sequence[str], networks: int) -> Op:
    """`op` for each of so many members, with `operands` in place of those of one network.
    `setting_names` are all settings that a row of `members` has, in its order."""
    places = {name: place for place, name in enumerate(setting_names) if name in op.attributes} \
        if "w" in op.spec.writes else {}
    indexed = {} if INDEXED not in stacks.values() else {role: role for role in INDEXED_BY}
    return Op(KIND, op.name, {**operands, **indexed, "active": "active", "members": "members"}, {
        **op.attributes, "single": op, "plan": plan, "stacks": stacks, "networks": networks,
        "launched": networks, "setting_places": places}, KIND)


def part_of(array: Array, tensor: Tensor, number: int) -> Array:
    """Part `number` of a stack of tensors like this one."""
    if array.ndim > len(tensor.shape):
        row: Array = array[number]
        return row
    rows = tensor.shape[0]
    part: Array = array[number * rows:(number + 1) * rows]
    return part


def _indices(t: SimpleNamespace, a: Attributes, member: int, rows: int) -> Array:
    """The rows of a shared matrix that are a member's at the op's step."""
    own = SimpleNamespace(cursor=t.cursor, order=t.order[member])
    found: Array = batch_rows(own, a, rows)
    return found


def _spec(op: Op) -> OpSpec:
    if "single" not in op.attributes:
        return OPS[KIND]
    single: Op = op.attributes["single"]
    plan: Plan = op.attributes["plan"]
    spec, stacks = single.spec, op.attributes["stacks"]
    indexed = INDEXED_BY if INDEXED in stacks.values() else ()
    absent = {*spec.reads, *spec.writes} - set(single.operands)

    def reference(t: SimpleNamespace, a: Attributes) -> None:
        stored = {role: plan[name].dtype for role, name in single.operands.items()}
        places: Mapping[str, int] = op.attributes["setting_places"]
        for member in active_members(t, a):
            words = MemberWords(t.members, member)
            numbers = {OWN: member, FOLD: words.fold}
            rows = _indices(t, a, member, int(op.attributes["batch"])) if indexed else None
            operands: dict[str, Any] = {}
            for role, name in single.operands.items():
                array = getattr(t, role)
                operands[role] = array if stacks[role] == SHARED else \
                    array[rows] if stacks[role] == INDEXED else \
                    part_of(array, plan[name], numbers[stacks[role]])
            settings = words.settings(max(places.values(), default=-1) + 1)
            attributes = {**single.attributes, "stored": stored,
                          **{name: settings[place] for name, place in places.items()}}
            if "seed" in attributes:
                attributes["seed"] = words.seed
            if "offset" in attributes:
                attributes["offset"] = int(a["offset"])
            spec.reference(SimpleNamespace(**operands), attributes)

    reads = tuple(dict.fromkeys((*spec.reads, *indexed, "active", "members")))
    return replace(spec, kind=KIND, reads=reads, reference=reference,
                   slotted=(), optional=(*spec.optional, *absent), unmeasured="", of=None)


def _undefined(t: SimpleNamespace, a: Attributes) -> None:
    raise NotImplementedError("what it means follows from each op")


OPS[KIND] = OpSpec(KIND, (), (), _undefined, of=_spec,
                   summary="Another op, for each active member.")
