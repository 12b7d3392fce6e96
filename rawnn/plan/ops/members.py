"""Ops that train and measure many networks, the members, in one launch.

Operands are stacks: the tensors of one network below each other, that of member 0 first. `active`
lists the members of a launch, `launched` of them. `members` has a row of int32 words for each
(`member_words`). The data set is shared; members that train on lists of `rows` have one of `folds`
lists, and its normalisation. A member of a launch does what `step`, the plan of one step, does with
its operands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rawnn.common import random
from rawnn.common.dtypes import rounded
from rawnn.plan.op import OPS, Attributes, Op, OpSpec, define
from rawnn.plan.ops.common import Array
from rawnn.plan.ops.epoch import tick
from rawnn.plan.ops.train_steps import role_of, run_steps
from rawnn.plan.tensor import Role

if TYPE_CHECKING:
    from rawnn.model.schedules import Schedule
    from rawnn.plan.plan import Plan

TRAIN, EVALUATE = "train_members", "evaluate_members"
FOLD_WORD, SCHEDULE_WORD, SETTINGS_WORD = 2, 3, 8
"""Where in a member's words its fold, schedule and settings stand: behind the seed, in two words
(ptx/persistent/members.cuh)."""
SHARED_OPERANDS = ("images", "labels", "targets", "rows", "counts", "mean", "inverse_std", "active",
                   "members")
SCORES = ("train_loss", "validation_loss", "validation_score")
"""float64 [networks, epochs]: an epoch's column is the op's `offset`."""


def word_count(settings: int) -> int:
    """The words of a member with so many settings: a multiple of four, as rows begin at 16 bytes.
    """
    return -(-(SETTINGS_WORD + 2 * settings) // 4) * 4


def member_words(seed: int, fold: int, schedule: Schedule,
                 settings: Sequence[float]) -> NDArray[np.int32]:
    """The words of a member, int32 [word_count(len(settings))]."""
    numbers = np.asarray(settings, np.float64).view(np.int32)
    words = np.zeros(word_count(len(settings)), np.int32)
    words[:2] = np.array([seed], np.uint64).view(np.int32)
    words[FOLD_WORD] = fold
    words[SCHEDULE_WORD:SCHEDULE_WORD + 2] = np.array([schedule.lr, schedule.value],
                                                      np.float32).view(np.int32)
    words[SCHEDULE_WORD + 2:SCHEDULE_WORD + 4] = schedule.period, schedule.warmup
    words[SETTINGS_WORD:SETTINGS_WORD + numbers.size] = numbers
    return words


class MemberWords:
    """A member's words, as an op reads them."""

    def __init__(self, members: Array, member: int) -> None:
        self._row = np.ascontiguousarray(members[member])
        self.seed = int(self._row[:2].view(np.uint64)[0])
        self.fold = int(self._row[FOLD_WORD])

    def schedule(self, kind: str, steps: int) -> Schedule:
        from rawnn.model.schedules import Schedule

        lr, value = self._row[SCHEDULE_WORD:SCHEDULE_WORD + 2].view(np.float32)
        period, warmup = self._row[SCHEDULE_WORD + 2:SCHEDULE_WORD + 4]
        return Schedule(kind, float(lr), float(value), int(period), int(warmup), steps)

    def settings(self, count: int) -> list[float]:
        first = SETTINGS_WORD
        return [float(v) for v in self._row[first:first + 2 * count].view(np.float64)]


def active_members(t: SimpleNamespace, a: Attributes) -> Iterator[int]:
    """The members of a launch: the entries of its list that name one."""
    return (int(member) for member in t.active[:int(a["launched"])] if member >= 0)


# -- one member ------------------------------------------------------------------------------------
def _of_member(t: SimpleNamespace, a: Attributes, member: int, fold: int) -> SimpleNamespace:
    """The operands of one member: its part of every stack, and the data set."""
    found: dict[str, Any] = {"cursor": np.zeros(1, np.int32)}
    for role, array in vars(t).items():
        if role in ("mean", "inverse_std"):
            found[role] = array[fold]
        elif role == "targets" and a["target_stride"]:
            found[role] = array[fold * a["target_stride"]:(fold + 1) * a["target_stride"]]
        elif role in SHARED_OPERANDS or role in SCORES:
            found[role] = array
        else:
            size = len(array) // int(a["networks"])
            found[role] = array[member * size:(member + 1) * size]
    return SimpleNamespace(**found)


def _rows(t: SimpleNamespace, a: Attributes, fold: int, index: Array) -> Array:
    """The rows of the data set that examples of a member are."""
    if not hasattr(t, "rows"):
        return index
    rows: Array = t.rows[fold * int(a["examples"]) + index]
    return rows


def _extent(op: Op, t: SimpleNamespace, a: Attributes, fold: int,
            part: int) -> tuple[int, int, Plan | None]:
    """The examples of a member, its full batches, and the plan of what they leave. Lists of rows of
    different lengths have `counts`, [folds, 2] training and scored rows, and `rests` by what is
    left."""
    if "rests" not in op.attributes:
        rest = op.attributes.get("rest")
        return int(a["examples"]), int(a["whole"] if rest else a["span"]), rest
    examples, batch = int(t.counts[2 * fold + part]), op.attributes["step"].batch
    return examples, examples // batch, op.attributes["rests"].get(examples % batch)


def _with_settings(plan: Plan, names: Sequence[str], words: MemberWords) -> Plan:
    """The step of one member: `names` are the optimizer's settings in which members differ."""
    own = dict(zip(names, words.settings(len(names)), strict=True))

    def of_member(op: Op) -> Op:
        if "dw" not in op.operands or "w" not in op.operands:
            return op
        seed = {"seed": words.seed} if "seed" in op.attributes else {}
        return replace(op, attributes={**op.attributes, **own, **seed})

    return replace(plan, ops=tuple(map(of_member, plan.ops)))


