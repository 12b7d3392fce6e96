"""Search for hyperparameters: random or grid, with synchronous successive halving."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rawnn.common.errors import ConfigError
from rawnn.engine.config import Config
from rawnn.many.result import Many
from rawnn.many.spaces import checked, grid_of, sampled
from rawnn.many.training import ended, options_of_search, start
from rawnn.many.variation import MOST, Variation, differing


def search(*, space: Mapping[str, Any], data: Any = None, budget: int | None = None,
           halving: float | None = 3, min_epochs: int | None = None, epochs: int = 20,
           seed: int = 0, grid: bool = False, validation: Any = None, normalise: Any = None,
           folds: Any = None, repeats: int = 1, rows: Any = None, monitor: str | None = None,
           listener: object = (), **options: Any) -> Many:
    """Train candidates drawn from `space`, all at once, and leave the best ones to train on.

    Parameters
    ----------
    space
        for each option a list of values, `rawnn.log_uniform(low, high)`, `rawnn.uniform` or
        `rawnn.int_uniform`; options are those that may vary in `train_many`
    budget
        candidates that are drawn; with `grid`, at most so many combinations (None: all)
    halving, min_epochs
        behind each rung of epochs one of so many candidates continues (None: all train all
        `epochs`); the first rung is `min_epochs`, by default such that fewer than `halving`
        candidates are left for the last epochs
    epochs
        of a candidate that is left to the end
    seed
        of what is drawn, and of the networks unless the space has a seed of its own: the same seed
        gives the same candidates on any machine
    grid
        every combination of lists, in place of draws
    data, validation, normalise, folds, repeats, rows, monitor, listener, options
        as in `train_many`

    In the result's table `rung` says how many rungs a candidate has passed; `best(1)` is by
    `monitor` among all, of whatever rung.

    Raises ConfigError with one clear sentence.
    """
    choices = checked(space)
    fixed = {"epochs": epochs, "seed": seed,
             **options_of_search(choices, options, data, validation, normalise, monitor)}
    if "epochs" in choices and halving is not None:
        raise ConfigError("epochs cannot be searched with halving, which decides how long each "
                          "candidate trains: give halving=None, or leave epochs out of space")
    candidates = _candidates(choices, budget, seed, grid)
    configs = tuple(Config(**{**fixed, **candidate}) for candidate in candidates)
    varied = differing(configs)
    variation = Variation(configs, {name: varied[name] for name in choices if name in varied})
    return ended(start(variation, {}, data=data, validation=validation, normalise=normalise,
                       folds=folds, repeats=repeats, rows=rows, halving=halving,
                       min_epochs=min_epochs, monitor=monitor, listener=listener, stacklevel=4))


def _candidates(choices: Mapping[str, Any], budget: int | None, seed: int,
                grid: bool) -> list[dict[str, Any]]:
    """Raises ConfigError."""
    if budget is not None and (isinstance(budget, bool)
                               or not isinstance(budget, int | np.integer)
                               or not 1 <= budget <= MOST):
        raise ConfigError(f"budget = {budget!r}: give a whole number of candidates from 1 to "
                          f"{MOST:,}")
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise ConfigError(f"seed = {seed!r}: it must be a whole number from 0 to 2**63 - 1")
    if not grid:
        if budget is None:
            raise ConfigError("budget says how many candidates are drawn: give budget=200, or "
                              "grid=True for every combination")
        return sampled(choices, int(budget), int(seed))
    return grid_of(choices, budget)
