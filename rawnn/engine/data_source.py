"""The data set of a run: the one that its Config names, or the one that the caller passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from rawnn.common.csvformat import CsvFormat
from rawnn.common.errors import ConfigError
from rawnn.data import Dataset, from_arrays, load_dataset
from rawnn.data.catalog import is_table
from rawnn.data.dataset import outline
from rawnn.data.dataset_types import Kind
from rawnn.data.labels import check_fractions
from rawnn.data.normalise import TargetNormalisation
from rawnn.engine.config import DEFAULT_BATCH, Config, changed
from rawnn.model.schedules import parse
from rawnn.opts.select import check_text
from rawnn.plan.recipe import Recipe

ROWS = 4096  # inputs normalised at a time when they are checked
LEAST_STEPS = 8
"""A small data set is split into at least so many batches: an epoch of fewer steps learns
little."""


def named(config: Config, notify: Callable[[str], None], stand_in: bool = False,
          offline: bool = False, **instead: Any) -> Dataset:
    """Load what the Config names. Raises ConfigError and DataError; for a misspelt toggle, before
    anything is fetched or read. A resumed run may use other toggles than the Config's.

    load_dataset explains `stand_in` and `offline`; `instead` are arguments for it that override the
    Config's.
    """
    if config.resume is None:
        check_text(config.opt)
    found = load_dataset(config.dataset, config.data, **{
        "target": config.target, "fraction": config.validation, "normalise": config.normalise,
        "normalise_targets": config.normalise_targets, "outputs": config.layers[-1],
        "kind": _kind(config) if is_table(config.data) else None, "seed": config.seed,
        "notify": notify, "offline": offline, "stand_in": stand_in, "encoding": config.encoding,
        "decimal": config.decimal, "skip": config.skip, **instead})
    for note in () if is_table(config.data) else found.notes:  # a table's were sent while reading
        notify(note)
    return found


class ReadAhead:
    """Reads the data set that the Config names in a thread, while the caller opens the device.
    Nothing is downloaded: a missing GPU is reported before a download begins."""

    def __init__(self, config: Config, **instead: Any) -> None:
        """`named` explains `instead`."""
        self._messages: list[str] = []
        self._found: Dataset | None = None
        # A daemon thread: the process may end without waiting for it after another error.
        self._thread = Thread(target=self._read, args=(config, instead), name="rawnn data",
                              daemon=True)
        self._thread.start()

    def _read(self, config: Config, instead: Mapping[str, Any]) -> None:
        with suppress(Exception):  # `named` meets the same error and reports it
            self._found = named(config, self._messages.append, offline=True, **instead)

    def result(self, notify: Callable[[str], None]) -> Dataset | None:
        """The data set, after its messages went to `notify`; None if `named` has to load it."""
        self._thread.join()
        if self._found is not None:
            for message in self._messages:
                notify(message)
        return self._found


def check_validation(config: Config) -> None:
    """Raise ConfigError for a fraction of a set that has a test part of its own."""
    if config.validation != Config.validation and not is_table(config.data) \
            and config.dataset != "table":
        raise ConfigError(f"validation = {config.validation} is for a table (data = FILE.csv) or "
                          f"for arrays: {config.dataset} brings its own test set")


def check_outline(config: Config) -> None:
    """Raise ConfigError for a network that does not fit the data set that the Config names, by its
    shapes alone, if it may have to be fetched."""
    outline = outline_of(config)
    if outline is not None:
        fitted_to(config, outline)


def outline_of(config: Config) -> Dataset | None:
    """The shapes of the data set that the Config names, if it may have to be fetched; None for any
    other, and for a resumed run, which has further rules for its data."""
    return outline(config.dataset, config.data) if config.resume is None else None


def fitted(config: Config, notify: Callable[[str], None]) -> tuple[Config, Dataset]:
    """The Config completed from its data, and the data, checked to fit it. Raises ConfigError and
    DataError."""
    check_outline(config)
    return fitted_to(config, named(config, notify))


def fitted_to(config: Config, data: Dataset) -> tuple[Config, Dataset]:
    """As `fitted`, of a data set that is there."""
    if config.autoencoder:
        data = data.reconstructing()
    config, _ = settled(config, data)
    check_fit(config, data)
    return config, data


def given(data: Any, config: Config, validation: Any, normalise: Any,
          seed: int | None = None, unseen_classes: bool = False) -> Dataset:
    """A Dataset unchanged, or one made of arrays (X, y) by `from_arrays`. Arguments that are None
    come from the Config. Raises ConfigError and DataError."""
    if isinstance(data, Dataset):
        if validation is not None or normalise is not None:
            raise ConfigError("a Dataset has its own validation data and normalisation")
        found = _with_named_labels(data.checked(), config.layers[-1])
        if config.normalise_targets != "learned" or found.target_normalisation is not None:
            return found
        return found.with_targets("learned")
    option = CsvFormat(config.encoding, config.decimal, config.skip).given()
    if option and config.resume is None:
        raise ConfigError(f"{option} is for a CSV file and has no effect with arrays: leave it out")
    for name in ("target", "dataset") if config.resume is None else ():
        if getattr(config, name) != getattr(Config, name):
            raise ConfigError(f"{name} = '{getattr(config, name)}' has no effect with arrays, "
                              f"which are the data: leave it out")
    if config.autoencoder and _answers_other_than_inputs(data):
        raise ConfigError("an autoencoder reproduces its inputs, so that y would have no effect: "
                          "give X alone, or leave autoencoder out to learn y")
    return from_arrays(
        data, config.validation if validation is None else validation,
        seed=config.seed if seed is None else seed,
        normalise=config.normalise if normalise is None else normalise,
        normalise_targets=config.normalise_targets, kind=_kind(config), outputs=config.layers[-1],
        unseen_classes=unseen_classes)


def _answers_other_than_inputs(data: Any) -> bool:
    """Whether arrays (X, y) have another y than X itself."""
    return isinstance(data, tuple | list) and len(data) == 2 and data[1] is not None \
        and data[1] is not data[0]


def _with_named_labels(data: Dataset, outputs: int) -> Dataset:
    """Turn the user's labels into names of classes if some exceed the network's outputs but there
    are not too many classes, such as labels 1, 2, 3 for three outputs."""
    if not data.own or data.train_labels is None or data.test_labels is None \
            or data.label_names or data.classes <= outputs:
        return data
    parts = (data.train_labels, data.test_labels)
    found = np.unique(np.concatenate(parts))
    if len(found) > outputs or found[-1] != data.classes - 1:
        return data
    train, test = (np.searchsorted(found, part).astype(part.dtype) for part in parts)
    resident = {name: where for name, where in data.resident.items() if "labels" not in name}
    return replace(data, train_labels=train, test_labels=test, classes=len(found),
                   label_names=tuple(map(str, found.tolist())), resident=resident)


def with_targets_of(data: Dataset, before: TargetNormalisation | None,
                    where: Path) -> Dataset:
    """The data with their target values normalised as in the run of the checkpoint `where`.
    Raises ConfigError if only one of the two normalises them."""
    if before is None and data.target_normalisation is not None:
        raise ConfigError(f"the run of {where} did not normalise its targets, so that it cannot "
                          f"continue with normalised ones: leave normalise_targets out")
    if before is not None and data.target_normalisation is None:
        raise ConfigError(f"the run of {where} has normalised targets: continue it with "
                          f"normalise_targets = learned (--normalise-targets learned)")
    return data if before is None else data.with_targets(before)


def _check_fractions(data: Dataset) -> None:
    for part, targets, inputs in (("training", data.train_targets, data.train_images),
                                  ("test", data.test_targets, data.test_images)):
        if targets is not None:
            check_fractions(targets, f"the {part} targets")
            continue
        for start in range(0, len(inputs), ROWS):  # the targets of an autoencoder
            check_fractions(data.normalisation.apply(inputs[start : start + ROWS]),
                            f"the normalised {part} inputs")


def _kind(config: Config) -> Kind:
    """What the loss compares outputs with."""
    return "labels" if config.network().loss_spec.labelled else "values"


def settled(config: Config, data: Dataset) -> tuple[Config, str]:
    """The Config with a batch size and `partial` chosen by the data if not given, and a sentence
    on the batch size if it was reduced."""
    examples, batch, message = len(data.train_images), config.batch or DEFAULT_BATCH, ""
    if config.batch is None and examples < (LEAST_STEPS * batch if data.own else batch):
        batch = 1 << max(examples // LEAST_STEPS, 1).bit_length() - 1
        message = f"batch {batch}, since the training set has {examples:,} " \
                  f"example{'s' * (examples != 1)}; --batch sets another"
    partial = data.own if config.partial is None else config.partial
    return changed(config, batch=batch, partial=partial), message


def left_out(recipe: Recipe, examples: int) -> str:
    """The examples that an epoch omits because they fill no batch, and how to include them; "" if
    there are none."""
    count = 0 if recipe.partial else examples % recipe.batch
    if not count:
        return ""
    which = f"{count:,} an epoch" if recipe.shuffle else f"the last {count:,}"
    return f"{which} fill no batch and are left out; --partial keeps them"


def doubts(config: Config, data: Dataset) -> tuple[str, ...]:
    """Sentences on what of a run is hardly meant: outputs without a class, and a warm-up that does
    not end."""
    warmup = parse(config.schedule).unfinished_warmup(config.epochs)
    return tuple(filter(None, (spare_outputs(config, data), warmup)))


def spare_outputs(config: Config, data: Dataset) -> str:
    """A sentence on outputs for which the data have no class; "" if there are none."""
    spare = config.layers[-1] - data.outputs
    return f"the network has {spare} more output{'s' if spare > 1 else ''} than {data.name} has " \
           f"classes ({data.outputs}): nothing is learned there but to stay low" \
        if spare > 0 else ""


def check_fit(config: Config, data: Dataset) -> None:
    """Raise ConfigError unless network, batch and data fit each other."""
    features, outputs = config.layers[0], config.layers[-1]
    if features != data.features:
        raise ConfigError(f"the network takes {features} features, but {data.name} has "
                          f"{data.features}: use --layers {data.features}-...-{data.outputs}")
    answers = config.network().loss_spec
    labelled = answers.labelled
    if labelled and data.autoencoder and not config.autoencoder:
        raise ConfigError(f"the loss {config.loss} compares with class labels, but {data.name} has "
                          f"none: they are the array y of an .npz file, or what --target names; "
                          f"--loss mse --autoencoder reproduces the inputs")
    if labelled and data.train_labels is None:
        raise ConfigError(f"the loss {config.loss} compares with class labels, but {data.name} has "
                          f"target values: use --loss mse or --loss bce")
    if not labelled and data.train_targets is None and not data.autoencoder:
        raise ConfigError(f"the loss {config.loss} compares with target values, but {data.name} "
                          f"has class labels: use --loss cross_entropy, or give targets")
    if data.target_normalisation is not None and not answers.unit_power:
        raise ConfigError(f"the targets of {data.name} are normalised, but the loss {config.loss} "
                          f"compares with others: use --loss mse, or targets as they are")
    if answers.link == "sigmoid":
        _check_fractions(data)
    if outputs < data.outputs or (not labelled and outputs != data.outputs):
        raise ConfigError(f"the network ends in {outputs} outputs, but {data.name} has "
                          f"{data.outputs}: use --layers {features}-...-{data.outputs}")
    examples = len(data.train_images)
    if config.batch is not None and config.batch > examples:
        raise ConfigError(f"batch = {config.batch} is larger than the training set ({examples} "
                          f"examples): use --batch {examples} or less")