def _make_copies(step: Plan, own: SimpleNamespace) -> None:
    """Gives a member the copies of its weights that a step's products read."""
    for tensor in step.tensors.values():
        if tensor.role is Role.COPY:
            source = getattr(own, role_of(step[tensor.source]))
            scaled = source * source.dtype.type(tensor.scale)
            setattr(own, role_of(tensor), rounded(scaled, tensor.dtype))


def _train(op: Op, t: SimpleNamespace, a: Attributes, member: int) -> None:
    """All steps of an epoch of one member, in order; then its clock goes on."""
    words = MemberWords(t.members, member)
    examples, whole, rest = _extent(op, t, a, words.fold, 0)
    steps = whole + (rest is not None)
    own = _of_member(t, a, member, words.fold)
    if op.attributes["ordered"]:
        index = random.permutation(words.seed, int(own.clock[0]), examples) \
            if op.attributes["shuffled"] else np.arange(examples, dtype=np.int32)
        own.order = _rows(t, a, words.fold, index)
    names = op.attributes["settings"]
    _make_copies(op.attributes["step"], own)
    run_steps(_with_settings(op.attributes["step"], names, words), own, 0, whole)
    weights = np.full(steps, op.attributes["step"].batch)
    if rest is not None:
        run_steps(_with_settings(rest, names, words), own, whole, 1)
        weights[whole:] = rest.batch
    t.train_loss[member, int(a["offset"])] = np.average(own.loss[:steps].astype(np.float64),
                                                        weights=weights)
    tick(SimpleNamespace(clock=own.clock), {"steps": steps})


def _evaluate(op: Op, t: SimpleNamespace, a: Attributes, member: int) -> None:
    """The mean loss of a member over its rows, and the part of right answers."""
    words = MemberWords(t.members, member)
    examples, whole, rest = _extent(op, t, a, words.fold, 1)
    loss, right = 0.0, 0
    for plan, first in _chunks(op.attributes["step"], whole, rest):
        own = _of_member(t, a, member, words.fold)
        chosen = _rows(t, a, words.fold, np.arange(first, first + plan.batch))
        for role in ("images", "labels", "targets"):
            if hasattr(own, role):
                setattr(own, role, getattr(own, role)[chosen])
        _make_copies(plan, own)
        own.loss, own.correct = np.zeros(1, own.w1.dtype), np.zeros(1, np.int32)
        run_steps(plan, own, 0, 1)
        loss += float(own.loss[0]) * plan.batch
        right += int(own.correct[0])
    column, answers = int(a["offset"]), int(a["answers"])
    t.validation_loss[member, column] = loss / examples
    t.validation_score[member, column] = right / (examples * answers) if answers else np.nan


def _chunks(step: Plan, whole: int, rest: Plan | None) -> Iterator[tuple[Plan, int]]:
    yield from ((step, first * step.batch) for first in range(whole))
    if rest is not None:
        yield rest, whole * step.batch


# -- the kinds of ops ------------------------------------------------------------------------------
def _spec(op: Op) -> OpSpec:
    if "step" not in op.attributes:
        return OPS[op.kind]
    run = _train if op.kind == TRAIN else _evaluate
    outputs = op.attributes["outputs"]  # written, and never read
    reads = tuple(role for role in op.operands if role not in outputs)
    trained = tuple(role for role in reads if role not in (*SHARED_OPERANDS, "rates"))
    written = (*(trained if op.kind == TRAIN else ()), *outputs)

    def reference(t: SimpleNamespace, a: Attributes) -> None:
        for member in t.active[:int(a["launched"])]:
            run(op, t, a, int(member))

    return OpSpec(op.kind, reads, written, reference, summary=OPS[op.kind].summary)


def _undefined(t: SimpleNamespace, a: Attributes) -> None:
    raise NotImplementedError("what it means follows from each op")


OPS[TRAIN] = OpSpec(TRAIN, (), (), _undefined, of=_spec,
                    summary="An epoch of training of each active member.")
OPS[EVALUATE] = OpSpec(EVALUATE, (), (), _undefined, of=_spec,
                       summary="Loss and score of each active member.")


@define("initialise_members", reads=("members",), writes=("w",))
def initialise_members(t: SimpleNamespace, a: Attributes) -> None:
    """w of every member as `initialise` has it, from the member's seed."""
    for member, part in enumerate(np.split(t.w, int(a["networks"]))):
        seed = MemberWords(t.members, member).seed
        part[...] = random.uniform(seed, a["stream"], part.size, a["bound"]).reshape(part.shape)


@define("member_schedule", reads=("active", "members", "clock"), writes=("rates",))
def member_schedule(t: SimpleNamespace, a: Attributes) -> None:
    """rates of every active member as `schedule` has them, by its own schedule and clock."""
    steps = int(a["steps"])
    for member in map(int, t.active[:int(a["launched"])]):
        schedule = MemberWords(t.members, member).schedule(a["kind"], steps)
        first = int(t.clock[2 * member + 1])
        t.rates[member * steps:(member + 1) * steps] = schedule.rates(first, steps)


@define("member_orders", reads=("active", "members", "clock", "rows"), writes=("order",),
        optional=("rows",))
def member_orders(t: SimpleNamespace, a: Attributes) -> None:
    """order of every active member: its examples in the coming epoch, of its list of rows."""
    for member in active_members(t, a):
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
    for member in active_members(t, a):
        t.mean[member] = np.average(t.loss[member].astype(np.float64), weights=weights)
        if hasattr(t, "score"):
            answers = int(a["answers"]) * int(weights.sum())
            t.score[member] = t.correct[member].sum() / answers if hasattr(t, "correct") else np.nan
