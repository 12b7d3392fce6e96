"""The rate times a factor after every so many epochs, as torch's StepLR. The epochs of a warm-up
count."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rawnn.common.errors import ConfigError
from rawnn.model.schedules import Floats, ScheduleSpec, Settings, number, register

_SYNTAX = "step:EPOCHS:FACTOR"


def _read(arguments: list[str]) -> Settings:
    if len(arguments) != 2:
        raise ConfigError(f"schedule: write {_SYNTAX}, such as step:30:0.1")
    return Settings(number(arguments[1], "factor"), number(arguments[0], "number of epochs"))


def _rates(
    lr: np.float32, value: np.float32, period: int, step: NDArray[np.int64]
) -> Floats:
    """lr * value^(step // period), the power by squaring: the same products as on the device."""
    left = step // period
    power, square = np.ones(step.shape, np.float32), value
    with np.errstate(over="ignore", under="ignore"):
        while left.any():
            power = np.where(left & 1, power * square, power)
            square = square * square
            left = left >> 1
        return lr * power


register(ScheduleSpec("step", "StepDecay", _SYNTAX, _read, _rates))
