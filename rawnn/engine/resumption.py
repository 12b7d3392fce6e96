"""Resuming a run: its data, their split and normalisation, the names of its classes and its state
stay those of the resumed run. A checkpoint stores all of it but the arrays."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rawnn.common.errors import CheckpointError, ConfigError, DataError
from rawnn.data import Dataset
from rawnn.data.identity import differences, identity_of
from rawnn.data.input_scale import InputScale
from rawnn.data.normalise import Normalisation, Normalise
from rawnn.engine.checkpoint import Checkpoint, check_fits, find
from rawnn.engine.config import Config
from rawnn.engine.data_source import given
from rawnn.engine.runners.prepared_run import State
from rawnn.model.layers import Network
from rawnn.model.optimizers import UPDATE_RULES
from rawnn.model.schedules import parse
from rawnn.plan.ops.epoch import count_after
from rawnn.plan.recipe import Recipe


@dataclass(frozen=True, eq=False)
class Resumption:
    """The checkpoint from which a run is resumed; `messages` for the user come from finding it."""

    path: Path
    checkpoint: Checkpoint
    messages: tuple[str, ...] = ()

    @classmethod
    def of(cls, resume: str | os.PathLike[str]) -> Resumption:
        """The checkpoint at a path. Raises CheckpointError, also for a malformed record of its
        data."""
        messages: list[str] = []
        path, checkpoint = find(resume, messages.append)
        _check_record(checkpoint.data, path)
        return cls(path, checkpoint, tuple(messages))

    @property
    def unknown(self) -> str:
        """A sentence on what an older checkpoint, or a model alone, does not record; "" for
        none."""
        if self.checkpoint.data:
            return ""
        more = "" if self._knows_options else ", nor how they were split and normalised: give " \
                                              "validation and normalise as they were"
        return f"{self.path}, which an older rawnn wrote or which is a model alone, does not say " \
               f"what its data were: whether they are the same now is not known{more}"

    @property
    def _knows_options(self) -> bool:
        """Whether its options record how the data were split and normalised. Older files do not
        for arrays."""
        return bool(self.checkpoint.data) or "dataset" in self.checkpoint.config

    # -- loading the data --------------------------------------------------------------------------
    def normalise(self, asked: Normalise) -> Normalise:
        """The normalisation of the data: that of the network's training, unless another is asked
        for, which `differs` then refuses. A model alone may have none but the default."""
        stored, before = self.checkpoint.normalisation, self.checkpoint.config.get("normalise")
        if isinstance(asked, Mapping):
            asked = Config(normalise=dict(asked)).normalise
        if asked is None or (isinstance(asked, str | dict) and asked == before):
            return stored if self.checkpoint.config or stored.mean is not None else asked
        return asked

    def loading(self, config: Config) -> dict[str, Any]:
        """Arguments of `load_dataset` that override the Config's."""
        return {"normalise": self.normalise(config.normalise), "seed": self.seed(config.seed),
                "unseen_classes": True}

    def seed(self, otherwise: int) -> int:
        """The seed that splits off the test part."""
        split = self.checkpoint.data.get("split")
        return int(split[1]) if split else otherwise

    def validation(self, asked: Any) -> Any:
        """The validation data of arrays. Raises ConfigError if the resumed run had separate
        arrays for them and this one has none."""
        data = self.checkpoint.data
        if asked is None and data and data["arrays"] and data["split"] is None:
            raise ConfigError(f"the run of {self.path} was tested on separate validation data: "
                              f"give them again, as validation=(X, y), or a fraction of other data "
                              f"with new_data=True")
        return asked

    # -- checking them -----------------------------------------------------------------------------
    def relabelled(self, data: Dataset) -> Dataset:
        """The data with the labels of the network's classes, in the dtype of its training. Raises
        DataError for a class that the network does not have."""
        stored = self.checkpoint
        if data.train_labels is None or not stored.network.loss_spec.labelled:
            return data
        names = stored.label_names or tuple(map(str, range(
            int(stored.data.get("classes", stored.network.outputs)))))
        if not (stored.data or stored.label_names or set(data.label_names) <= set(names)):
            return data  # a model alone, whose classes may have any names
        try:
            found = data.relabelled(names, stored.label_names)
        except DataError as error:
            raise DataError(f"{error}, as {self.path} stores them: give those labels the names of "
                            f"the model, leave their rows out, or train another network, without "
                            f"resume (--resume)") from None
        knows = stored.label_dtype or stored.label_names
        return replace(found, label_dtype=stored.label_dtype) if knows else found

    def differs(self, data: Dataset, new_data: bool) -> bool:
        """Whether the data are known to differ from those of the resumed run. Raises ConfigError
        if that is not allowed, or if the network cannot continue with them."""
        stored = self.checkpoint
        if not stored.data:
            return False
        if not _equal(data.normalisation, stored.normalisation):
            raise ConfigError(f"{data.name} is normalised in another way than the network of "
                              f"{self.path} was trained with ({stored.normalisation}): leave "
                              f"normalise out; a Dataset takes it as from_arrays(..., normalise="
                              f"rawnn.Model.load({os.fspath(self.path)!r}).normalisation)")
        now = identity_of(data)
        ours, theirs = now["columns"], stored.data["columns"]
        if ours != theirs and sorted(ours) == sorted(theirs):
            raise ConfigError(f"{data.name} has the columns of the run before in another order: "
                              f"bring them into the order {', '.join(theirs)}")
        found = differences(stored.data, now)
        if found and not new_data:
            raise ConfigError(f"the data are not those that {self.path} was trained on: "
                              f"{'; '.join(found[:2])}; give the same, or new_data=True "
                              f"(--new-data) to go on with these")
        scale = InputScale.stored_in(stored.data, stored.facts)
        if found and scale is not None:
            scale.check(data.train_images, f"the training inputs of {data.name}")
            scale.check(data.test_images, f"the test inputs of {data.name}")
        return bool(found)

    def check_split(self, data: Dataset, place: object) -> None:
        """Raise ConfigError if the test part of the data, read from `place`, was split off by their
        rows, and these are others now: some of that part were then trained on."""
        stored = self.checkpoint.data
        found = differences(stored, identity_of(data)) if stored.get("split") else ()
        if found:
            raise ConfigError(f"the data are not those that {self.path} was trained on: "
                              f"{'; '.join(found[:2])}; which rows it was tested on is not known "
                              f"any more: measure it on all of them, with --data {place}")


