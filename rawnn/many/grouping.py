"""From configurations and lists of rows to members, and to groups that compile alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rawnn.common.errors import ConfigError
from rawnn.data import Dataset
from rawnn.data.arrays import Pair, split_rows
from rawnn.data.columns import read_answers
from rawnn.data.dlpack import DeviceArray
from rawnn.data.normalise import (
    Normalisation,
    Normalise,
    NormaliseTargets,
    TargetNormalisation,
)
from rawnn.engine.config import Config
from rawnn.engine.data_source import check_fit, given, named, settled
from rawnn.many.folds import Folds
from rawnn.many.members import Group, Rows, group_key
from rawnn.many.variation import without_keeping

Lists = Literal["", "rows", "folds"]
"""Which lists of rows members have: none, own training rows, or those of folds and the rows that
each holds out."""


@dataclass(frozen=True, eq=False)
class Members:
    """All members, in the order of configurations and, faster, of lists of rows.

    configs: [N], as they are trained: batch and partial are decided.
    candidate: int32 [N], which configuration of the caller's each has; members of one candidate
        differ in their rows alone.
    fold: int32 [N], the list of rows of each; zeros without lists.
    group, place: int32 [N], the group of each, and its place there.
    groups: what compiles alike.
    """

    configs: tuple[Config, ...]
    candidate: Rows
    fold: Rows
    group: Rows
    place: Rows
    groups: tuple[Group, ...]

    def __len__(self) -> int:
        return len(self.configs)


def load(data: Any, config: Config, validation: Any, normalise: Normalise, kind: Lists,
         notify: Any) -> tuple[Dataset, NDArray[np.float64] | None]:
    """The data set, and the target values before any normalisation where each list of rows is to
    have its own. Where members are scored on "folds", all rows are in the training part, and the
    test part plays no part. Raises ConfigError and DataError."""
    plain = replace(config, normalise_targets=None) if kind else config
    if data is None or isinstance(data, str):
        dataset = named(plain, notify)
        if kind == "rows" and dataset.split is not None:
            raise ConfigError(f"rows number the rows of {dataset.name}, but part of them is split "
                              f"off for validation: give folds=[(rows, scored rows), ...]")
        return (_whole(dataset) if kind == "folds" else dataset), None
    if isinstance(data, Dataset):
        return given(data, plain, validation, normalise), None
    if not kind:
        return given(data, config, validation, normalise), None
    if kind == "rows" and (validation is None or isinstance(validation, float)):
        raise ConfigError("rows number the rows of data, none of which may be split off for "
                          "validation: give validation=(X, y), or folds=[(rows, scored rows), ...]")
    pair = Pair(*data) if isinstance(data, tuple | list) and len(data) == 2 else Pair(data)
    found = given(data, plain, data if kind == "folds" else validation, normalise)
    return found, _exact(pair.answers, config)


def _exact(answers: Any, config: Config) -> NDArray[np.float64] | None:
    """Target values [rows, outputs] as float64, where they are to be normalised."""
    if config.normalise_targets != "learned" or answers is None:
        return None
    found = read_answers(answers, "y").array
    host = found.numpy() if isinstance(found, DeviceArray) else found
    exact: NDArray[np.float64] = host.reshape(len(host), -1).astype(np.float64)
    return exact


def _whole(data: Dataset) -> Dataset:
    """The data set with the rows that were split off for testing back in their places, and all rows
    as its test part, too. A test part that was given by itself is left out."""
    if data.split is None:
        return data
    count = len(data.train_images) + len(data.test_images)
    places = np.argsort(np.concatenate(split_rows(count, *data.split)), kind="stable")
    joined: dict[str, Any] = {}
    for kind in ("images", "labels", "targets"):
        parts = [getattr(data, f"{part}_{kind}") for part in ("train", "test")]
        if parts[0] is not None:
            joined[f"train_{kind}"] = joined[f"test_{kind}"] = np.concatenate(parts)[places]
    return replace(data, **joined, split=None, resident={})


def members_of(configs: Sequence[Config], folds: Folds, data: Dataset, normalise: Normalise,
               exact_targets: NDArray[np.float64] | None,
               fixed: tuple[tuple[Normalisation, ...],
                            tuple[TargetNormalisation | None, ...]] | None = None) -> Members:
    """The members, each configuration with each list of rows. `normalise` is what the caller asks
    for (None: what the Config says); `fixed` are the normalisations of each list where they are
    known, of a run that is continued. Raises ConfigError where one does not fit the data."""
    config = configs[0]
    if fixed is None:
        asked = config.normalise if normalise is None else normalise
        inputs = tuple(_normalisation(asked, data, rows) for rows in folds.rows) \
            or (data.normalisation,)
        wanted: NormaliseTargets = config.normalise_targets
        targets = tuple(_target_normalisation(wanted, data, exact_targets, rows)
                        for rows in folds.rows) or (data.target_normalisation,)
    else:
        inputs, targets = fixed
    sizes = [len(rows) for rows in folds.rows] or [len(data.train_images)]
    parts = {size: _of_size(data, size) for size in dict.fromkeys(sizes)}
    decided: list[Config] = []
    groups: dict[Any, list[int]] = {}
    lists = max(len(folds.rows), len(folds.held_out), 1)
    fits = set()
    for each in configs:
        known: dict[int, Config] = {}
        for fold in range(lists):
            size = sizes[fold] if folds.rows else sizes[0]
            if size not in known:
                plain = without_keeping(each)
                if (fit := (each.layers, each.loss, each.batch, each.autoencoder, size)) \
                        not in fits:
                    check_fit(plain, parts[size])
                    fits.add(fit)
                known[size], _ = settled(plain, parts[size])
            groups.setdefault(group_key(known[size]), []).append(len(decided))
            decided.append(known[size])
    group, place = np.zeros(len(decided), np.int32), np.zeros(len(decided), np.int32)
    folded = np.tile(np.arange(lists, dtype=np.int32), len(configs))
    found = []
    for number, where in enumerate(groups.values()):
        group[where], place[where] = number, np.arange(len(where))
        of_group = tuple(decided[i] for i in where)
        used = np.unique(folded[where])
        found.append(Group(
            replace(of_group[0], epochs=max(c.epochs for c in of_group)), data, of_group,
            tuple(folds.rows[i] for i in used) if folds.rows else (),
            tuple(folds.held_out[i] for i in used) if folds.held_out else (),
            np.searchsorted(used, folded[where]).astype(np.int32),
            tuple(inputs[i] for i in used) if folds.rows else inputs,
            tuple(targets[i] for i in used) if folds.rows else targets, exact_targets))
    candidate = np.repeat(np.arange(len(configs), dtype=np.int32), lists)
    return Members(tuple(decided), candidate, folded, group, place, tuple(found))


def _of_size(data: Dataset, size: int) -> Dataset:
    """The data set with so many training rows, for what depends on their number alone."""
    if size == len(data.train_images):
        return data
    rows = slice(size) if size < len(data.train_images) else \
        np.arange(size) % len(data.train_images)
    parts: dict[str, Any] = {
        name: array[rows] for name in ("train_images", "train_labels", "train_targets")
        if (array := getattr(data, name)) is not None}
    return replace(data, **parts, resident={})


def _normalisation(asked: Normalise, data: Dataset, rows: Rows) -> Normalisation:
    """Of the inputs of a list of rows: learned from them, or that of the data set."""
    if not isinstance(asked, str) or asked != "learned":
        return data.normalisation
    return Normalisation.of("learned", data.train_images[rows], data.normalisation.scale)


def _target_normalisation(asked: NormaliseTargets, data: Dataset,
                          exact: NDArray[np.float64] | None,
                          rows: Rows) -> TargetNormalisation | None:
    if data.target_normalisation is not None or asked != "learned":
        return data.target_normalisation
    values = data.train_targets if exact is None else exact
    if values is None:
        raise ConfigError(f"normalise_targets is for target values, and {data.name} has none")
    return TargetNormalisation.of("learned", values[rows])
