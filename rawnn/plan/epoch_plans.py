"""Plans of what runs outside the steps: at the start, around each epoch, and to assemble
parameters.

They follow from the rewritten training plan: they make each tensor that one of its ops reads.
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
from rawnn.plan.tensor import Role, Tensor

if TYPE_CHECKING:
    from rawnn.model.layers import Network


def start(train: Plan, network: Network, seed: int) -> Plan:
    """Draws every parameter, and rounds the data set's inputs where steps read them so."""
    streams = {t.name: i for i, t in enumerate(network.parameters())}

    def sample(t: Tensor) -> Op:
        return Op("initialise", f"{t.name}.initialise", {"w": t.name},
                  {"seed": seed, "stream": streams[t.name], "bound": t.bound})

    sampled = _plan_of("start", train, Role.PARAMETER, sample)
    inputs = _plan_of("start", train, Role.ROUNDED, lambda t: rounded(t, train))
    return replace(sampled, ops=(*sampled.ops, *inputs.ops)).check()


def rounded(t: Tensor, train: Plan) -> Op:
    """All inputs of the data set as the gather of a step would have them, in their own order."""
    used = ("mean", "inverse_std")
    return Op("gather", f"{t.name}.gather",
              {"images": t.source, "x": t.name, "cursor": "cursor",
               **{name: name for name in used if name in train.tensors}},
              {"offset": 0, "stride": 0, "scale": train.scale})


def refresh(train: Plan) -> Plan:
    """Makes every copy of a parameter anew from the parameter."""
    return _plan_of("refresh", train, Role.COPY, lambda t: Op(
        "cast", f"{t.name}.cast", {"source": t.source, "copy": t.name}, {"copy_scale": t.scale}))


def begin(train: Plan, recipe: Recipe, examples: int) -> Plan:
    """What an epoch starts with: its order and its learning rates."""
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
    """What an epoch ends with: the clock goes on, where anything reads it."""
    ops = (Op("tick", "tick", {"clock": "clock"}, {"steps": steps}),) \
        if "clock" in train.tensors else ()
    return Plan("end", {**train.tensors, "clock": CLOCK} if ops else {}, ops, train.batch,
                target=train.target).check()


def assemble(train: Plan) -> Plan:
    """What makes parameters and state whole of which each rank keeps a part for itself."""
    tensors, gathered = used_tensors([train]), {op.operands[role] for op in train.find(kind=GATHER)
                                                for role in op.operands}
    parts = [(t.source, t.name) for t in tensors.values() if t.role is Role.VIEW
             and train[t.source].role in (Role.PARAMETER, Role.STATE) and t.name not in gathered]
    token = next((op.operands["token"] for op in train.find(kind=GATHER)), "")
    ops = (all_gather("parts.all_gather", parts, token).viewing(tensors),) if parts else ()
    return Plan("assemble", dict(train.tensors) if ops else {}, ops, train.batch,
                target=train.target).check()


def boundary(begin: Plan, end: Plan) -> Plan:
    """What stands between two epochs that follow each other: the end of one and the beginning of
    the other. Where the clock goes on and an order is made, one op does both; it is told the epoch
    that comes as its step."""
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
    """The same as ops of an epoch's graph. An order is made ahead of the clock, so that it waits
    until the last batch is gathered, and not for the end of the last step."""
    ahead = [replace(op, attributes={**op.attributes, "ahead": 1})
             for op in begin.find(kind="shuffle")]
    return (*ahead, *end.ops, *(op for op in begin.ops if op.kind != "shuffle"))


def _plan_of(name: str, train: Plan, role: Role, make: Callable[[Tensor], Op]) -> Plan:
    wanted = [t for t in used_tensors([train]).values() if t.role is role]
    tensors = {**train.tensors, "clock": CLOCK}
    return Plan(name, tensors, tuple(make(t) for t in wanted), train.batch,
                target=train.target).check()
