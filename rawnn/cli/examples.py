"""The examples on which a stored model is evaluated, or for which it predicts."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.cli.screen import say
from rawnn.common.csvformat import CsvFormat, joined_columns
from rawnn.common.errors import ConfigError, DataError
from rawnn.data import load_dataset
from rawnn.data.catalog import is_table
from rawnn.data.columns import NamedColumns
from rawnn.data.dataset_types import Kind
from rawnn.data.precision import check_finite
from rawnn.data.tables import Table, read_table
from rawnn.engine.checkpoint import Checkpoint, check_data_found
from rawnn.engine.machine import open_device
from rawnn.engine.resumption import Resumption

_OWN_SET = ("dataset", "data", "target", "validation", "seed")
_FORMAT = ("encoding", "decimal", "skip")


@dataclass(frozen=True)
class Examples:
    """`inputs` [N, ...] and, if known, `answers`: labels, names of labels, or values. `source`
    describes them."""

    inputs: NDArray[Any]
    answers: Any
    source: str


def device_for(wanted: str) -> str:
    """"auto" as the GPU or, with a sentence why, the host; every other device as it is."""
    if wanted != "auto":
        return wanted
    with open_device(wanted, say) as opened:
        if opened.device is not None:
            return "gpu"
    say(f"running on the host: {opened.machine.no_gpu}")
    return "host"


def own_examples(found: Checkpoint, where: str) -> Examples:
    """The test set of the run that wrote the checkpoint. Raises ConfigError if it names none."""
    if "dataset" not in found.config:
        raise ConfigError(f"{where} does not say what it was trained on: name the examples with "
                          f"--data or --dataset")
    config = {key: found.config.get(key) for key in _OWN_SET}
    before = Resumption(Path(where), found)
    check_data_found(where, config["data"], "measure it")
    data = load_dataset(
        str(config["dataset"]), config["data"], target=config["target"],
        normalise=found.normalisation, fraction=float(config["validation"] or 0.2),
        seed=before.seed(int(config["seed"] or 0)),
        kind=_kind(found) if is_table(config["data"]) else None, notify=say,
        outputs=found.network.outputs, unseen_classes=True, stand_in=True,
        normalise_targets=found.target_normalisation, **_format(found, {}))
    data = before.relabelled(data)
    before.check_split(data, config["data"])
    answers: NDArray[Any] | None = data.test_labels
    if data.test_targets is not None:
        undone = data.target_normalisation
        answers = data.test_targets if undone is None else undone.undo(data.test_targets)
    elif answers is not None and found.label_names:
        answers = np.asarray(data.label_names)[answers]
    if found.config.get("autoencoder"):
        answers = None
    return Examples(data.test_images, answers, f"the test set of {data.name}, from {data.source}")


def _format(found: Checkpoint, asked: Mapping[str, str | None]) -> dict[str, Any]:
    """The format of a CSV file: as given, else as in training."""
    before = {name: found.config[name] for name in _FORMAT if found.config.get(name) is not None}
    return {**before, **{name: value for name, value in asked.items() if value is not None}}


def given_examples(found: Checkpoint, dataset: str | None, path: str | None,
                   target: str | None, csv_options: Mapping[str, str | None]) -> Examples:
    """The examples that the user named: every row of a table (or its test part, if it has one), or
    the test set of an IDX set."""
    if path is None or not is_table(path):
        own: dict[str, Any] = {k: v for k, v in csv_options.items() if v is not None}
        data = load_dataset(dataset or "idx", path, target=target, notify=say, stand_in=True, **own)
        labels = data.test_labels if _kind(found) == "labels" else None
        return Examples(data.test_images, labels,
                        f"the test set of {data.name}, from {data.source}")
    table = _table(found, path, target, csv_options)
    for note in table.notes:
        say(note)
    inputs, answers = (table.inputs, table.answers) if table.test is None else table.test
    if inputs.ndim < 2 or not len(inputs):
        raise DataError(f"{path}: the inputs are of shape {list(inputs.shape)}, but must be "
                        f"[examples, ...]")
    if inputs.dtype.kind == "f":
        check_finite(inputs.reshape(len(inputs), -1), f"{path}: the inputs")
    if target is None and found.config.get("autoencoder"):
        answers = None  # a target of training, or y, is compared with nothing
    if answers is not None and answers.dtype.kind in "iu" and found.label_names \
            and not path.lower().endswith(".npz"):
        answers = answers.astype(str)  # numbers that are names of classes
    names = table.target_names  # several values are found by them, in the order of training
    return Examples(inputs, NamedColumns(answers, names) if answers is not None and len(names) > 1
                    else answers, path)


def _table(found: Checkpoint, path: str, target: str | None,
           asked: Mapping[str, str | None]) -> Table:
    """The table, with the columns that the network was trained on if both have a header. Without a
    target, the target of training is left out of the inputs if it is there, and so are the columns
    that training skipped."""
    kind, features = _kind(found), tuple(map(str, found.facts.get("features", ())))
    if path.lower().endswith(".npz"):
        own = CsvFormat(**{k: v for k, v in asked.items() if v is not None})
        return read_table(path, target, kind, features, own)
    as_trained = CsvFormat(**_format(found, asked))
    whole = as_trained if asked.get("skip") else replace(as_trained, skip=None)
    before = found.config.get("target") if target is None else target
    names = found.facts.get("targets") if target is None else None
    named = joined_columns(names) if names else before
    for columns, csv_format in ((named, as_trained), (before, as_trained), (target, as_trained),
                                (named, whole), (before, whole)):
        # An index of training means another column here, if there are names: its errors, too.
        by_index = columns != named and columns != target
        with contextlib.suppress(*(ConfigError, DataError)[: 1 + by_index]):
            table = read_table(path, columns, kind, features, csv_format, True, exact=True)
            if table.inputs.shape[1] == found.network.layers[0] \
                    and not (by_index and table.feature_names):
                return table
    return read_table(path, target, kind, features, whole, True, exact=True)


def _kind(found: Checkpoint) -> Kind:
    return "labels" if found.network.loss_spec.labelled else "values"
