"""What the engine can be asked for, made from the registries: sets of toggles, networks, and every
op that a plan of theirs has, each way of running it once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import combinations
from typing import Any
from unittest import mock

from rawnn.common.errors import ConfigError
from rawnn.common.target import Target
from rawnn.graphs.unrolling import graph_plans
from rawnn.model.activations import ACTIVATIONS
from rawnn.model.layers import Network
from rawnn.model.losses import LOSSES
from rawnn.model.optimizers import OPTIMIZER_SPECS, UPDATE_RULES, Optimizer
from rawnn.model.schedules import SCHEDULE_SPECS
from rawnn.opts import TOGGLES, select
from rawnn.opts.registry import Machine
from rawnn.plan import epoch_plans
from rawnn.plan.build import evaluation_step, training_step
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan
from rawnn.plan.recipe import Recipe
from rawnn.plan.tensor import Role, Tensor
from rawnn.ptx.gemm import deferred
from rawnn.ptx.gemm.tiles import GemmShape
from rawnn.ptx.kernel_registry import Key, key_of
from rawnn.ptx.kernels import kernel_for
from tests.calls import untraced
from tests.engine import CAPABLE, VALUES, form_for

OPEN = ("max", "auto", "many")
"""Words for what a run finds out; and for other tiles of a set, which other sizes have as well."""
LIBRARIES = ("cublas", "cudnn")


def forms(name: str) -> list[str]:
    """Every way to write a toggle: bare where that means something, and with each of its words (a
    count being one that tests can afford), but for those that only some networks fit, such as the
    blocks of `persistent`, whose word is a pattern of names in capitals."""
    parameter = TOGGLES[name].parameter
    if parameter is None or TOGGLES[name].group == "scale":  # of one rank, which it does not change
        return [name]
    words = [w for w in parameter.syntax.split("|") if w not in OPEN and w[0] != "-"
             and not (len(w) > 1 and w[0].isupper())]
    return [f"{name}={VALUES.get(name, '3') if word == 'N' else word}" for word in words] or [name]


def legal(words: tuple[str, ...], network: Network | None = None,
          machine: Machine = CAPABLE) -> bool:
    """Whether the toggles go together."""
    try:
        select(",".join(["none", *words]), network or Network((8, 4)), 4, machine)
    except ConfigError:
        return False
    return True


def sets_of(group: str, machine: Machine = CAPABLE, without: tuple[str, ...] = ()) -> list[str]:
    """Every set of toggles of a group that go together, each with every form of its value; the
    empty one is ""."""
    names = [n for n, t in TOGGLES.items() if t.group == group and n not in without]
    words = [word for name in names for word in forms(name)]
    found = []
    for size in range(len(names) + 1):
        for chosen in combinations(words, size):
            bare = [word.partition("=")[0] for word in chosen]
            if len(set(bare)) == size and legal(chosen, machine=machine):
                found.append(",".join(chosen))
    return found


def numbers(machine: Machine = CAPABLE) -> list[str]:
    """Sets of number formats ("batch" is none); those with sr and its implied bf16 once."""
    found = sets_of("numbers", machine, ("batch",))
    return [text for text in found if "bf16,sr" not in text]


@dataclass(frozen=True, eq=False)
class Variant:
    """A network with its training and the form of its data."""

    layers: tuple[int, ...]
    batch: int
    network: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)
    form: dict[str, Any] = field(default_factory=dict)

    def plans(self, opt: str, machine: Machine = CAPABLE) -> Iterator[Plan]:
        """Every plan of a run; none where the toggles do not go together."""
        network, recipe, examples, step, rest, evaluate = self._baseline
        steps = recipe.steps(examples)
        try:
            selection = select(f"none,{opt}", network, steps, machine)
            train, policy = selection.apply(step)
        except ConfigError:
            return
        yield from [g.plan for g in graph_plans(train, policy, steps)] if policy.graph else [train]
        yield train.without_metrics()
        if recipe.partial_size(examples):
            yield selection.apply(rest)[0].with_own_temporaries("partial.")
        yield selection.apply(evaluate)[0]
        yield epoch_plans.start(train, network, 0)
        yield epoch_plans.refresh(train)
        begin, end = epoch_plans.begin(train, recipe, examples), epoch_plans.end(train, steps)
        yield from (begin, end, epoch_plans.boundary(begin, end))

    @cached_property
    def _baseline(self) -> tuple[Network, Recipe, int, Plan, Plan, Plan]:
        network = Network(self.layers, **self.network)
        recipe = Recipe(self.batch, partial=True, **self.recipe)
        form = form_for(network, 3 * self.batch + max(self.batch // 2, 1), **self.form)
        return (network, recipe, form.examples, training_step(network, recipe, form),
                training_step(network, recipe, form,
                              partial=bool(recipe.partial_size(form.examples))),
                evaluation_step(network, self.batch, form))


def member_plans() -> Iterator[tuple[str, Plan]]:
    """What runs around the epochs of many networks, and the toggles of it: their start, by the type
    of their weights, the learning rates of their epochs, by the schedule's rule, their orders and
    mean losses."""
    networks, rows, steps = 3, 5, 7
    for opt, dtype in (("none", "float32"), ("bf16,sr", "bfloat16")):
        tensors = {t.name: t for t in (
            Tensor("w", (networks * rows, 9), dtype, Role.PARAMETER, bound=0.3),
            Tensor("members", (networks, 12), "int32", Role.DATA),
            Tensor("active", (networks,), "int32", Role.DATA),
            Tensor("clock", (2 * networks,), "int32", Role.STATE),
            Tensor("rates", (networks * steps,), "float32", Role.SCRATCH),
            Tensor("order", (networks, rows), "int32", Role.EPOCH),
            Tensor("loss", (networks, steps), "float32", Role.METRIC),
            Tensor("mean", (2 * networks,), "int32", Role.SCRATCH))}
        counts = {"networks": networks, "launched": networks, "steps": steps}
        yield opt, Plan("around", tensors, (
            Op("member_orders", "orders", {role: role for role in (
                "active", "members", "clock", "order")},
               {**counts, "folds": 1, "count": rows, "shuffled": True}),
            Op("member_means", "means", {role: role for role in ("active", "loss", "mean")},
               {**counts, "batch": 8, "whole": steps, "left": 0, "answers": 1})), 8)
        yield opt, Plan("start", tensors, (Op(
            "initialise_members", "initialise", {"w": "w", "members": "members"},
            {**counts, "stream": 1, "bound": 0.3}),), 8)
        for kind in SCHEDULE_SPECS:
            yield opt, Plan("rates", tensors, (Op(
                "member_schedule", "schedule", {role: role for role in
                                                ("active", "members", "clock", "rates")},
                {**counts, "kind": kind}),), 8)


RAGGED, ALIGNED, ONE = ((29, 18, 7), 13), ((64, 32, 16), 32), ((29, 7), 8)
LONG, MANY, TINY = ((784, 10), 128), ((64, 48), 128), ((1, 2), 1)

LARGE = [Variant((32, 512, 256), 128, {}, {"optimizer": Optimizer("sgd", 0.1, given)})
         for given in ({}, {"momentum": 0.9})]
KINDS = {Optimizer(name, 1e-3).kind: Optimizer(name, 1e-3) for name in OPTIMIZER_SPECS}
"""A registered optimizer for each op of a step."""
WITH_CODE = {kind: optimizer for kind, optimizer in KINDS.items() if UPDATE_RULES[kind].code}
"""Those whose kernels are made of the functor that they bring."""
MORE_ACTIVATIONS = tuple(name for name in ACTIVATIONS if name not in ("relu", "tanh", "gelu"))
"""Activations that no case made by hand has."""
LARGE += [Variant((32, 512, 256), 128, {}, {"optimizer": optimizer})
          for kind, optimizer in KINDS.items() if kind != "sgd"]
LARGE += [Variant((32, 512, 256), 128, {"loss": loss}) for loss in ("mse", "bce")]
LARGE += [Variant((32, 1024, outputs), 256) for outputs in (64, 128)]
WORTH_WGMMA = 1 << 24
"""Multiplications of 16 bits that are taken for worth wgmma here, and of float32 all, whatever the
engine says of them."""


def _is_worth_wgmma(product: GemmShape, target: Target) -> bool:
    return product.size == 4 or product.m * product.n * product.k >= WORTH_WGMMA


STREAMED = [
    Variant(*RAGGED), Variant(*ALIGNED), Variant(*ONE), Variant(*TINY),
    Variant((300, 130, 260, 10), 64), Variant(*RAGGED, {"activation": "tanh", "bias": False}),
    Variant((16, 1003, 40), 33), Variant((16, 2048, 10), 32), Variant((16, 784, 20), 128),
    Variant(*RAGGED, {}, {"optimizer": Optimizer("sgd", 0.1, {"decay": 0.1}),
                          "schedule": "cosine"}),
    Variant(*RAGGED, {}, {"optimizer": Optimizer("sgd", 0.1, {"momentum": 0.9})}),
]
"""Small batches, whose weights are taken for large here. Momentum's update has a kernel of its own,
so that the input gradient has one too."""

FEW_ROWS = [
    Variant((29, 7), 4), Variant(*TINY), Variant((29, 18, 7), 3), Variant((64, 32, 16), 2),
    Variant((29, 18, 7), 1, {"activation": "tanh", "bias": False}),
    *(Variant((29, 18, 7), 2, {}, {"optimizer": optimizer, "schedule": "cosine"})
      for optimizer in (Optimizer("sgd", 0.1, {"decay": 0.1}), Optimizer("adamw", 0.01),
                        Optimizer("sgd", 0.1, {"momentum": 0.9, "nesterov": 1.0}))),
    Variant((29, 18, 7), 4, {}, {"optimizer": Optimizer("adam", 0.01)}),
]
"""Batches of a few rows, whose weights are taken for large here."""

SHAPES = [Variant(*shape) for shape in (RAGGED, ALIGNED, ONE, LONG, MANY, TINY)]
"""Rows that are and are not multiples of 16 bytes, a long sum, and more outputs than one block
measures."""

VARIANTS = [
    *(Variant(*RAGGED, {"activation": name}) for name in ACTIVATIONS),
    *(Variant(*shape, {"loss": name}) for name in LOSSES for shape in (RAGGED, MANY)),
    Variant(*RAGGED, {"bias": False}),
    *(Variant(layers, batch, {}, {"optimizer": Optimizer(name, 0.1, given)})
      for layers, batch in (RAGGED, ONE) for name, given in (
          ("sgd", {"decay": 0.1}), ("sgd", {"momentum": 0.9, "nesterov": 1.0}),
          *((name, {}) for name in OPTIMIZER_SPECS if name != "sgd"))),
    *(Variant(layers, batch, {}, {"schedule": text, "shuffle": True, "epochs": 2})
      for layers, batch in (RAGGED, ONE) for text in ("cosine", "step:1:0.5", "warmup:1")),
    *(Variant(*RAGGED, {}, {}, form) for form in (
        {"normalised": True}, {"labels": "int32"}, {"inputs": "float32", "scale": 1.0},
        {"inputs": "float16", "scale": 1.0, "normalised": True})),
    Variant((29, 7, 29), 13, {"loss": "mse"}, {}, {"reconstruct": True, "targets": 0}),
]


@dataclass(frozen=True)
class Case:
    """One op of a plan, and by what toggles it came about."""

    op: Op
    plan: Plan
    opt: str

    def __str__(self) -> str:
        return f"{self.op} (with {self.opt or 'none'})"


@cache
def cases(machine: Machine = CAPABLE) -> dict[Key, list[Case]]:
    """By entry of the table of kernels: each op with each instance, set of operands and shape."""
    with untraced():
        return _cases(machine)


def _cases(machine: Machine) -> dict[Key, list[Case]]:
    found: dict[tuple[Any, ...], Case] = {}
    without = ("tune", "persistent")  # which writes its kernels for each network
    kernels = [text for text in sets_of("kernels", machine, without) if text.count(",") < 2]
    plain = [text for text in kernels if "," not in text or text.endswith(",fuse")]
    for number in numbers(machine):
        for chosen, variants in ((kernels, SHAPES), (plain, VARIANTS)):
            for kernel in chosen:
                opt = ",".join(filter(None, ("preload", number, kernel)))
                for variant in variants:
                    _collect(found, variant, opt, machine)
        for scaled in (False, True) if number == "" else (False,):
            with mock.patch("rawnn.opts.mma.wgmma_is_faster", _is_worth_wgmma), \
                    mock.patch("rawnn.opts.mma.scaled_is_faster", lambda p, t, s=scaled: s):
                for kernel in ("mma=wgmma", "mma=wgmma,fuse"):
                    opt = ",".join(filter(None, ("preload", number, kernel)))
                    for variant in LARGE[:1] if number == "fp8" else LARGE:  # values saturate
                        _collect(found, variant, opt, machine)
        with mock.patch("rawnn.opts.mma.MIN_SKINNY_WEIGHTS", 1):
            for kernel in ("mma=wgmma", "mma=wgmma,fuse"):
                opt = ",".join(filter(None, ("preload", number, kernel)))
                for variant in STREAMED:
                    _collect(found, variant, opt, machine)
        with mock.patch("rawnn.ptx.gemm.deferred.LEAST_WEIGHTS", 1):
            opt = ",".join(filter(None, ("preload", number, "mma=sync,fuse,graphs=epoch")))
            of_few: dict[tuple[Any, ...], Case] = {}
            for variant in FEW_ROWS:
                _collect(of_few, variant, opt, machine)
            found |= {what: case for what, case in of_few.items() if case.op.impl == deferred.IMPL}
    for opt in ("", "graphs=epoch", "preload,fuse,graphs=while", "preload,cublas,fuse,graphs=3"):
        for variant in SHAPES:
            _collect(found, variant, opt, machine)
    for opt, plan in member_plans():
        _collect_plan(found, plan, opt)
    grouped: dict[Key, list[Case]] = {}
    for case in found.values():
        grouped.setdefault(key_of(case.op), []).append(case)
    return grouped


def _collect(found: dict[tuple[Any, ...], Case], variant: Variant, opt: str,
             machine: Machine) -> None:
    for plan in variant.plans(opt, machine):
        _collect_plan(found, plan, opt)


def _collect_plan(found: dict[tuple[Any, ...], Case], plan: Plan, opt: str) -> None:
    for op in plan.ops:
        if op.kind == "upload" or op.impl in LIBRARIES:
            what: object = tuple(sorted((k, str(v)) for k, v in op.attributes.items()
                                        if k not in ("offset", "stride", "seed", "stream")))
        else:
            what = kernel_for(op).expression(op, plan)
        tensors = tuple((role, plan[name].shape, plan[name].dtype, plan[name].packed)
                        for role, name in sorted(op.operands.items()))
        found.setdefault((op.kind, op.impl, what, tensors), Case(op, plan, opt))
