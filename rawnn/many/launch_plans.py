"""The plans of a group of members whose steps are launches of all of them: the kernels of one
network's step, each once for all members.

The steps are those of a single run with the sharding LAUNCHES (engine/config.py), kernel by kernel,
so that a member has its bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from rawnn.common.target import Machine, Target
from rawnn.engine.runners.plan_data import data_spec_of
from rawnn.graphs.unrolling import GraphPlan
from rawnn.many.indexed_inputs import with_indexed_inputs
from rawnn.many.member_plans import OF_DATA, TEST, PlanBuilder, table_of
from rawnn.many.members import Group
from rawnn.opts.launch_sharding import LAUNCH_TOGGLES
from rawnn.persistent.problem import NOT_SETTINGS, Unsupported
from rawnn.plan.build import CLOCK
from rawnn.plan.epoch_plans import rounded
from rawnn.plan.merging import DEFERRED
from rawnn.plan.op import Op
from rawnn.plan.op_flops import operations
from rawnn.plan.ops.each_member import FOLD, INDEXED, OWN, SHARED, each_member
from rawnn.plan.ops.members import SCORES
from rawnn.plan.plan import Plan, advance
from rawnn.plan.tensor import Role, Tensor
from rawnn.ptx.each_member import FLAT, MOST_MEMBERS, elements_of
from rawnn.ptx.gemm.mma import PREDICTED, predicted
from rawnn.ptx.gemm.tile_cost import CYCLES_PER_US
from rawnn.ptx.gemm.tiles import blocks, gemm_shape

UNROLLED = 32
"""Steps of a graph at most. A longer graph takes longer to build, and saves little: the launch of a
graph is divided by its steps."""
LEAST_MEASURED = 128
"""Rows that are measured at once at least, also where a batch has fewer."""


@dataclass(frozen=True)
class RepeatedPlan:
    """A part of an epoch, in parts of the same number of rows: the ops of `whole`, `count` times,
    then those of `partial` on the rows that remain (none if no rows do)."""

    whole: Plan
    count: int
    partial: Plan

    def graphs(self, launched: int) -> list[GraphPlan]:
        """Its graphs, for so many members."""
        def ops_of(steps: int) -> list[Op]:
            found = [op.at_step(s, {}) for s in range(steps) for op in self.whole.ops
                     if op.attributes["single"].kind not in DEFERRED]
            return found + [_deferred(op, steps) for op in self.whole.ops
                            if steps and op.attributes["single"].kind in DEFERRED]

        times, over = divmod(self.count, UNROLLED)
        last = [*ops_of(over), *(op.at_step(over, {}) for op in self.partial.ops)]
        found = [([*ops_of(UNROLLED), advance(UNROLLED)], times)] if times else []
        found += [(last, 1)] if last else []
        tensors = {**self.whole.tensors, **self.partial.tensors}
        return [GraphPlan(replace(self.whole, tensors=tensors, ops=tuple(
            launched_with(op, launched) for op in ops)), launches, chain=True)
            for ops, launches in found]


@dataclass(frozen=True)
class LaunchPlans:
    """start: draws the initial weights. refresh: the copies of weights that steps read.
    begin: order and learning rates of an epoch's steps. end: its mean loss, and the clock.
    scores: of the members behind an epoch.
    training: the steps of an epoch. evaluation: what measures the rows behind it, in chunks.
    answers: of an example, 0 where they are not counted. single: the step of one network.
    words: as MemberPlans has them.
    """

    start: Plan
    refresh: Plan
    begin: Plan
    end: Plan
    scores: Plan
    training: RepeatedPlan
    evaluation: RepeatedPlan
    answers: int
    single: Plan
    words: NDArray[np.int32]

    @property
    def around(self) -> list[Plan]:
        """Those that are not graphs."""
        return [self.start, self.refresh, self.begin, self.end, self.scores]


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

    def _step(self, *, rest: bool = False, examples: int = 0) -> Plan:
        step = super()._step(rest=rest, examples=examples)
        return step if self.inputs_differ else with_indexed_inputs(
            step, len(self.dataset.train_images), len(self.group), self.recipe.batch)

    def plans(self) -> LaunchPlans:
        group, recipe = self.group, self.recipe
        if len(group) > MOST_MEMBERS:
            raise Unsupported(f"is of more than {MOST_MEMBERS:,} members", "train fewer at once")
        self.settings = tuple(name for name, value in recipe.optimizer.attributes().items()
                              if name not in NOT_SETTINGS and not isinstance(value, bool))
        if self.uneven or self.uneven_scored:
            raise Unsupported("is on lists of rows of different lengths",
                              "give lists of one length")
        partial_batch, rows = recipe.partial_size(group.examples), group.scored
        chunk = min(max(recipe.batch, LEAST_MEASURED), rows)
        chunks, partial_chunk = divmod(rows, chunk)
        step = self._step()
        empty = Plan("empty", {}, (), 0, target=step.target)
        partial_step = self._step(rest=True).with_own_temporaries("rest.") if partial_batch \
            else empty
        partial_measuring = self._chunk(partial_chunk, rows, chunk).with_own_temporaries("rest.") \
            if partial_chunk else empty
        steps = group.steps - (partial_batch > 0)
        training = RepeatedPlan(self._of_members(step, "train", ""), steps,
                        self._of_members(partial_step, "train", ""))
        evaluation = RepeatedPlan(
            self._of_members(self._chunk(chunk, rows, chunk), self.measured, TEST), chunks,
            self._of_members(partial_measuring, self.measured, TEST))
        plans = (training.whole, training.partial, evaluation.whole, evaluation.partial)
        self.tensors = {**{n: t for plan in plans for n, t in plan.tensors.items()},
                        **self._around(group.steps)}
        answers = self.network.loss_spec.counts(self.network.outputs)
        end = [self._means("loss", "train_loss", whole=steps, batch=recipe.batch,
                           partial=partial_batch),
               self._each(Op("tick", "tick", {"clock": "clock"}, {"steps": group.steps}), step)]
        scores = [self._means(f"{TEST}loss", "validation_loss", whole=chunks, batch=chunk,
                              partial=partial_chunk, answers=answers)]
        return LaunchPlans(
            start=self._plan("start", [*self._initial(step.tensors.values()),
                                       *self._copied_inputs(step)]),
            refresh=self._plan("refresh", self._copied(step)),
            begin=self._plan("begin", self._begin()), end=self._plan("end", end),
            scores=self._plan("scores", scores), training=training, evaluation=evaluation,
            answers=answers, single=step, words=table_of(group, self.settings))

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
        names = {n: self._name_of(t, part, prefix) for n, t in plan.tensors.items()}
        tensors = {names[n]: self._member_stack(t, names) for n, t in plan.tensors.items()
                   if t.role is not Role.HOST}
        ops = tuple(self._each(op, plan, names) for op in plan.ops)
        used = {name for op in ops for name in op.tensors}
        used |= {tensors[name].source for name in used if name in tensors
                 and tensors[name].role is Role.ROUNDED}
        return replace(plan, ops=ops, tensors={
            n: t for n, t in {**tensors, **self._listed()}.items() if n in used}).check()

    def _name_of(self, tensor: Tensor, part: str, prefix: str) -> str:
        if prefix and tensor.name == "order":
            return "held_out"
        if tensor.role is Role.DATA and tensor.name in OF_DATA:
            return tensor.name if part == "train" else TEST + tensor.name
        own = tensor.role.temporary or tensor.role in (Role.METRIC, Role.SCRATCH)
        return prefix + tensor.name if own else tensor.name

    def _kind_of(self, tensor: Tensor) -> str:
        """Whose parts a tensor has."""
        if tensor.role is Role.ROUNDED:
            return INDEXED
        if tensor.role is Role.CURSOR:
            return SHARED
        if tensor.role is not Role.DATA:
            return OWN
        if tensor.name in ("mean", "inverse_std", "order"):
            return FOLD
        return FOLD if tensor.name == "targets" and self.targets_differ else SHARED

    def _member_stack(self, tensor: Tensor, names: Mapping[str, str]) -> Tensor:
        """What all members have in place of a tensor of one, whose new name is in `names`."""
        kind, name = self._kind_of(tensor), names[tensor.name]
        times = {OWN: len(self.group), FOLD: self.folds, SHARED: 1, INDEXED: 1}[kind]
        source = names.get(tensor.source, "")
        if tensor.name in OF_DATA:
            tensor = replace(tensor, symbol=tensor.symbol or tensor.name)
        if kind in (SHARED, INDEXED):
            return replace(tensor, name=name, source=source)
        if len(tensor.shape) > 1:
            return replace(tensor, name=name, shape=(times * tensor.shape[0], *tensor.shape[1:]),
                           source=source)
        if tensor.name in FLAT:
            return replace(tensor, name=name, shape=(times * tensor.shape[0],))
        return replace(tensor, name=name, shape=(times, tensor.shape[0]), packed=True,
                       pitch=elements_of(tensor), source=source)

    def _each(self, op: Op, plan: Plan, names: Mapping[str, str] = MappingProxyType({})) -> Op:
        """An op of one member's plan, for all; `names` has the new ones of its tensors."""
        operands = {role: names.get(name, name) for role, name in op.operands.items()}
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

    def _means(self, loss: str, mean: str, *, whole: int, batch: int, partial: int,
               answers: int = 0) -> Op:
        """The op of the mean loss of `whole` steps of `batch` rows, and of one of `partial` rows if
        there are some."""
        scored = {"score": "validation_score"} if loss.startswith(TEST) else {}
        if answers:
            scored["correct"] = f"{TEST}correct"
        return Op("member_means", mean, {"active": "active", "loss": loss, "mean": mean, **scored},
                  {"launched": len(self.group), "networks": len(self.group),
                   "steps": whole + (partial > 0), "batch": batch, "whole": whole, "left": partial,
                   "answers": answers})

    def _begin(self) -> list[Op]:
        networks, ops = len(self.group), [self._schedule()]
        if "order" in self.tensors:
            rows = {"rows": "rows"} if self.listed else {}
            ops.append(Op("member_orders", "orders", {
                **{role: role for role in ("active", "members", "clock", "order")}, **rows},
                {"launched": networks, "networks": networks, "folds": self.folds,
                 "count": self.group.examples, "shuffled": self.shuffled}))
        return ops

    def _copied_inputs(self, step: Plan) -> list[Op]:
        """What copies the inputs as GEMMs read them, if they read rows of such a copy."""
        return [rounded(t, replace(step, tensors=self.tensors)) for t in step.tensors.values()
                if t.role is Role.ROUNDED]

    def _copied(self, step: Plan) -> list[Op]:
        return [self._each(Op("cast", f"{t.name}.cast", {"source": t.source, "copy": t.name},
                              {"copy_scale": t.scale}), step)
                for t in step.tensors.values() if t.role is Role.COPY]


# -- expected time ---------------------------------------------------------------------------------
KERNEL_GAP_US = 1.5
"""Microseconds from a kernel of a graph to the next."""
OTHER_BYTES_PER_US, OTHER_FLOPS_PER_US = 2.5e6, 2e7
"""Throughput of the kernels that are no GEMM (estimated)."""


def step_microseconds(plan: Plan, networks: int, target: Target) -> float:
    """Expected microseconds of a step of so many networks, each kernel a launch of all: the work of
    one multiprocessor, shared by all of them, or the latency of a block."""
    total = 0.0
    for op in plan.ops:
        total += KERNEL_GAP_US
        if op.impl not in PREDICTED:
            moved = sum(plan[name].nbytes for name in op.tensors if not plan[name].role.of_data)
            total += networks * max(moved / OTHER_BYTES_PER_US,
                                    operations(op, plan) / OTHER_FLOPS_PER_US)
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
    return sum(KERNEL_GAP_US + (min(
        predicted(impl, gemm_shape(op, plan), target) for impl in {op.impl, "mma"})
        / CYCLES_PER_US if op.impl in PREDICTED else 0.0) for op in plan.ops)