def record_of(data: Dataset, arrays: bool, scale: InputScale | None = None) -> dict[str, Any]:
    """What a checkpoint stores about the data of its run, and the `scale` of the inputs (None: that
    of these data); `arrays` says that a Python program passed them."""
    scale = scale or data.input_scale
    return {"arrays": arrays, **identity_of(data), **(scale.record() if scale else {})}


def stored_options(config: Config, arrays: bool) -> dict[str, Any]:
    """The options of a run as its checkpoint stores them: those of data that a Python program
    passed would load others."""
    options = {name: value if type(value) in _PLAIN else msgspec.to_builtins(value)
               for name, value in vars(config).items()
               if not arrays or name not in ("dataset", "data", "target")}
    return {**options, "resume": None}


_PLAIN = (bool, int, float, str, type(None))


def names_of(data: Dataset) -> dict[str, Any]:
    """The names of a data set and its columns, as a checkpoint stores them."""
    return {"dataset": data.name, "features": data.feature_names,
            **({"targets": data.target_names} if data.target_names else {})}


def resumption_of(config: Config, found: Resumption | None, new_data: bool) -> Resumption | None:
    """The checkpoint that `config.resume` names, which may already be `found`; None for a new run.
    Raises CheckpointError; ConfigError for `new_data` without `resume`."""
    if config.resume is not None:
        return found or Resumption.of(config.resume)
    if new_data:
        raise ConfigError("new_data (--new-data) has no effect without resume (--resume): give "
                          "that, too, or leave it out")
    return None


