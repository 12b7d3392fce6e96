"""One rate for all of training."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rawnn.common.errors import ConfigError
from rawnn.model.schedules import Floats, ScheduleSpec, Settings, register


def _read(arguments: list[str]) -> Settings:
    if arguments:
        raise ConfigError("schedule: constant takes no value; the rate is lr")
    return Settings()


def _rates(
    lr: np.float32, value: np.float32, period: int, step: NDArray[np.int64]
) -> Floats:
    return np.full(step.shape, lr)


register(ScheduleSpec("constant", "Constant", "constant", _read, _rates))
