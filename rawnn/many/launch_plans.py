"""The plans of a group of members whose steps are launches of all of them: the kernels of one
network's step, each once for all members.

The steps are those of a single run with the sharding LAUNCHES (engine/config.py), kernel by kernel,
so that a member has its bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rawnn.common.target import Machine, Target
from rawnn.engine.runners.plan_data import data_spec_of
from rawnn.graphs.unrolling import GraphPlan
from rawnn.many.member_plans import OF_DATA, TEST, PlanBuilder, schedule_of, table_of
from rawnn.many.members import Group
from rawnn.opts.launches import LAUNCH_TOGGLES
from rawnn.persistent.problem import NOT_SETTINGS, Unsupported
from rawnn.plan.build import CLOCK
from rawnn.plan.merging import DEFERRED
from rawnn.plan.op import Op
from rawnn.plan.op_flops import operations
from rawnn.plan.ops.each_member import FOLD, OWN, SHARED, each_member
from rawnn.plan.ops.members import SCORES, word_count
from rawnn.plan.plan import Plan, advance
from rawnn.plan.tensor import Role, Tensor
from rawnn.ptx.each_member import FLAT, MOST_MEMBERS, elements_of
from rawnn.ptx.gemm.mma import PREDICTED, predicted
from rawnn.ptx.gemm.tiles import blocks, gemm_shape

UNROLLED = 32
"""Steps of a graph, at most: a longer one takes longer to make, and one of so many its launch's
microseconds seldom."""
LEAST_MEASURED = 128
"""Examples that are measured at once, where a batch has fewer."""


@dataclass(frozen=True)
class LaunchPlans:
    """start: draws the initial weights. refresh: the copies of weights that steps read.
    begin: order and learning rates of an epoch's steps. end: its mean loss, and the clock.
    scores: of the members behind an epoch.
    steps, rest, measuring, left: ops of a step, of that on a partial batch, and of measuring a
    chunk of the rows and those that are left; `whole` and `chunks` say how often.
    answers: of an example, 0 where they are not counted. single: the step of one network.
    words: as MemberPlans has them.
    """

    start: Plan
    refresh: Plan
    begin: Plan
    end: Plan
    scores: Plan
    steps: Plan
    rest: Plan
    measuring: Plan
    left: Plan
    whole: int
    chunks: int
    answers: int
    single: Plan
    words: NDArray[np.int32]

    @property
    def around(self) -> list[Plan]:
        """Those that are not graphs."""
        return [self.start, self.refresh, self.begin, self.end, self.scores]

    def training(self, launched: int) -> list[GraphPlan]:
        """The graphs of an epoch's steps, of so many members."""
        return _graphs(self.steps, self.rest, self.whole, launched)

    def evaluation(self, launched: int) -> list[GraphPlan]:
        return _graphs(self.measuring, self.left, self.chunks, launched)


def _graphs(step: Plan, rest: Plan, count: int, launched: int) -> list[GraphPlan]:
    """`count` times `step`, then `rest`."""
    def ops_of(steps: int) -> list[Op]:
        found = [op.at_step(s, {}) for s in range(steps) for op in step.ops
                 if op.attributes["single"].kind not in DEFERRED]
        return found + [_deferred(op, steps) for op in step.ops
                        if steps and op.attributes["single"].kind in DEFERRED]

    times, over = divmod(count, UNROLLED)
    last = [*ops_of(over), *(op.at_step(over, {}) for op in rest.ops)]
    parts = [([*ops_of(UNROLLED), advance(UNROLLED)], times)] if times else []
    parts += [(last, 1)] if last else []
    tensors = {**step.tensors, **rest.tensors}
    return [GraphPlan(replace(step, tensors=tensors, ops=tuple(
        launched_with(op, launched) for op in ops)), launches, chain=True)
        for ops, launches in parts]


