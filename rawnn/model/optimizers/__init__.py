"""Optimizers: each is one small file with its settings and the formula of its step in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from rawnn.common.errors import ConfigError, unknown
from rawnn.common.registry import import_all

Settings = Mapping[str, float]
Array = NDArray[Any]


@dataclass(frozen=True)
class UpdateRule:
    """How an optimizer changes a parameter in a step: what the op `kind` computes, from which
    rawnn.plan.ops.updates makes the op of that name, and the one that does the weight gradient's
    GEMM as well.

    `formula(w, g, state, a, rate, t)` returns the new parameter: `w` and its gradient `g` are
    arrays of one shape, `state` the arrays of the names in `keeps`, which it changes in place, `a`
    the op's attributes (Python numbers: what multiplies an array is converted to its dtype first),
    `rate` the step's learning rate in w's dtype, `t` the step's number from 1 on. `counts_steps`
    says that it needs `t`; `recount(state, a, before, after)` then returns the state that means the
    same at step `after` as `state` did at step `before`, where a resumed run has other batches.
    `functor` is the CUDA functor of the rule, `code` the text that declares
    it where ptx/optimizers/step_functors.cuh does not; its kernels are then made of it
    (ptx/instance_text.py), and `settings` are the C types of the op's attributes beside lr and
    decay, in the order of the functor's constructor. `is_fused` says that there is a kernel
    gemm_<kind>, which does the weight gradient's GEMM as well.
    """

    kind: str
    functor: str
    formula: Callable[[Array, Array, Mapping[str, Array], Mapping[str, Any], Any, int], Array]
    keeps: tuple[str, ...] = ()
    counts_steps: bool = False
    is_fused: bool = True
    code: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    recount: Callable[[Mapping[str, Array], Mapping[str, Any], int, int],
                      dict[str, Array]] | None = None

    @property
    def fused_kind(self) -> str:
        """The op that is this rule with the weight gradient's GEMM, never storing a gradient."""
        return "weight_update" if self.kind == "sgd" else f"weight_{self.kind}"


UPDATE_RULES: dict[str, UpdateRule] = {}


def register_rule(rule: UpdateRule) -> UpdateRule:
    UPDATE_RULES[rule.kind] = rule
    return rule


Step, STEPS, register_step = UpdateRule, UPDATE_RULES, register_rule
"""Their former names, for files of users."""


def functor_text(functors: Iterable[str]) -> str:
    """CUDA C that declares those of the functors that step_functors.cuh does not."""
    wanted = set(functors)
    return "\n".join(rule.code for rule in UPDATE_RULES.values()
                     if rule.code and rule.functor in wanted)


@dataclass(frozen=True)
class OptimizerSpec:
    """What is true of every optimizer of one name.

    `settings` are its hyperparameters with their defaults; `kind(settings)` names the op of its
    step, `state(settings)` the tensors that it keeps for each parameter, `attributes(settings)` the
    attributes of that op. `counts_steps` says that the op counts steps. `ranges` says of a setting
    that no other optimizer has which values are allowed, and in words.
    """

    name: str
    settings: Settings
    kind: Callable[[Settings], str]
    state: Callable[[Settings], tuple[str, ...]]
    attributes: Callable[[Settings], dict[str, float | bool]]
    counts_steps: bool = False
    ranges: Mapping[str, tuple[Callable[[float], bool], str]] = field(default_factory=dict)


OPTIMIZER_SPECS: dict[str, OptimizerSpec] = {}


def register(spec: OptimizerSpec) -> OptimizerSpec:
    """Raises ConfigError where the step brings a functor whose constructor takes others than the
    attributes, or in another order."""
    rule = UPDATE_RULES.get(spec.kind(spec.settings))
    if rule is not None and rule.code:
        given, taken = [*spec.attributes(spec.settings)], [*rule.settings]
        if given != taken:
            raise ConfigError(f"the optimizer '{spec.name}' has the attributes {', '.join(given)}, "
                              f"and its functor takes {', '.join(taken)}: give both the same, in "
                              f"one order")
    OPTIMIZER_SPECS[spec.name] = spec
    return spec