def dataset_of(data: Any, config: Config, validation: Any, normalise: Normalise,
               before: Resumption | None) -> tuple[Dataset, Config]:
    """The Dataset of what a Python program passed, split and normalised as in the run `before`,
    and the Config with these requests as far as options can express them."""
    if isinstance(data, Dataset) or before is None:
        dataset = given(data, config, validation, normalise)
    else:
        asked = config.normalise if normalise is None else normalise
        dataset = given(data, config, before.validation(validation), before.normalise(asked),
                        before.seed(config.seed), unseen_classes=True)
    options: dict[str, Any] = {} if dataset.split is None else {"validation": dataset.split[0]}
    if isinstance(normalise, str | Mapping):
        options["normalise"] = normalise
    return dataset, replace(config, **options)


def at_its_epoch(stored: Checkpoint, recipe: Recipe, updates: int) -> Checkpoint:
    """The checkpoint where a schedule, which counts steps, is at its epoch in a run of `updates`
    steps an epoch, also if those before had another number: with other steps on its clock, and an
    optimizer that counts them, too, as it was."""
    clock, steps = stored.state.get("clock"), count_after(stored.epoch * updates)
    if clock is None or parse(recipe.schedule).is_constant or int(clock[1]) in (0, steps):
        return stored
    state = {**stored.state, "clock": np.array([stored.epoch, steps], np.int32)}
    optimizer = recipe.optimizer
    rule = UPDATE_RULES[optimizer.kind]
    for name in stored.parameters if rule.recount else ():
        kept = {part: state[f"{name}.{part}"] for part in rule.keeps if f"{name}.{part}" in state}
        if rule.recount and len(kept) == len(rule.keeps):
            found = rule.recount(kept, optimizer.attributes(), int(clock[1]), steps)
            state |= {f"{name}.{part}": array for part, array in found.items()}
    return replace(stored, state=state)


def state_of(stored: Checkpoint, network: Network, now: State, updates: int, optimizer: str,
             where: str) -> State:
    """The state `now` of a runner replaced by that of the checkpoint `where`. `updates` is the
    number of steps in an epoch. Raises CheckpointError for another network or optimizer."""
    check_fits(stored, network, where)
    state: dict[str, NDArray[Any]] = {**stored.parameters}
    for name in now.keys() - state.keys():
        if name in stored.state:
            state[name] = stored.state[name]
        elif name == "clock":  # the resumed run's optimizer and schedule did not need it
            steps = count_after(stored.epoch * updates)
            state[name] = np.array([stored.epoch, steps], np.int32)
        elif name not in ("loss_scale", "overflow"):
            raise CheckpointError(f"{where} holds no '{name}': it is of another optimizer than "
                                  f"{optimizer} with these settings")
    for name, array in state.items():
        if array.shape != now[name].shape:
            raise CheckpointError(f"{where}: {name} is of shape {list(array.shape)}, but must be "
                                  f"{list(now[name].shape)}")
    return state


def what_continues(file: Path, found: Checkpoint, epochs: int, data: str) -> list[str]:
    """Sentences on the run that continues on the data set `data`. Raises ConfigError if the
    checkpoint already has the `epochs` that are asked for."""
    if found.epoch >= epochs:
        raise ConfigError(f"{file} has {found.epoch} epochs behind it: to go on, ask for more than "
                          f"--epochs {epochs}")
    before = found.facts.get("dataset", data)
    other = f"it was trained on the data set '{before}', and goes on with '{data}'"
    return [f"continuing from {file}, epoch {found.epoch}", *([other] if before != data else [])]


def _equal(a: Normalisation, b: Normalisation) -> bool:
    return all(np.array_equal(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))


def _check_record(data: Mapping[str, Any], path: Path) -> None:
    kinds = {"arrays": bool, "parts": dict, "classes": int, "label_names": list, "columns": list,
             "split": list | None, "digest": str}
    fine = all(isinstance(data.get(name, ...), kind) for name, kind in kinds.items())
    if data and not (fine and len(data["split"] or "ab") == 2):
        raise CheckpointError(f"{path} is not a valid checkpoint (its record of the data is "
                              f"malformed)")