def _deferred(op: Op, steps: int) -> Op:
    single = DEFERRED[op.attributes["single"].kind](op.attributes["single"], steps)
    return replace(op, attributes={**op.attributes, **single.attributes, "single": single})


def launched_with(op: Op, launched: int) -> Op:
    """The op with so many members in its list."""
    if "launched" not in op.attributes:
        return op
    return replace(op, attributes={**op.attributes, "launched": launched})


def launch_plans(group: Group, machine: Machine, sharding: str, epochs: int,
                 at_once: int | None = None) -> LaunchPlans:
    """The plans of a group, as `member_plans` makes them; scores have columns for so many epochs.
    There is one sharding, for any number of members `at_once`. Raises Unsupported where
    members have no such launches, ConfigError for toggles that cannot run on the machine."""
    return _LaunchBuilder(group, machine, epochs).plans()


class _LaunchBuilder(PlanBuilder):
    TOGGLES = LAUNCH_TOGGLES

    def _rounded(self, plan: Plan) -> Plan:
        return plan

    def plans(self) -> LaunchPlans:
        group, recipe = self.group, self.recipe
        if len(group) > MOST_MEMBERS:
            raise Unsupported(f"is of more than {MOST_MEMBERS:,} members", "train fewer at once")
        self.settings = tuple(name for name, value in recipe.optimizer.attributes().items()
                              if name not in NOT_SETTINGS and not isinstance(value, bool))
        if self.uneven or self.uneven_scored:
            raise Unsupported("is on lists of rows of different lengths",
                              "give lists of one length")
        left, rows = recipe.partial_size(group.examples), group.scored
        chunk = min(max(recipe.batch, LEAST_MEASURED), rows)
        chunks, over = divmod(rows, chunk)
        step = self._step()
        empty = Plan("empty", {}, (), 0, target=step.target)
        singles = [
            (step, "train", ""),
            (self._step(rest=True).with_own_temporaries("rest.") if left else empty, "train", ""),
            (self._chunk(chunk, rows, chunk), self.measured, TEST),
            (self._chunk(over, rows, chunk).with_own_temporaries("rest.") if over else empty,
             self.measured, TEST)]
        found = [self._of_members(*single) for single in singles]
        self.tensors = {**{n: t for plan in found for n, t in plan.tensors.items()},
                        **self._around(group.steps)}
        whole = group.steps - (left > 0)
        answers = self.network.loss_spec.counts(self.network.outputs)
        end = [self._means("loss", "train_loss", whole, recipe.batch, left, 0),
               self._each(Op("tick", "tick", {"clock": "clock"}, {"steps": group.steps}), step)]
        scores = [self._means(f"{TEST}loss", "validation_loss", chunks, chunk, over, answers)]
        return LaunchPlans(
            self._plan("start", self._initial(step)), self._plan("refresh", self._copied(step)),
            self._plan("begin", self._begin(group.steps)), self._plan("end", end),
            self._plan("scores", scores), found[0], found[1], found[2], found[3], whole, chunks,
            answers, step, table_of(group, self.settings))

    def _plan(self, name: str, ops: Sequence[Op]) -> Plan:
        return Plan(name, self.tensors, tuple(ops), self.recipe.batch,
                    target=self.machine.target).check()

    def _chunk(self, batch: int, rows: int, stride: int) -> Plan:
        """Measures so many of the rows that members are scored on, chunk number *cursor + offset;
        metrics have an element for each chunk."""
        plan = self._measuring(batch, replace(data_spec_of(self.dataset, self.measured),
                                              examples=rows))
        order = {"order": "order"} if self.group.held_out else {}
        plan = plan.with_tensors(*(replace(t, shape=(-(-rows // stride), *t.shape[1:]))
                                   for t in plan.tensors.values() if t.role is Role.METRIC),
                                 Tensor("order", (rows,), "int32", Role.DATA))
        return plan.map_ops(lambda op: op if "images" not in op.operands else replace(
            op, operands={**op.operands, **order}, attributes={**op.attributes, "stride": stride}))

    # -- stacks ------------------------------------------------------------------------------------
    def _of_members(self, plan: Plan, part: str, prefix: str) -> Plan:
        """The plan with each op for all members. Names of what is not shared with a training step
        get the prefix."""
        if not plan.ops:
            return plan
        stored = len(getattr(self.dataset, f"{part}_images"))
        plan = plan.with_tensors(*(replace(t, shape=(stored, *t.shape[1:]))
                                   for n, t in plan.tensors.items()
                                   if t.role is Role.DATA and n in OF_DATA))
        self._names = {n: self._name_of(t, part, prefix) for n, t in plan.tensors.items()}
        tensors = {self._names[n]: self._member_stack(t, self._names[n])
                   for n, t in plan.tensors.items() if t.role is not Role.HOST}
        ops = tuple(self._each(op, plan) for op in plan.ops)
        used = {name for op in ops for name in op.tensors}
        return replace(plan, ops=ops, tensors={
            n: t for n, t in {**tensors, **self._listed()}.items() if n in used}).check()

    def _listed(self) -> dict[str, Tensor]:
        """Which members a launch is for, and what each differs in."""
        networks = len(self.group)
        return {"active": Tensor("active", (networks,), "int32", Role.DATA),
                "members": Tensor("members", (networks, word_count(len(self.settings))), "int32",
                                  Role.DATA)}

    def _name_of(self, tensor: Tensor, part: str, prefix: str) -> str:
        if prefix and tensor.name == "order":
            return "held_out"
        if tensor.role is Role.DATA and tensor.name in OF_DATA:
            return tensor.name if part == "train" else TEST + tensor.name
        own = tensor.role.temporary or tensor.role in (Role.METRIC, Role.SCRATCH)
        return prefix + tensor.name if own else tensor.name

    def _kind_of(self, tensor: Tensor) -> str:
        """Whose parts a tensor has."""
        if tensor.role is Role.CURSOR:
            return SHARED
        if tensor.role is not Role.DATA:
            return OWN
        if tensor.name in ("mean", "inverse_std", "order"):
            return FOLD
        return FOLD if tensor.name == "targets" and self.targets_differ else SHARED

    def _member_stack(self, tensor: Tensor, name: str) -> Tensor:
        kind = self._kind_of(tensor)
        times = {OWN: len(self.group), FOLD: self.folds, SHARED: 1}[kind]
        source = self._names.get(tensor.source, "")
        if tensor.name in OF_DATA:
            tensor = replace(tensor, symbol=tensor.symbol or tensor.name)
        if kind == SHARED:
            return replace(tensor, name=name, source=source)
        if len(tensor.shape) > 1:
            return replace(tensor, name=name, shape=(times * tensor.shape[0], *tensor.shape[1:]),
                           source=source)
        if tensor.name in FLAT:
            return replace(tensor, name=name, shape=(times * tensor.shape[0],))
        return replace(tensor, name=name, shape=(times, tensor.shape[0]), packed=True,
                       pitch=elements_of(tensor), source=source)

    def _each(self, op: Op, plan: Plan) -> Op:
        operands = {role: self._names.get(name, name) for role, name in op.operands.items()}
        stacks = {role: self._kind_of(plan[name]) for role, name in op.operands.items()}
        found = each_member(op, plan, operands, stacks, self.settings, len(self.group))
        return replace(found, attributes={**found.attributes, "folds": self.folds})

    # -- around the steps --------------------------------------------------------------------------
    def _around(self, steps: int) -> dict[str, Tensor]:
        networks = len(self.group)
        found = {**self._listed(), "clock": replace(CLOCK, shape=(2 * networks,)),
                 **{name: Tensor(name, (2 * networks * self.epochs,), "int32", Role.SCRATCH)
                    for name in SCORES}}
        found["rates"] = Tensor("rates", (networks * steps,), "float32", Role.EPOCH)
        if self.listed:
            found["rows"] = Tensor("rows", (self.folds * self.group.examples,), "int32", Role.DATA)
        return found

    def _means(self, loss: str, mean: str, whole: int, batch: int, left: int, answers: int) -> Op:
        """The op of the mean loss of `whole` steps on a batch each, and one on those `left`."""
        scored = {"score": "validation_score"} if loss.startswith(TEST) else {}
        if answers:
            scored["correct"] = f"{TEST}correct"
        return Op("member_means", mean, {"active": "active", "loss": loss, "mean": mean, **scored},
                  {"launched": len(self.group), "networks": len(self.group),
                   "steps": whole + (left > 0), "batch": batch, "whole": whole, "left": left,
                   "answers": answers})

    def _begin(self, steps: int) -> list[Op]:
        networks, schedule = len(self.group), schedule_of(self.group, 0)
        ops = [Op("member_schedule", "schedule",
                  {role: role for role in ("active", "members", "clock", "rates")},
                  {"kind": schedule.kind, "launched": networks, "networks": networks,
                   "steps": steps})]
        if "order" in self.tensors:
            rows = {"rows": "rows"} if self.listed else {}
            ops.append(Op("member_orders", "orders", {
                **{role: role for role in ("active", "members", "clock", "order")}, **rows},
                {"launched": networks, "networks": networks, "folds": self.folds,
                 "count": self.group.examples, "shuffled": self.shuffled}))
        return ops

    def _initial(self, step: Plan) -> list[Op]:
        streams = {t.name: i for i, t in enumerate(self.network.parameters())}
        return [Op("initialise_members", f"{t.name}.initialise",
                   {"w": t.name, "members": "members"},
                   {"stream": streams[t.name], "bound": t.bound, "networks": len(self.group)})
                for t in step.tensors.values() if t.role is Role.PARAMETER]

    def _copied(self, step: Plan) -> list[Op]:
        return [self._each(Op("cast", f"{t.name}.cast", {"source": t.source, "copy": t.name},
                              {"copy_scale": t.scale}), step)
                for t in step.tensors.values() if t.role is Role.COPY]


# -- expected time ---------------------------------------------------------------------------------
CYCLES_PER_US = 1755.0
"""Of the figures of ptx/gemm/tile_cost.py."""
LAUNCH_US = 1.5
"""From a kernel of a graph to the next."""
BYTES_PER_US, FLOPS_PER_US = 2.5e6, 2e7
"""Of operands that are no GEMM's, and of arithmetic outside tensor cores (estimated)."""


def step_microseconds(plan: Plan, networks: int, target: Target) -> float:
    """Expected microseconds of a step of so many networks, each kernel a launch of all: the work of
    one multiprocessor, shared by all of them, or the latency of a block."""
    total = 0.0
    for op in plan.ops:
        total += LAUNCH_US
        if op.impl not in PREDICTED:
            moved = sum(plan[name].nbytes for name in op.tensors if not plan[name].role.of_data)
            total += networks * max(moved / BYTES_PER_US, operations(op, plan) / FLOPS_PER_US)
            continue
        p, (choose, cycles) = gemm_shape(op, plan), PREDICTED[op.impl]
        tile = choose(p, plan.target)
        work = cycles(p, tile, plan.target)
        total += max(networks * work / target.multiprocessors, work / blocks(p, tile.bm, tile.bn)) \
            / CYCLES_PER_US
    return total


def single_microseconds(plan: Plan, target: Target) -> float:
    """Expected microseconds of a step of one of several networks that runs by themselves train: 40
    of 784-512-512-10 in tf32, of which 16 took 45 each (H200)."""
    return sum(LAUNCH_US + (min(
        predicted(impl, gemm_shape(op, plan), target) for impl in {op.impl, "mma"})
        / CYCLES_PER_US if op.impl in PREDICTED else 0.0) for op in plan.ops)
