"""Optuna's samplers over many networks at once: ask for a batch, train it, report its scores."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rawnn.common.errors import ConfigError, MissingLibrary
from rawnn.engine.config import Config
from rawnn.many.progress import HIGHER_IS_BETTER, Status
from rawnn.many.result import Many
from rawnn.many.spaces import Distribution, checked
from rawnn.many.tables import configurations_of, shown
from rawnn.many.training import ended, options_of_search, start


def optimise(study: Any, space: Mapping[str, Any], *, trials: int, batch: int = 64,
             data: Any = None, validation: Any = None, normalise: Any = None, folds: Any = None,
             repeats: int = 1, rows: Any = None, monitor: str = "test_loss",
             listener: object = (), **options: Any) -> list[Many]:
    """Let an `optuna.Study` choose `trials` networks, `batch` of them at once: its sampler is asked
    for a batch, all of it trains at once, and the sampler gets the value of each. Returns what
    each batch reached.

    `space` is that of `rawnn.search`. A trial's value is the `monitor` of its network behind the
    last epoch (of the best one with patience), the mean over folds; a network that diverges, or
    that Ctrl-C cuts short, makes a failed trial. Values behind each epoch are the trial's
    intermediate values, and its user attribute "member" is its number in its batch. A sampler that
    has tried everything, as that of a grid, ends it before. `data` and all others are those of
    `train_many`; with `save` all trials must be one batch.

    Raises ConfigError, also where the study's direction is not that of the monitor; MissingLibrary
    without Optuna (the extra `optuna`).
    """
    library = _library()
    choices = checked(space)
    for name in ("halving", "min_epochs"):
        if name in options:
            raise ConfigError(f"{name} plays no part here: the sampler decides by values of whole "
                              f"trainings; rawnn.search has it")
    fixed = options_of_search(choices, options, data, validation, normalise, monitor)
    for name, value in (("trials", trials), ("batch", batch)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise ConfigError(f"{name} = {value!r}: it must be a whole number of at least 1")
    if fixed.get("save") is not None and trials > batch:
        raise ConfigError(f"save: {trials:,} trials are more than one batch of {batch:,}, and one "
                          f"directory holds one: give a larger batch, or save what is returned, as "
                          f"in optimise(...)[0].save(path)")
    if not isinstance(study, library.study.Study):
        raise ConfigError(f"study = {study!r}: it must be one that optuna.create_study made")
    higher = monitor in HIGHER_IS_BETTER
    wanted = library.study.StudyDirection.MAXIMIZE if higher else \
        library.study.StudyDirection.MINIMIZE
    if list(study.directions) != [wanted]:
        word = "maximize" if higher else "minimize"
        raise ConfigError(f"monitor = '{monitor}' needs a study of one value, from "
                          f"optuna.create_study(direction={word!r})")
    distributions = {name: _distribution(library, each) for name, each in choices.items()}
    done: list[Many] = []
    left = trials
    while left:
        asked = [study.ask(distributions) for _ in range(min(batch, left))]
        left -= len(asked)
        try:
            configs = [Config(**{**fixed, **trial.params}) for trial in asked]
            many = start(configs, {}, data=data, validation=validation, normalise=normalise,
                         folds=folds, repeats=repeats, rows=rows, monitor=monitor,
                         listener=listener, stacklevel=4)
        except BaseException:
            for trial in asked:
                _told(study, trial, state=library.trial.TrialState.FAIL)
            raise
        goes_on = _tell(library, study, asked, many, monitor)
        done.append(ended(many))
        if many.interrupted or not goes_on:
            break
    return done


def _library() -> Any:
    try:
        return importlib.import_module("optuna")
    except ImportError as error:
        raise MissingLibrary(f"rawnn.many.optuna needs Optuna, which cannot be imported ({error}): "
                             f"pip install 'rawnn[optuna]'") from None


def _distribution(library: Any, choices: Distribution | tuple[Any, ...]) -> Any:
    """Optuna's; layers are text there, as it has no tuples."""
    found = library.distributions
    if not isinstance(choices, Distribution):
        return found.CategoricalDistribution([shown(value) for value in choices])
    if choices.kind == "int_uniform":
        return found.IntDistribution(int(choices.low), int(choices.high))
    return found.FloatDistribution(choices.low, choices.high, log=choices.kind == "log_uniform")


def _tell(library: Any, study: Any, asked: list[Any], many: Many, monitor: str) -> bool:
    """Whether the sampler has more to try."""
    goes_on = True
    values = configurations_of(many)[f"mean_{monitor}"]
    is_whole = (many.progress.status != Status.ACTIVE).reshape(len(asked), -1).all(axis=1)
    history = many.scores(monitor)
    by_epoch = history.reshape(len(asked), -1, history.shape[1]).mean(axis=1)
    for number, (trial, value) in enumerate(zip(asked, values.tolist(), strict=True)):
        trial.set_user_attr("member", number * (len(many) // len(asked)))
        for epoch, reached in enumerate(by_epoch[number].tolist(), 1):
            if math.isfinite(reached):
                trial.report(reached, epoch)
        if is_whole[number] and math.isfinite(value):
            goes_on &= _told(study, trial, values=value)
        else:
            goes_on &= _told(study, trial, state=library.trial.TrialState.FAIL)
    return goes_on


def _told(study: Any, trial: Any, **reached: Any) -> bool:
    """Whether the sampler has more to try: if not, it calls `Study.stop`, which Optuna refuses
    outside of `Study.optimize`, behind a trial that is stored all the same."""
    try:
        study.tell(trial, **reached)
    except RuntimeError as error:
        if "Study.stop" not in str(error):
            raise
        return False
    return True