_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "momentum": (lambda v: 0 <= v < 1, "at least 0 and below 1"),
    "nesterov": (lambda v: v in (0, 1), "true or false"),
    "beta1": (lambda v: 0 <= v < 1, "at least 0 and below 1"),
    "beta2": (lambda v: 0 <= v < 1, "at least 0 and below 1"),
    "eps": (lambda v: v >= 2.0**-126, "above 0, and at least 1.2e-38, as float32 has it"),
    "decay": (lambda v: v >= 0, "at least 0"),
}
LEAST_FLOAT32 = 2.0**-149
"""The least positive number that float32 holds."""
MOST_FLOAT32 = (2 - 2.0**-23) * 2.0**127
"""The largest."""
_IN_FLOAT32 = ("lr", "momentum", "decay", "eps")
"""Settings that kernels take as float32; betas are double."""
_ANY: tuple[Callable[[float], bool], str] = (lambda v: True, "a number")


def option(setting: str) -> str:
    """What users call a setting: the field of Config, and without its underscore the option."""
    return "weight_decay" if setting == "decay" else setting


@dataclass(frozen=True)
class Optimizer:
    """An optimizer with its hyperparameters, as torch.optim defines them.

    `lr` is the learning rate that a schedule scales; `decay` is the weight decay. Raises
    ConfigError for an unknown name, a setting that the optimizer does not have, or a value out of
    range.
    """

    name: str = "sgd"
    lr: float = 0.1
    given: Settings = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name not in OPTIMIZER_SPECS:
            raise unknown("optimizer", self.name, OPTIMIZER_SPECS)
        for key, value in self.given.items():
            if key not in self.spec.settings:
                has = ", ".join(option(name) for name in self.spec.settings)
                raise ConfigError(f"the optimizer '{self.name}' has no {option(key)}; it has {has}")
            allowed, words = {**_RANGES, **self.spec.ranges}.get(key, _ANY)
            if not math.isfinite(value) or not allowed(value):
                raise ConfigError(f"{option(key)} = {value:g}: it must be {words}")
        for key, value in {"lr": self.lr, **self.given}.items():
            if key in _IN_FLOAT32 and 0 < abs(value) < LEAST_FLOAT32:
                raise ConfigError(f"{option(key)} = {value:g}: training in float32 rounds it to 0: "
                                  f"give 0, or at least {LEAST_FLOAT32:.1g}")
            if key in _IN_FLOAT32 and abs(value) > MOST_FLOAT32:
                raise ConfigError(f"{option(key)} = {value:g}: training in float32 makes it "
                                  f"infinite: give at most {MOST_FLOAT32:.2g}")
        settings = self.settings
        if settings.get("nesterov") and not settings.get("momentum"):
            raise ConfigError("nesterov needs a momentum above 0")

    @property
    def spec(self) -> OptimizerSpec:
        return OPTIMIZER_SPECS[self.name]

    @property
    def settings(self) -> Settings:
        return {**self.spec.settings, **self.given}

    @property
    def kind(self) -> str:
        """The op of its step."""
        return self.spec.kind(self.settings)

    @property
    def state(self) -> tuple[str, ...]:
        """Operand names of the tensors that it keeps for each parameter."""
        return self.spec.state(self.settings)

    @property
    def counts_steps(self) -> bool:
        return self.spec.counts_steps

    def attributes(self) -> dict[str, float | bool]:
        return {"lr": self.lr, "decay": float(self.settings["decay"]),
                **self.spec.attributes(self.settings)}

    def __str__(self) -> str:
        words = [f"{option(k)} {v:g}".replace("_", " ") for k, v in self.settings.items() if v]
        return ", ".join([self.name, f"lr {self.lr:g}", *words])


import_all(__name__, __path__)
