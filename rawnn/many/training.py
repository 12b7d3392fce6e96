"""`train_many`: from options that vary, or a list of Configs, to many trained networks."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rawnn.common.errors import ConfigError, RawnnError, unknown
from rawnn.common.files import check_path
from rawnn.common.interrupts import end_by
from rawnn.common.listener import listeners_of
from rawnn.data import Dataset
from rawnn.data.identity import differences, identity_of
from rawnn.distributed import Team
from rawnn.engine import many_checkpoint, parallel
from rawnn.engine.config import Config, changed
from rawnn.engine.data_source import check_validation, outline_of
from rawnn.engine.loop import large_values
from rawnn.engine.machine import Opened
from rawnn.engine.many_checkpoint import ManyCheckpoint
from rawnn.engine.run_planner import check_plan, continued_on_host
from rawnn.engine.runners.plan_data import data_spec_of
from rawnn.many.folds import Folds, folds_of
from rawnn.many.grouping import Lists, Members, load, members_of
from rawnn.many.halving import rungs_of
from rawnn.many.loop import Rules
from rawnn.many.progress import FIGURES, Progress, Status, member_numbers
from rawnn.many.result import Many
from rawnn.many.run import ManyRun, Source
from rawnn.many.tables import final_epochs
from rawnn.many.variation import Variation, several, variation_of
from rawnn.opts import select

OF_RUN = ("patience", "min_delta", "save", "save_every", "keep", "device", "sharding")
"""Options of the whole run, which may accompany a list of Configs."""
OWN = ("folds", "repeats", "rows", "halving", "min_epochs", "monitor", "listener", "validation",
       "normalise")


def train_many(configs: Sequence[Config] | Config | None = None, *, data: Any = None,
               validation: Any = None, normalise: Any = None, folds: Any = None, repeats: int = 1,
               rows: Any = None, halving: float | None = None, min_epochs: int | None = None,
               monitor: str | None = None, resume: str | os.PathLike[str] | None = None,
               listener: object = (), team: Team | None = None, communicator: Any = None,
               **options: Any) -> Many:
    """Train many networks at once, each exactly as `rawnn.train` would train it alone.

    Options are those of Config. One that is given several values (a list, a tuple, a range, a NumPy
    array) varies: `layers` as a list of tuples or texts, and `bias`, `activation`, `loss`, `init`,
    `epochs`, `batch`, `partial`, `shuffle`, `optimizer`, `lr`, `momentum`, `nesterov`,
    `weight_decay`, `beta1`, `beta2`, `eps`, `schedule`, `seed`. Members are the product of all
    values, in the order of the options as they are given, the last running fastest, and behind
    them the lists of rows. `configs`, a list of Configs, replaces options; only patience,
    min_delta, save, save_every, keep, device and sharding may then be given as well.

    `data`, `validation` and `normalise` are those of `rawnn.train`; all members share them. What is
    split off for validation depends on the seed of the first member.

    folds     a number: k-fold cross-validation with `repeats`, each configuration once a fold,
              scored on the rows held out; rows are shuffled by the seed of the first member, and
              folds have their part of each class. Or a list of (training rows, scored rows), or a
              cross-validator of scikit-learn
    rows      lists of training rows, each configuration once a list; all scored on `validation`
    halving   successive halving: behind each rung one of so many configurations continues, those
              whose `monitor` is best (the mean over folds)
    min_epochs  the first rung; the next are `halving` times the last. None places it so that fewer
              than `halving` configurations are left for the last epochs
    patience  stops each member by itself and restores its best parameters, as `rawnn.train` does
    monitor   "test_loss" (the default), "test_accuracy" or "train_loss": for early stopping, for
              halving, and what is best
    save      a directory for checkpoints of all members, every `save_every` epochs
    resume    such a directory or file, to go on from; only data, validation, listener, save,
              save_every, keep, device and epochs may be given with it
    listener  as for `rawnn.train`: `reported` is given a ManyReport each epoch; those of one
              network (Checkpoints, CsvLog, EarlyStopping) are refused

    Members whose widths, batch or kind of optimizer differ make groups that are compiled apart;
    groups run side by side, each on a stream of its own, where the GPU's memory holds them. On a
    GPU the steps of a group are one kernel, or launches of all its members, whichever is expected
    to be faster; where neither is, each member trains by itself, a few side by side, and the
    listener gets the reason. Without a GPU, or with device="host", members
    train on the host, by processes over its cores, which all groups share (RAWNN_WORKERS says how
    many, 1 trains without any); a RuntimeWarning says so where device is "auto".

    `device` "gpu:0,1,2,3" or "gpu:all" spreads members over several GPUs, "sim:0,1" over simulated
    ones. In a process that torchrun, mpirun, srun or `rawnn launch` started with others, members
    are spread over all of these ranks, each on a device of its own, and every rank gets the whole
    result; `team` and `communicator` are as for `rawnn.train`. Members have the bits of one GPU;
    the sharding is chosen for the members of one.

    A member whose loss becomes NaN or infinite stops, marked "diverged"; others go on. Where all
    diverge, a RuntimeWarning says what to change. Ctrl-C, SIGTERM and SIGHUP end the run as they
    end `rawnn.train`, with all that members have reached.

    Raises ConfigError, DataError, DeviceError and their kin with one clear sentence.
    """
    if resume is not None:
        given = {"configs": configs, "normalise": normalise, "folds": folds, "rows": rows,
                 "repeats": None if repeats == 1 else repeats, "halving": halving,
                 "min_epochs": min_epochs, "monitor": monitor}
        for name, value in given.items():
            if value is not None:
                raise ConfigError(f"{name} is stored in the checkpoint: leave it out with resume")
        return ended(continue_from(resume, data, validation, listener, options, team,
                                   communicator))
    return ended(start(configs, options, data=data, validation=validation, normalise=normalise,
                       folds=folds, repeats=repeats, rows=rows, halving=halving,
                       min_epochs=min_epochs, monitor=monitor, listener=listener, stacklevel=4,
                       team=team, communicator=communicator))


def start(configs: Any, options: Mapping[str, Any], *, listener: object, stacklevel: int,
          data: Any = None, validation: Any = None, normalise: Any = None, folds: Any = None,
          repeats: int = 1, rows: Any = None, halving: float | None = None,
          min_epochs: int | None = None, monitor: str | None = None, team: Team | None = None,
          communicator: Any = None) -> Many:
    """`train_many` from the beginning; a warning names the caller so many frames up. What ended it
    is for the caller to pass on (`ended`)."""
    if folds is not None and validation is not None:
        raise ConfigError("with folds each member is scored on the rows that its fold holds out: "
                          "leave validation out")
    options = {**options, **options_of_data(data, validation, normalise)}
    variation = _variation(configs, options, monitor)
    config = variation.configs[0]
    rules = _rules(variation, config, halving, min_epochs, monitor)
    if not is_array(data):
        check_validation(config)
    kind: Lists = "folds" if folds is not None else "rows" if rows is not None else ""
    team = team or parallel.join(config, communicator=communicator)

    def members_on(notify: Callable[[str], None]) -> tuple[Source, Folds, Members]:
        source = _source(data, config, validation, normalise, kind, notify)
        lists = folds_of(folds, repeats, rows, source.data, config.seed)
        return source, lists, members_of(variation.configs, lists, source.data, source.normalise,
                                         source.exact)

    with ManyRun(config, listeners_of(listener), team) as run:
        run.start_opening()
        messages: list[str] = []
        found = None
        if is_array(data):  # others may be downloaded: a missing GPU is reported before
            try:
                found = members_on(messages.append)
            except RawnnError:
                run.open(stacklevel)
                raise
        run.open(stacklevel)
        for message in messages:
            run.notify(message)
        if found is None:
            _check_unread(variation.configs, folds, repeats, rows, run.opened)
        source, lists, members = found or members_on(run.notify)
        settings = _settings(variation, rules, lists, kind)
        run.prepare(members, lists, source, settings, rules,
                    Progress.new(len(members), max(c.epochs for c in members.configs)))
        return run.train()


def _check_unread(configs: Sequence[Config], folds: Any, repeats: int, rows: Any,
                  opened: Opened) -> None:
    """Refuse members that cannot train on the data set that their Configs name, by its shapes
    alone, so that nothing is fetched in vain. Raises ConfigError."""
    outline = outline_of(configs[0])
    is_splitter = hasattr(folds, "split") and not isinstance(folds, str)
    if outline is None or is_splitter:  # a cross-validator of scikit-learn divides by the labels
        return
    if configs[0].autoencoder:
        outline = outline.reconstructing()
    lists = folds_of(folds, repeats, rows, outline, configs[0].seed)
    for group in members_of(configs, lists, outline, "none", None).groups:
        check_plan(group.config, outline, opened, None)


def _variation(configs: Variation | Sequence[Config] | Config | None, options: dict[str, Any],
               monitor: str | None) -> Variation:
    if configs is None:
        return variation_of(None, with_monitor(options, monitor), OWN)
    of_run = {name: value for name, value in options.items() if name in OF_RUN}
    others = {name: value for name, value in options.items() if name not in OF_RUN}
    found = configs if isinstance(configs, Variation) else variation_of(configs, others, OWN)
    if monitor is not None and (of_run.get("patience") or found.configs[0].patience):
        of_run["monitor"] = monitor
    return replace(found, configs=tuple(changed(c, **of_run) for c in found.configs)) \
        if of_run else found


def _rules(variation: Variation, config: Config, halving: float | None, min_epochs: int | None,
           monitor: str | None) -> Rules:
    """Raises ConfigError for what makes no sense together."""
    by = monitor or config.monitor
    if by not in FIGURES:
        raise ConfigError(f"monitor = '{by}': use one of {', '.join(FIGURES)}")
    if by == "test_accuracy" and not config.network().loss_spec.counts(config.layers[-1]):
        raise ConfigError(f"monitor = '{by}': the loss {config.loss} gives no such figure")
    epochs = max(c.epochs for c in variation.configs)
    rungs = rungs_of(len(variation.configs), epochs, halving, min_epochs)
    every = config.save_every if config.save is not None else None
    return Rules(config.patience, config.min_delta, by, halving, rungs, every)


def _settings(variation: Variation, rules: Rules, lists: Folds, kind: Lists) -> dict[str, Any]:
    return {"varied": list(variation.varied), "monitor": rules.monitor,
            "patience": rules.patience, "min_delta": rules.min_delta, "halving": rules.halving,
            "rungs": list(rules.rungs), "lists": kind, "folds": lists.folds,
            "repeats": lists.repeats, "seconds": 0.0, "steps": 0,
            "asked": [[c.batch, c.partial] for c in variation.configs]}


def with_monitor(options: dict[str, Any], monitor: str | None) -> dict[str, Any]:
    """Options of Config with the figure that early stopping goes by, where there is any."""
    stops = monitor is not None and options.get("patience") is not None
    return {**options, "monitor": monitor} if stops else options


def options_of_search(searched: Collection[str], options: dict[str, Any], data: Any,
                      validation: Any, normalise: Any, monitor: str | None) -> dict[str, Any]:
    """Options of Config that all candidates have, which none of the `searched` may be. Raises
    ConfigError."""
    for name in options:
        if name not in Config.known():
            raise unknown("option", name, (*Config.known(), *OWN))
        if name in searched:
            raise ConfigError(f"{name} is given twice: by space, and as an option")
        if several(name, options[name]) is not None:
            raise ConfigError(f"{name} = {options[name]!r}: a search gives all candidates one "
                              f"value of an option; several are a choice: put them into space")
    return with_monitor({**options, **options_of_data(data, validation, normalise)}, monitor)


# -- data ------------------------------------------------------------------------------------------


def is_array(data: Any) -> bool:
    """Whether a program gives the data themselves, not the name of a file or directory."""
    return data is not None and not isinstance(data, str | os.PathLike)


def options_of_data(data: Any, validation: Any, normalise: Any) -> dict[str, Any]:
    """The options of Config among these; none where they are arrays."""
    given = {"data": data, "validation": validation, "normalise": normalise}
    return {} if is_array(data) else {k: v for k, v in given.items() if v is not None}


def _source(data: Any, config: Config, validation: Any, normalise: Any, kind: Lists,
            notify: Callable[[str], None]) -> Source:
    arrays = is_array(data)
    found, exact = load(data if arrays else None, config, validation if arrays else None,
                        normalise if arrays else None, kind, notify)
    if arrays:
        for note in found.notes:
            notify(note)
    if config.autoencoder:
        found = found.reconstructing()
    return Source(found, normalise if arrays else None, exact, arrays)


# -- going on --------------------------------------------------------------------------------------


def continue_from(path: str | os.PathLike[str], data: Any, validation: Any, listener: object,
                  options: dict[str, Any], team: Team | None = None,
                  communicator: Any = None) -> Many:
    """Train on what a file holds; see `ended`. Raises CheckpointError, ConfigError, DataError."""
    allowed = ("epochs", "save", "save_every", "keep", "device")
    for name in options:
        if name not in allowed:
            only = f"with resume give only {', '.join(allowed)}, data, validation and listener"
            raise ConfigError(f"{name} is stored in the checkpoint: {only}"
                              if name in Config.known() else f"{name} plays no part here: {only}")
    check_path("resume", path)
    path = os.path.expanduser(path)
    messages: list[str] = []
    file, stored = many_checkpoint.find(path, messages.append)
    options = dict(options)
    epochs = options.pop("epochs", None)
    if "save" not in options and os.path.isdir(path) and stored.settings.get("save_every"):
        options |= {"save": os.fspath(path),
                    "save_every": options.get("save_every", stored.settings["save_every"])}
    arrays = is_array(data)
    if data is None and "dataset" not in stored.configs[0]:
        raise ConfigError(f"{file} was trained on arrays of a Python program, which no checkpoint "
                          f"holds: give them, as in train_many(data=(X, y), resume={str(path)!r})")
    if data is not None and not arrays:
        options["data"] = data
    messages.append(f"continuing from {file}, epoch {stored.epoch}")

    def source_of(config: Config, notify: Callable[[str], None]) -> Source:
        known = stored.normalisations[0] if arrays and not stored.settings["lists"] \
            and not isinstance(data, Dataset) else None
        found = _source(data if arrays else None, _splitting(config, stored.settings), validation,
                        known, stored.settings["lists"], notify)
        other = differences(stored.settings["data"], identity_of(found.data))
        if other:
            raise ConfigError(f"the data are not those that {file} was trained on: "
                              f"{'; '.join(other[:2])}; give the same")
        return found

    return _go_on(stored, source_of, listener, options, epochs, None, messages, 5, team,
                  communicator)


def _go_on(stored: ManyCheckpoint, source_of: Callable[..., Source], listener: object,
           options: dict[str, Any], epochs: int | None, members: Iterable[int] | None,
           messages: Sequence[str], stacklevel: int, team: Team | None = None,
           communicator: Any = None) -> Many:
    settings = stored.settings
    if epochs is not None and (isinstance(epochs, bool) or not isinstance(epochs, int | np.integer)
                               or epochs < 1):
        raise ConfigError(f"epochs = {epochs!r}: it must be a whole number of at least 1")
    more = {} if epochs is None else {"epochs": int(epochs)}
    lists_of_config = 1 + int(stored.fold.max())
    configs = [Config(**{**c, "batch": batch, "partial": partial, **options, **more})
               for c, (batch, partial) in zip(stored.configs[::lists_of_config],
                                              settings["asked"], strict=True)]
    config = configs[0]
    team = team or parallel.join(config, communicator=communicator)
    with ManyRun(config, listeners_of(listener), team) as run:
        run.start_opening()
        for message in messages:
            run.notify(message)
        run.open(stacklevel)
        source = source_of(config, run.notify)
        lists = Folds(stored.rows, stored.held_out, settings["folds"], settings["repeats"])
        every = config.save_every if config.save is not None else None
        rules = Rules(settings["patience"], settings["min_delta"], settings["monitor"],
                      settings["halving"], tuple(settings["rungs"]), every)
        again = members_of(configs, lists, source.data, None, source.exact,
                           (stored.normalisations, stored.target_normalisations))
        if run.opened.device is None:
            again = _on_host(again, run)
        own = np.array([c.epochs for c in again.configs])
        progress = Progress.of(stored.run, int(own.max()))
        _reactivate(progress, own, members)
        run.prepare(again, lists, source, dict(settings), rules, progress, stored)
        return run.train()


def _on_host(members: Members, run: ManyRun) -> Members:
    """The members with the toggles for a GPU alone left out, of a run that may have been begun on
    one; sentences say which."""
    for group in members.groups:
        config, recipe = group.config, group.config.recipe()
        found = select(config.opt, config.network(), recipe.steps(group.examples),
                       run.opened.machine, batch=recipe.batch, lenient=True, recipe=recipe,
                       data_spec=data_spec_of(group.dataset, "train"))
        if sentence := continued_on_host(found):
            run.notify(sentence)
    return replace(members, groups=tuple(replace(g, is_lenient=True) for g in members.groups))


def _splitting(config: Config, settings: dict[str, Any]) -> Config:
    """The configuration with the split of the run before."""
    split = settings["data"].get("split")
    if not split:
        return config
    return replace(config, validation=float(split[0]), seed=int(split[1]))


def _reactivate(progress: Progress, own: Any, members: Iterable[int] | None) -> None:
    """Let members go on: those of these numbers, or all that finished or were interrupted;
    others that were interrupted are paused. Raises ConfigError where none has an epoch left."""
    if members is None:
        chosen = np.isin(progress.status, [Status.ACTIVE, Status.FINISHED, Status.PAUSED])
    else:
        numbers = member_numbers(members)
        if not numbers:
            raise ConfigError("members is empty: name one or more, or leave it out for all")
        bad = [i for i in numbers if not 0 <= i < len(own)]
        if bad:
            raise ConfigError(f"members has {bad[0]}, but there are the members 0 to "
                              f"{len(own) - 1}")
        chosen = np.isin(np.arange(len(own)), numbers)
        waiting = (progress.status == Status.ACTIVE) & ~chosen
        progress.status[waiting] = Status.PAUSED
        progress.waited[chosen] = 0
    goes_on = chosen & (progress.epoch < own) & (progress.status != Status.DIVERGED)
    if not goes_on.any():
        raise ConfigError(f"no member has epochs left: to go on, ask for more than the "
                          f"{int(progress.epoch.max())} epochs that they have behind them")
    progress.status[goes_on] = Status.ACTIVE


def resumed(stored: ManyCheckpoint, source: Source, epochs: int | None,
            members: Iterable[int] | None, options: dict[str, Any]) -> Many:
    """`Many.resume`, with the data still here."""
    allowed = ("listener", "save", "save_every", "keep", "device")
    for name in options:
        if name not in allowed:
            raise ConfigError(f"{name} cannot be changed in the midst of training: give only "
                              f"epochs, members, {', '.join(allowed)}")
    options = dict(options)
    listener = options.pop("listener", ())
    return ended(_go_on(stored, lambda config, notify: source, listener, options, epochs, members,
                         (), 6))


def ended(many: Many) -> Many:
    """End the process as a signal other than Ctrl-C would have. A RuntimeWarning, of the caller two
    frames up, says that all members have diverged."""
    end_by(many.signal)
    if sentence := divergence_of(many):
        warnings.warn(sentence, RuntimeWarning, stacklevel=3)
    return many


def divergence_of(many: Many) -> str:
    """What to do where every member's loss became NaN or infinite, else ""."""
    if many.interrupted or final_epochs(many).any():
        return ""
    first = many[0]
    return f"every network's loss became NaN or infinite: " \
           f"{large_values(first.dataset, first.config.network())}use smaller learning rates"
