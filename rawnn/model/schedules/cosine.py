"""Half a cosine from the rate down to a final one (0 where none is given) at the end of the run, as
torch's CosineAnnealingLR stepped every batch. Behind a warm-up it spans what is left."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rawnn.common.errors import ConfigError
from rawnn.model.schedules import Floats, ScheduleSpec, Settings, number, register


def _read(arguments: list[str]) -> Settings:
    if len(arguments) > 1:
        raise ConfigError("schedule: write cosine or cosine:FINAL_RATE, such as cosine:0.001")
    final = number(arguments[0], "rate", positive=False) if arguments else 0.0
    return Settings(final)


def _rates(
    lr: np.float32, value: np.float32, period: int, step: NDArray[np.int64]
) -> Floats:
    """value + (lr - value) * cos(pi/2 * step/period)^2, which is exact near the end too."""
    part = np.minimum(step.astype(np.float32) / np.float32(period), np.float32(1))
    half = np.cos(part.astype(np.float64) * (np.pi / 2)).astype(np.float32)
    rates: Floats = value + (lr - value) * (half * half)
    return rates


register(ScheduleSpec("cosine", "Cosine", "cosine or cosine:FINAL_RATE", _read, _rates,
                      after_warmup=True))
