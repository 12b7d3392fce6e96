"""The op that does another op for each of many networks, the members, in one launch.

The attribute `single` is the op of one network, of the plan `plan`. Operands have its roles;
`stacks` says of each whose part a member uses: its OWN part of a stack of all members' tensors,
that of its FOLD, or what is SHARED. `active` lists the members of a launch, `launched` of them, -1
for none. `settings` are the optimizer's settings that come from a member's row of `members`, with
their places there. `folds` is the number of lists of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from rawnn.common import random
from rawnn.plan.op import OPS, Attributes, Op, OpSpec, define
from rawnn.plan.ops.common import Array
from rawnn.plan.ops.members import MemberWords

if TYPE_CHECKING:
    from rawnn.plan.plan import Plan
    from rawnn.plan.tensor import Tensor

KIND = "each_member"
OWN, FOLD, SHARED = "own", "fold", "shared"


def each_member(op: Op, plan: Plan, operands: Mapping[str, str], stacks: Mapping[str, str],
                settings: Sequence[str], networks: int) -> Op:
    """`op` for each of so many members, with the `operands` that stand for its own. `settings` are
    all that a row of `members` has, in its order."""
    varied = {name: place for place, name in enumerate(settings) if name in op.attributes} \
        if "w" in op.spec.writes else {}
    return Op(KIND, op.name, {**operands, "active": "active", "members": "members"}, {
        **op.attributes, "single": op, "plan": plan, "stacks": stacks, "networks": networks,
        "launched": networks, "settings": varied}, KIND)


def part_of(array: Array, tensor: Tensor, number: int) -> Array:
    """Part `number` of a stack of tensors like this one."""
    if array.ndim > len(tensor.shape):
        row: Array = array[number]
        return row
    rows = tensor.shape[0]
    part: Array = array[number * rows:(number + 1) * rows]
    return part


def _active(t: SimpleNamespace, a: Attributes) -> Iterator[int]:
    """The members of a launch."""
    return (int(member) for member in t.active[:int(a["launched"])] if member >= 0)


def _spec(op: Op) -> OpSpec:
    if "single" not in op.attributes:
        return OPS[KIND]
    single: Op = op.attributes["single"]
    plan: Plan = op.attributes["plan"]
    spec, stacks = single.spec, op.attributes["stacks"]
    absent = {*spec.reads, *spec.writes} - set(single.operands)

    def reference(t: SimpleNamespace, a: Attributes) -> None:
        stored = {role: plan[name].dtype for role, name in single.operands.items()}
        places: Mapping[str, int] = op.attributes["settings"]
        for member in _active(t, a):
            words = MemberWords(t.members, member)
            numbers = {OWN: member, FOLD: words.fold}
            own: dict[str, Any] = {}
            for role, name in single.operands.items():
                array = getattr(t, role)
                own[role] = array if stacks[role] == SHARED else \
                    part_of(array, plan[name], numbers[stacks[role]])
            settings = words.settings(max(places.values(), default=-1) + 1)
            attributes = {**single.attributes, "stored": stored,
                          **{name: settings[place] for name, place in places.items()}}
            if "seed" in attributes:
                attributes["seed"] = words.seed
            if "offset" in attributes:
                attributes["offset"] = int(a["offset"])
            spec.reference(SimpleNamespace(**own), attributes)

    return replace(spec, kind=KIND, reads=(*spec.reads, "active", "members"), reference=reference,
                   slotted=(), optional=(*spec.optional, *absent), unmeasured="", of=None)


def _undefined(t: SimpleNamespace, a: Attributes) -> None:
    raise NotImplementedError("what it means follows from each op")


OPS[KIND] = OpSpec(KIND, (), (), _undefined, of=_spec,
                   summary="Another op, for each active member.")


@define("member_orders", reads=("active", "members", "clock", "rows"), writes=("order",),
        optional=("rows",))
def member_orders(t: SimpleNamespace, a: Attributes) -> None:
    """order of every active member: its examples in the coming epoch, of its list of rows."""
    for member in _active(t, a):
        words, count = MemberWords(t.members, member), int(a["count"])
        index = random.permutation(words.seed, int(t.clock[2 * member]), count) \
            if a["shuffled"] else np.arange(count, dtype=np.int32)
        t.order[member] = t.rows[words.fold * count + index] if hasattr(t, "rows") else index


@define("member_means", reads=("active", "loss", "correct"), writes=("mean", "score"),
        optional=("correct", "score"))
def member_means(t: SimpleNamespace, a: Attributes) -> None:
    """mean, score = what every active member measured in an epoch.

    They are the mean loss of its steps, weighted by their examples, and the part of right answers.
    """
    whole, steps = int(a["whole"]), int(a["steps"])
    weights = np.full(steps, int(a["batch"]))
    weights[whole:] = int(a["left"])
    for member in _active(t, a):
        t.mean[member] = np.average(t.loss[member].astype(np.float64), weights=weights)
        if hasattr(t, "score"):
            answers = int(a["answers"]) * int(weights.sum())
            t.score[member] = t.correct[member].sum() / answers if hasattr(t, "correct") else np.nan
