"""Optimizers: each is one small file that says what state it keeps and which op is its step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rawnn.common.errors import ConfigError, unknown

Settings = Mapping[str, float]


@dataclass(frozen=True)
class OptimizerSpec:
    """What is true of every optimizer of one name.

    `settings` are its hyperparameters with their defaults; `kind(settings)` names the op of its
    step, `state(settings)` the tensors that it keeps for each parameter, `attributes(settings)`
    what the op is told. `counts_steps` says that the op counts steps. `ranges` says of a setting
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
    OPTIMIZER_SPECS[spec.name] = spec
    return spec


_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "momentum": (lambda v: 0 <= v < 1, "at least 0 and below 1"),
    "nesterov": (lambda v: v in (0, 1), "true or false"),
    "beta1": (lambda v: 0 <= v < 1, "at least 0 and below 1"),
    "beta2": (lambda v: 0 <= v < 1, "at least 0 and below 1"),
    "eps": (lambda v: v > 0, "above 0"),
    "decay": (lambda v: v >= 0, "at least 0"),
}
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


from rawnn.model.optimizers import adam as _adam  # noqa: E402
from rawnn.model.optimizers import sgd as _sgd  # noqa: E402

del _adam, _sgd
