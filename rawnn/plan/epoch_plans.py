"""Plans of what runs outside the steps: at the start, around each epoch, and to assemble
parameters.

They follow from the rewritten training plan: they produce the tensors that its ops read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from rawnn.common.errors import ConfigError
from rawnn.model.schedules import parse
from rawnn.plan.build import CLOCK, used_tensors
from rawnn.plan.op import Op
from rawnn.plan.ops.collectives import GATHER, all_gather
from rawnn.plan.ops.epoch import MAX_STEPS
from rawnn.plan.plan import Plan
from rawnn.plan.recipe import Recipe
from rawnn.plan.tensor import PART, Role, Tensor

if TYPE_CHECKING:
    from rawnn.model.layers import Network


def start(train: Plan, network: Network, seed: int) -> Plan:
    """Initialise every parameter, and round the data set's inputs if steps read them rounded."""
    streams = {t.name: i for i, t in enumerate(network.parameters())}

    def sample(t: Tensor) -> Op:
        return Op("initialise", f"{t.name}.initialise", {"w": t.name},
                  {"seed": seed, "stream": streams[t.name], "bound": t.bound})

    sampled = _plan_of("start", train, Role.PARAMETER, sample)
    inputs = _plan_of("start", train, Role.ROUNDED, lambda t: rounded(t, train))
    return replace(sampled, ops=(*sampled.ops, *inputs.ops)).check()


def rounded(t: Tensor, train: Plan) -> Op:
    """All inputs of the data set, rounded as a step's gather would, in their original order."""
    used = ("mean", "inverse_std")
    return Op("gather", f"{t.name}.gather",
              {"images": t.source, "x": t.name, "cursor": "cursor",
               **{name: name for name in used if name in train.tensors}},
              {"offset": 0, "stride": 0, "scale": train.scale})


def refresh(train: Plan) -> Plan:
    """Compute every copy of a parameter from the parameter."""
    return _plan_of("refresh", train, Role.COPY, lambda t: Op(
        "cast", f"{t.name}.cast", {"source": t.source, "copy": t.name}, {"copy_scale": t.scale}))


def begin(train: Plan, recipe: Recipe, examples: int) -> Plan:
    """The start of an epoch: its order and its learning rates."""
    def make(t: Tensor) -> Op:
        if t.name == "order":
            return Op("shuffle", "shuffle", {"clock": "clock", "order": "order"},
                      {"seed": recipe.seed, "count": examples, "ahead": 0})
        steps = recipe.updates(examples) * recipe.epochs
        if steps > MAX_STEPS:
            raise ConfigError(f"schedule = '{recipe.schedule}': a run of {steps:,} steps is too "
                              f"long for it, which counts up to {MAX_STEPS:,}; give fewer epochs, "
                              f"or a constant rate")
        schedule = parse(recipe.schedule).resolve(recipe.optimizer.lr, recipe.updates(examples),
                                                  recipe.epochs)
        return Op("schedule", "schedule", {"clock": "clock", "rates": "rates"},
                  schedule.attributes())

    return _plan_of("begin", train, Role.EPOCH, make)


def end(train: Plan, steps: int) -> Plan:
    """The end of an epoch: the clock advances, if anything reads it."""
    ops = (Op("tick", "tick", {"clock": "clock"}, {"steps": steps}),) \
        if "clock" in train.tensors else ()
    return Plan("end", {**train.tensors, "clock": CLOCK} if ops else {}, ops, train.batch,
                target=train.target).check()


def assemble(train: Plan) -> Plan:
    """All-gather the parameters and state that are sharded among ranks."""
    tensors, gathered = used_tensors([train]), {op.operands[role] for op in train.find(kind=GATHER)
                                                for role in op.operands}
    parts = [(t.name.removesuffix(PART), t.name) for t in tensors.values() if t.role is Role.VIEW
             and train[t.source].role in (Role.PARAMETER, Role.STATE) and t.name not in gathered]
    token = next((op.operands["token"] for op in train.find(kind=GATHER)), "")
    ops = (all_gather("parts.all_gather", parts, token).viewing(train.tensors),) if parts else ()
    return Plan("assemble", dict(train.tensors) if ops else {}, ops, train.batch,
                target=train.target).check()


def boundary(begin: Plan, end: Plan) -> Plan:
    """The epoch boundary: the end of one epoch and the beginning of the next. If the clock advances
    and an order is computed, one op does both; its step is the number of the next epoch."""
    ops = [*end.ops[:1], *begin.ops, *end.ops[1:]]
    kinds = [op.kind for op in ops[:2]]
    if kinds == ["tick", "shuffle"]:
        tick, shuffle = ops[:2]
        ops[:2] = [Op("epoch_boundary", "epoch_boundary", shuffle.operands,
                      {"seed": shuffle.attributes["seed"], "count": shuffle.attributes["count"],
                       **tick.attributes, "offset": 0})]
    return replace(begin, name="between", tensors={**begin.tensors, **end.tensors},
                   ops=tuple(ops)).check()


def boundary_in_graph(begin: Plan, end: Plan) -> tuple[Op, ...]:
    """The epoch boundary as ops of an epoch's graph. The order comes before the clock, so that it
    waits only until the last batch is gathered, and not for the end of the last step."""
    ahead = [replace(op, attributes={**op.attributes, "ahead": 1})
             for op in begin.find(kind="shuffle")]
    return (*ahead, *end.ops, *(op for op in begin.ops if op.kind != "shuffle"))


def _plan_of(name: str, train: Plan, role: Role, make: Callable[[Tensor], Op]) -> Plan:
    wanted = [t for t in used_tensors([train]).values() if t.role is role]
    tensors = {**train.tensors, "clock": CLOCK}
    return Plan(name, tensors, tuple(make(t) for t in wanted), train.batch,
                target=train.target).check()
