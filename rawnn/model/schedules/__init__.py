"""Learning-rate schedules: each is one small file with its NumPy function; the CUDA functor of the
same name stands in ptx/elementwise/schedule.cu, which fills `rates` with the rates of a whole
epoch.

A schedule is written as text, in epochs: "constant", "step:30:0.1" (every 30 epochs times 0.1),
"cosine", "cosine:0.001" (down to 0.001), each also behind a warm-up: "warmup:5,cosine". Steps are
counted from the start of training, the first is 0. All arithmetic is in float32, as on the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rawnn.common.errors import ConfigError, nearest
from rawnn.common.registry import import_all

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Settings:
    """What stands behind a rule's name: `value` is a factor or a rate, `epochs` a number of epochs
    (0: those that are left of the run)."""

    value: float = 0.0
    epochs: float = 0.0


@dataclass(frozen=True)
class ScheduleSpec:
    """What is true of every schedule of one name.

    `syntax` shows how it is written, `read(arguments)` makes its settings of the texts behind the
    colons. `rates(lr, value, period, step)` gives the float32 rate of each step (int64): `period`
    is `Settings.epochs` in steps. With `after_warmup` its steps are counted from the end of the
    warm-up. `functor` is its name in CUDA C.
    """

    name: str
    functor: str
    syntax: str
    read: Callable[[list[str]], Settings]
    rates: Callable[[np.float32, np.float32, int, NDArray[np.int64]], Floats]
    after_warmup: bool = False


SCHEDULE_SPECS: dict[str, ScheduleSpec] = {}
MOST_STEPS = 2**31 - 1
"""Most steps that the kernels of schedules count."""


def register(spec: ScheduleSpec) -> ScheduleSpec:
    SCHEDULE_SPECS[spec.name] = spec
    return spec


def number(text: str, what: str, *, positive: bool = True) -> float:
    """`text` as a finite number above 0 (or at least 0). Raises ConfigError, naming `what`."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        bound = "above 0" if positive else "of at least 0"
        raise ConfigError(f"schedule: '{text}' is no {what}; give a number {bound}")
    return value


@dataclass(frozen=True)
class Specification:
    """A schedule as it was written, in epochs."""

    text: str
    spec: ScheduleSpec
    settings: Settings
    warmup: float = 0.0

    @property
    def is_constant(self) -> bool:
        """Whether the rate is lr at every step."""
        return self.spec.name == "constant" and not self.warmup

    def resolve(self, lr: float, steps: int, epochs: int) -> Schedule:
        """The schedule of a run of `epochs` epochs with `steps` steps each and base rate `lr`.
        Raises ConfigError for more steps than the device counts."""
        for name, length in (("warmup", self.warmup), (self.spec.name, self.settings.epochs)):
            if length * steps > MOST_STEPS:
                raise ConfigError(f"schedule '{self.text}': {name} lasts {length:g} epochs, which "
                                  f"are {length * steps:.4g} steps, but there are at most "
                                  f"{MOST_STEPS:,}: give fewer epochs")
        warmup = max(1, round(self.warmup * steps)) if self.warmup else 0
        if self.settings.epochs:
            period = round(self.settings.epochs * steps)
        else:
            period = min(epochs * steps - warmup, MOST_STEPS)
        return Schedule(self.spec.name, lr, self.settings.value, max(1, period), warmup, steps)

    def unfinished_warmup(self, epochs: int) -> str:
        """A sentence on a warm-up that is longer than a run of `epochs` epochs; "" for none."""
        return f"schedule = {self.text}: the warm-up of {self.warmup:g} epochs is longer than " \
               f"the run of {epochs:,}, so that the learning rate reaches " \
               f"{epochs / self.warmup:.2g} of lr at most" if self.warmup > epochs else ""


@dataclass(frozen=True)
class Schedule:
    """A schedule in steps. The fields are the attributes of the op `schedule` and, all but `kind`,
    the scalars of its kernel: base rate `lr`, the rule's `value` and `period` (in steps), the
    length of the `warmup`, and `steps`, the steps of an epoch."""

    kind: str
    lr: float
    value: float
    period: int
    warmup: int
    steps: int

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, Any]) -> Schedule:
        return cls(**{name: attributes[name] for name in cls.__dataclass_fields__})

    def attributes(self) -> dict[str, str | int | float]:
        return dict(self.__dict__)

    @property
    def constant(self) -> bool:
        """Whether every step has the rate `lr`."""
        return self.kind == "constant" and not self.warmup

    def rates(self, first: int, count: int) -> Floats:
        """Rates of steps first .. first + count - 1 of training: float32 [count]. Those of the
        device differ by at most 4 float32 eps of the larger of `lr` and `value`."""
        return self._at(np.arange(first, first + count, dtype=np.int64))

    def rate(self, step: int) -> float:
        """The rate of one step of training."""
        return float(self._at([step])[0])

    def _at(self, steps: ArrayLike) -> Floats:
        spec, step = SCHEDULE_SPECS[self.kind], np.asarray(steps, np.int64)
        lr, value = np.float32(self.lr), np.float32(self.value)
        behind = np.maximum(step - self.warmup, 0) if spec.after_warmup else step
        rates = spec.rates(lr, value, self.period, behind)
        if self.warmup:
            rising = lr * ((step + 1).astype(np.float32) / np.float32(self.warmup))
            rates = np.where(step < self.warmup, rising, rates)
        return rates


def parse(text: str) -> Specification:
    """Read a schedule as it is typed. Raises ConfigError with one clear sentence."""
    spec: ScheduleSpec | None = None
    settings, warmup = Settings(), 0.0
    for part in (p.strip() for p in text.split(",")):
        name, *arguments = (p.strip() for p in part.split(":"))
        if name == "warmup":
            if len(arguments) != 1:
                raise ConfigError(f"schedule '{text}': write warmup:EPOCHS")
            if warmup:
                raise ConfigError(f"schedule '{text}': warmup is given twice")
            warmup = number(arguments[0], "number of epochs")
        elif name not in SCHEDULE_SPECS:
            known = (*SCHEDULE_SPECS, "warmup")
            raise ConfigError(f"schedule '{text}': unknown schedule '{name}'" + (
                nearest(name, known) or f"; there are {', '.join(known)}"))
        elif spec is not None:
            raise ConfigError(f"schedule '{text}': '{spec.name}' and '{name}' exclude each other; "
                              f"only a warmup goes with another")
        else:
            spec = SCHEDULE_SPECS[name]
            settings = spec.read(arguments)
    spec = spec or SCHEDULE_SPECS["constant"]
    return Specification(text, spec, settings, warmup)


def functor(kind: str) -> str:
    """The CUDA functor of the schedule `kind`: the kernel is `schedule<functor>`."""
    return SCHEDULE_SPECS[kind].functor


import_all(__name__, __path__)
