"""Options of many networks: which vary, and the configurations that their product makes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rawnn.common.errors import ConfigError, unknown
from rawnn.engine.config import Config, changed
from rawnn.many.members import BEYOND_TRAINING

VARYING = ("layers", "bias", "activation", "loss", "init", "epochs", "batch", "partial", "shuffle",
           "optimizer", "lr", "momentum", "nesterov", "weight_decay", "beta1", "beta2", "eps",
           "schedule", "seed")
"""Options of Config that may be lists, one value for each member."""

MOST = 1_000_000
"""Members beyond which a product is assumed to be a mistake."""


@dataclass(frozen=True, eq=False)
class Variation:
    """The configurations of all members before folds, and `varied`, the values of each option that
    was given several, in the order given. `varied` of a list of Configs has the options in which
    these differ."""

    configs: tuple[Config, ...]
    varied: dict[str, tuple[Any, ...]]


def variation_of(configs: Sequence[Config] | Config | None, options: Mapping[str, Any],
                 own: Sequence[str] = ()) -> Variation:
    """The configurations that a caller names: a list, or the product of options. `own` are further
    words that the caller accepts, to be suggested for a misspelt option. Raises ConfigError."""
    for name in options:
        if name not in Config.known():
            raise unknown("option", name, (*Config.known(), *own))
    if configs is not None:
        if options:
            raise ConfigError(f"give either Configs or options, not both: set {next(iter(options))}"
                              f" in each Config")
        return _of_list(configs)
    axes = {name: values for name, value in options.items()
            if (values := several(name, value)) is not None}
    fixed = {name: value for name, value in options.items() if name not in axes}
    products = product_of(axes)
    first = Config(**fixed, **next(products))
    return Variation((first, *(changed(first, **values) for values in products)), axes)


def product_of(axes: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Every combination of the values of each option, the last option running fastest. Raises
    ConfigError, before the first, where there are more than MOST."""
    count = math.prod(len(values) for values in axes.values())
    if count > MOST:
        sizes = " x ".join(f"{len(values)} {name}" for name, values in axes.items())
        raise ConfigError(f"{sizes} are {count:,} members: give at most {MOST:,}, or let "
                          f"rawnn.search draw some of them")
    return (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))


def several(name: str, value: Any) -> tuple[Any, ...] | None:
    """The values of an option that was given several, None where it is one. Raises ConfigError."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return None
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        return None
    if not isinstance(value, Sequence | np.ndarray):
        raise ConfigError(f"{name} is a {type(value).__name__}: give several values as a list, "
                          f"whose order is that of the members, or one value")
    if name == "layers":
        if all(isinstance(item, int | np.integer) for item in value):
            return None
    elif name in ("opt", "target", "skip"):  # whose one value may be a list
        return None
    elif name not in VARYING:
        raise ConfigError(f"{name} is shared by all members: give one value, not a list; options "
                          f"that may vary are {', '.join(VARYING)}")
    if not len(value):
        raise ConfigError(f"{name} is an empty list: give one value or more")
    if isinstance(value, np.ndarray) and value.ndim != 1 and name != "layers":
        raise ConfigError(f"{name} is an array of shape {list(value.shape)}: give one dimension")
    return tuple(item.item() if isinstance(item, np.generic) else
                 tuple(item) if isinstance(item, list | np.ndarray) else item for item in value)


SHARED = tuple(name for name in Config.known() if name not in VARYING)


def _of_list(configs: Sequence[Config] | Config) -> Variation:
    if isinstance(configs, Config):
        configs = [configs]
    if isinstance(configs, str | Mapping) or not isinstance(configs, Sequence) or not configs:
        raise ConfigError("configs must be a list of one rawnn.Config or more; options are given "
                          "by name, as in train_many(lr=[0.1, 0.01])")
    for place, config in enumerate(configs):
        if not isinstance(config, Config):
            raise ConfigError(f"configs[{place}] is a {type(config).__name__}, not a rawnn.Config")
        for name in SHARED:
            if getattr(config, name) != getattr(configs[0], name):
                raise ConfigError(f"configs[{place}] has {name} = {getattr(config, name)!r}, but "
                                  f"configs[0] has {getattr(configs[0], name)!r}: that is shared "
                                  f"by all members")
    return Variation(tuple(configs), differing(configs))


def differing(configs: Sequence[Config]) -> dict[str, tuple[Any, ...]]:
    """The options in which configurations differ, with their distinct values as they first occur.
    """
    found = {}
    for name in VARYING:
        values = tuple(dict.fromkeys(getattr(config, name) for config in configs))
        if len(values) > 1:
            found[name] = values
    return found


_PLAIN: dict[str, Any] = {name: Config.__dataclass_fields__[name].default
                          for name in BEYOND_TRAINING if name != "validation"}


def without_keeping(config: Config) -> Config:
    """The configuration of one member: what concerns all of them together (checkpoints, early
    stopping) is left to who trains them."""
    plain = {name: value for name, value in _PLAIN.items() if getattr(config, name) != value}
    return changed(config, **plain) if plain else config
