"""Search spaces: what each option may be, and candidates drawn from it by a seed alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.common.errors import ConfigError, unknown
from rawnn.common.random import philox
from rawnn.engine.config import Config
from rawnn.many.variation import VARYING, product_of


@dataclass(frozen=True)
class Distribution:
    """Numbers from `low` to `high`: `kind` is "uniform", "log_uniform" (uniform in the logarithm)
    or "int_uniform" (whole numbers, both ends among them)."""

    kind: str
    low: float
    high: float

    def at(self, u: NDArray[np.float64]) -> list[float] | list[int]:
        """The values at these parts [N], 0 <= u < 1, of the distribution."""
        if self.kind == "log_uniform":
            low, high = math.log(self.low), math.log(self.high)
            return [min(max(math.exp(low + x * (high - low)), self.low), self.high)
                    for x in u.tolist()]
        if self.kind == "int_uniform":
            count = int(self.high) - int(self.low) + 1
            return [int(self.low) + min(int(x * count), count - 1) for x in u.tolist()]
        return [self.low + x * (self.high - self.low) for x in u.tolist()]


def uniform(low: float, high: float) -> Distribution:
    """Numbers from `low` to `high`, each part of that range equally often. Raises ConfigError."""
    return Distribution("uniform", *_ends("uniform", low, high))


def log_uniform(low: float, high: float) -> Distribution:
    """Numbers above 0 from `low` to `high`, each factor equally often: for learning rates and
    decays. Raises ConfigError."""
    found = _ends("log_uniform", low, high)
    if found[0] <= 0:
        raise ConfigError(f"log_uniform({low:g}, {high:g}): both must be above 0")
    return Distribution("log_uniform", *found)


def int_uniform(low: int, high: int) -> Distribution:
    """Whole numbers from `low` to `high`, both among them. Raises ConfigError."""
    found = _ends("int_uniform", low, high)
    if any(end != int(end) for end in found):
        raise ConfigError(f"int_uniform({low:g}, {high:g}): both must be whole numbers")
    return Distribution("int_uniform", *found)


def _ends(name: str, low: Any, high: Any) -> tuple[float, float]:
    try:
        ends = float(low), float(high)
    except (TypeError, ValueError):
        raise ConfigError(f"{name}({low!r}, {high!r}): give two numbers") from None
    if not (math.isfinite(ends[0]) and math.isfinite(ends[1]) and ends[0] < ends[1]):
        raise ConfigError(f"{name}({low:g}, {high:g}): the first must be below the second, and "
                          f"both finite")
    return ends


Space = Mapping[str, Any]
"""Option: a Distribution, or a sequence of values."""


def checked(space: Space) -> dict[str, Distribution | tuple[Any, ...]]:
    """The space with each option's choices. Raises ConfigError for what cannot vary, or names
    nothing to choose from."""
    if not isinstance(space, Mapping) or not space:
        raise ConfigError("space must name one option or more, as in "
                          "space={'lr': rawnn.log_uniform(1e-4, 1e-1)}")
    found: dict[str, Distribution | tuple[Any, ...]] = {}
    for name, choices in space.items():
        if name not in Config.known():
            raise unknown("option", str(name), VARYING)
        if name not in VARYING:
            raise ConfigError(f"{name} is shared by all members and cannot be searched: options "
                              f"that may vary are {', '.join(VARYING)}")
        if isinstance(choices, Distribution):
            found[name] = choices
            continue
        if isinstance(choices, str) or not isinstance(choices, Sequence | np.ndarray) \
                or not len(choices):
            raise ConfigError(f"space: {name} = {choices!r}: give a list of values, or "
                              f"rawnn.log_uniform, rawnn.uniform or rawnn.int_uniform")
        if name == "layers" and all(isinstance(n, int | np.integer) for n in choices):
            choices = [tuple(choices)]
        found[name] = tuple(c.item() if isinstance(c, np.generic) else
                            tuple(c) if isinstance(c, list | np.ndarray) else c for c in choices)
    return found


def sampled(space: Mapping[str, Distribution | tuple[Any, ...]], count: int, seed: int
            ) -> list[dict[str, Any]]:
    """`count` candidates. The value of an option in candidate i depends on the seed, the option's
    place in the space and i alone, on any machine."""
    columns: dict[str, Sequence[Any]] = {}
    for place, (name, choices) in enumerate(space.items()):
        words = philox(seed, place, np.arange(count, dtype=np.uint64)).astype(np.uint64)
        u = ((words[:, 0] >> np.uint64(5)) * np.uint64(1 << 26)
             + (words[:, 1] >> np.uint64(6))).astype(np.float64) / float(1 << 53)
        columns[name] = choices.at(u) if isinstance(choices, Distribution) else \
            [choices[int(x * len(choices))] for x in u.tolist()]
    return [{name: column[i] for name, column in columns.items()} for i in range(count)]


def grid_of(space: Mapping[str, Distribution | tuple[Any, ...]],
            budget: int | None = None) -> list[dict[str, Any]]:
    """Every combination, the last option running fastest. Raises ConfigError for a distribution,
    and for more combinations than `budget`."""
    axes: dict[str, tuple[Any, ...]] = {}
    for name, choices in space.items():
        if isinstance(choices, Distribution):
            raise ConfigError(f"grid: {name} is a distribution, of which there is no end: give a "
                              f"list of values, such as np.geomspace(1e-4, 1e-1, 16)")
        axes[name] = choices
    count = math.prod(len(values) for values in axes.values())
    if budget is not None and count > budget:
        raise ConfigError(f"the grid has {count:,} combinations, more than budget = {budget}: "
                          f"give a larger budget, or leave out grid to draw so many")
    return list(product_of(axes))
