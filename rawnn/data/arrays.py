"""Data sets from arrays: NumPy's, or those of any library that shares its memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from rawnn.common.errors import ConfigError, DataError, nearest
from rawnn.common.random import permutation
from rawnn.data.columns import (
    NamedColumns,
    check_columns,
    column_text,
    fix_of,
    merged_text,
    read_answers,
    read_inputs,
)
from rawnn.data.dataset_types import (
    DEFAULT_FRACTION,
    INPUT_TYPES,
    LABEL_TYPES,
    Dataset,
    Kind,
    Labels,
)
from rawnn.data.dlpack import DeviceArray
from rawnn.data.input_scale import check_scales
from rawnn.data.labels import (
    Rows,
    check_labels,
    check_words,
    class_indices,
    class_names,
    given_labels,
    has_labels,
    place_of,
)
from rawnn.data.normalise import (
    PIXEL_SCALE,
    Normalisation,
    Normalise,
    NormaliseTargets,
    TargetNormalisation,
)
from rawnn.data.precision import as_float32, check_finite, check_overflow, merged_columns

if TYPE_CHECKING:
    from rawnn.cuda.device import Device

ROW_BYTES = 16  # alignment of a matrix's rows on the device
_TOO_WIDE = "subtract the lowest value first, leave out what is extreme, or take logarithms"
_SPLIT = 2**32 - 1  # the epoch number whose order splits a set: no run reaches it


class Pair(NamedTuple):
    """Inputs [N, ...] and their answers: labels [N], values [N] or [N, C], or None."""

    inputs: Any
    answers: Any = None


def from_arrays(
    data: Any,
    validation: Any = DEFAULT_FRACTION,
    *,
    normalise: Normalise = None,
    normalise_targets: NormaliseTargets = None,
    kind: Kind | None = None,
    classes: int | None = None,
    label_names: Sequence[str] = (),
    outputs: int | None = None,
    unseen_classes: bool = False,
    seed: int = 0,
    name: str = "arrays",
    source: str = "arrays of the caller",
    is_text: bool = False,
    device: Device | None = None,
) -> Dataset:
    """A Dataset of `data` = (X, y), tested on `validation` = (Xv, yv), or on a fraction of `data`
    that is split off by a permutation that depends only on `seed`.

    X is [N, ...], flattened to [N, features]: uint8, float16 and float32 are stored unchanged,
    other numbers become float32, after they are normalised in float64 if a mean is subtracted. It
    may be a frame of pandas or polars, a dictionary of columns, or sparse. Without y the network
    reproduces its (normalised) inputs. `Normalisation.of` explains `normalise`; uint8 inputs of
    which none exceeds 1 in training are not scaled.

    Whole numbers and strings in y are class labels, other numbers (and anything of two dimensions)
    are values to be reached; `kind` decides where that guess is wrong, and makes labels of one-hot
    rows. `normalise_targets` is explained at `TargetNormalisation.of`. `classes` and `label_names`
    are found in the training labels if not given. With `outputs`, those of a network, whole numbers
    that neither count from 0 nor all lie below `outputs` are names of classes, such as 1, 2, 3;
    without, only -1 and 1 are. `unseen_classes` finds classes in the validation labels, too: a
    trained network may know one that the training labels lack. `is_text` says that the numbers were
    read as text: then their conversion is not worth a note. `name` and `source` are words for them.

    Arrays may be NumPy's or have `__dlpack__` or `__cuda_array_interface__`. Host memory is shared
    if dtype and layout allow it. CUDA arrays are copied to the host once for checks, and used in
    place for training if the engine can (`Dataset.resident`). Arrays must not be modified while
    they are in use. `device` is their GPU if it is already open.

    Raises DataError for unusable data, ConfigError for unusable arguments.
    """
    if isinstance(validation, str | bool):
        raise ConfigError(f"validation = {validation!r}: give a fraction between 0 and 1, or the "
                          f"arrays (X, y)")
    _check_arguments(seed, classes, label_names)
    train = _pair(data, "data")
    notes: list[str] = []
    split = isinstance(validation, int | float) and not isinstance(validation, bool)
    reader = _Reader(device, notes, is_text)
    if split:
        train, test = reader.split(train, float(validation), seed)
    else:
        test = _pair(validation, "validation")
    x, shape = reader.inputs(train.inputs, "train_images", "the training inputs")
    xt, _ = reader.inputs(test.inputs, "test_images", "the validation inputs")
    if x.shape[1] != xt.shape[1]:
        raise DataError(f"the training inputs have {x.shape[1]} features, but the validation "
                        f"inputs have {xt.shape[1]}")
    if x.dtype != xt.dtype:
        if normalise is None:
            check_scales(x, xt)
        x, xt = (a.astype(np.float32) if np.can_cast(a.dtype, np.float32) else a for a in (x, xt))
    normalisation = reader.normalisation(normalise, x)
    x, xt = (reader.stored(array, normalisation, f"{part}_images", f"the {word} inputs")
             for array, part, word in ((x, "train", "training"), (xt, "test", "validation")))
    if (train.answers is None) != (test.answers is None):
        raise ConfigError("give y to both the training and the validation data, or to neither")
    made = Dataset(name, x, None, xt, None, 0, shape, source, False, normalisation=normalisation,
                   autoencoder=train.answers is None, own=True, feature_names=reader.names,
                   split=(float(validation), seed) if split else None,
                   given_types=reader.given_types)
    if train.answers is not None:
        made = reader.answered(made, train.answers, test.answers, kind, classes, label_names,
                               outputs, known=2 if split or unseen_classes else 1,
                               normalise_targets=normalise_targets)
    elif normalise_targets not in (None, "none"):
        made.with_targets(normalise_targets)  # raises the error with the reason
    return replace(made, notes=tuple(notes), cautions=tuple(reader.cautions),
                   resident=reader.resident)


def _check_arguments(seed: Any, classes: Any, label_names: Any) -> None:
    """Raise ConfigError for arguments of another type, or out of range."""
    for name, value, least in (("seed", seed, 0), ("classes", classes, 1)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer)
                                  or not least <= value < 2**63):
            raise ConfigError(f"{name} = {value!r}: it must be a whole number from {least} to "
                              f"2**63 - 1")
    if isinstance(label_names, str):
        raise ConfigError(f"label_names = {label_names!r}: give a list, one name a class")


def _pair(data: Any, name: str) -> Pair:
    if isinstance(data, tuple | list):
        if len(data) != 2:
            raise ConfigError(f"{name} must be (X, y), not {len(data)} arrays")
        return Pair(*data)
    return Pair(data)


def _rows(array: Any, name: str) -> int:
    if not array.shape:
        what = f"{type(array.item()).__name__}" if array.dtype.kind == "O" else "single number"
        raise DataError(f"{name} is a {what}, not an array")
    return int(array.shape[0])


def split_rows(count: int, fraction: float, seed: int) -> tuple[NDArray[np.int32],
                                                                NDArray[np.int32]]:
    """Rows for training and for validation, each in ascending order; the second has `fraction` of
    them, rounded, at least one and not all. Raises DataError for fewer than two rows."""
    if count < 2:
        raise DataError("a single example cannot be split into training and validation" if count
                        else "there is no example to split into training and validation")
    size = min(max(round(count * fraction), 1), count - 1)
    order = permutation(seed, _SPLIT, count)
    return np.sort(order[size:]), np.sort(order[:size])


@contextmanager
def _naming_a_class(may_be_new: bool) -> Iterator[None]:
    """Let the error of a label say how to name a class that the training labels lack."""
    try:
        yield
    except DataError as error:
        if not may_be_new:
            raise
        raise DataError(f"{error}; a class that the training labels lack needs a name: "
                        f"rawnn.from_arrays(data, validation, label_names=[...])") from None


@dataclass
class _Reader:
    """Reads and checks arrays one by one; records which of them are also on a GPU."""

    device: Device | None
    notes: list[str]
    is_text: bool = False
    cautions: list[str] = field(default_factory=list)  # of the notes
    names: tuple[str, ...] = ()  # of the features
    _features: NamedColumns | None = None  # the training inputs
    resident: dict[str, DeviceArray] = field(default_factory=dict)
    rows: dict[str, NDArray[np.int32]] = field(default_factory=dict)
    given_types: dict[str, str] = field(default_factory=dict)
    _answer_names: tuple[str, ...] = ()

    def split(self, pair: Pair, fraction: float, seed: int) -> tuple[Pair, Pair]:
        """The pairs for training and for validation; records the original rows of both."""
        if not 0 < fraction < 1:
            raise ConfigError(f"validation = {fraction:g}: the fraction must lie between 0 and 1")
        arrays = []
        for columns, name in ((self._noted(read_inputs(pair.inputs, "X")), "X"),
                              (None if pair.answers is None else
                               self._noted(read_answers(pair.answers, "y")), "y")):
            found = None if columns is None else columns.array
            if isinstance(found, DeviceArray):
                self.notes.append(f"{name} is copied from the GPU, since part of its rows are "
                                  f"taken out for validation: give validation=(X, y) to train on "
                                  f"it in place")
                found = found.numpy(self.device)
            if columns is not None and name == "X":
                self.names = columns.names
            elif columns is not None:
                self._answer_names = columns.names
            arrays.append(found)
        count = _rows(arrays[0], "X")
        if arrays[1] is not None and _rows(arrays[1], "y") != count:
            raise DataError(f"X has {count:,} rows, but y has {_rows(arrays[1], 'y'):,}")
        first, second = split_rows(count, fraction, seed)
        self.rows = {f"the {part}{what}": rows for part, rows in
                     (("training", first), ("validation", second))
                     for what in ("", " inputs", " labels", " values")}
        train, test = (Pair(*(None if a is None else a[rows] for a in arrays))
                       for rows in (first, second))
        return train, test

    def _noted(self, columns: NamedColumns) -> NamedColumns:
        self.notes += columns.notes
        self.cautions += columns.cautions
        return columns

    def _places(self, name: str) -> Rows:
        """The original rows of the array of this name."""
        return self.rows.get(name)

    def _copied(self, key: str, note: str) -> None:
        self.notes.append(note)
        self.resident.pop(key, None)

    def inputs(self, array: Any, key: str, name: str) -> tuple[NDArray[Any], tuple[int, ...]]:
        """[N, features] of numbers, and the shape of one example."""
        columns = self._noted(read_inputs(array, name))
        found = columns.array
        self._features = self._features or columns
        check_columns(name, columns, "the training inputs", self._features)
        self.names = self.names or columns.names
        if isinstance(found, DeviceArray):
            _rows(found, name)
            self.resident[key] = found
            found = found.numpy(self.device)
        host = found
        if host.ndim < 2:
            raise DataError(f"{name} are of shape {list(host.shape)}, but must be [examples, "
                            f"features], or [examples, ...] to be flattened"
                            + ("; x.reshape(-1, 1) makes one feature of it" * host.ndim))
        if 0 in host.shape:
            raise DataError(f"{name} are empty: their shape is {list(host.shape)}")
        flat = host.reshape(len(host), -1)
        self.given_types[key] = "float32" if self.is_text else flat.dtype.name
        if flat.dtype.kind not in "biuf" and flat.dtype.name != "bfloat16":
            raise DataError(f"{name} are of type {flat.dtype}: only numbers can be trained on; "
                            f"{fix_of(flat)}")
        if flat.dtype.kind == "f":
            check_finite(flat, name, self._places(name), self.names)
        return flat, host.shape[1:]

    def normalisation(self, wanted: Normalise, inputs: NDArray[Any]) -> Normalisation:
        """The normalisation of training inputs; a note says how bytes are scaled."""
        if inputs.dtype != np.uint8:
            return Normalisation.of(wanted, inputs)
        is_binary = int(inputs.max()) <= 1
        if wanted is None:
            self.notes.append("the training inputs are bytes of 0 and 1, and stay as they are; "
                              "normalise='pixels' scales them by 1/255" if is_binary else
                              "the training inputs are bytes, scaled by 1/255; normalise='none' "
                              "leaves them as they are")
        return Normalisation.of(wanted, inputs, 1.0 if is_binary else PIXEL_SCALE)

    def stored(self, flat: NDArray[Any], normalisation: Normalisation, key: str,
               name: str) -> NDArray[Any]:
        """Inputs as stored in the data set: in a dtype that the engine reads, or unchanged if they
        are normalised in float64."""
        given, stored = flat.dtype, flat
        if normalisation.is_double:
            self._check_range(flat, normalisation, name)
            if key in self.resident:
                self._copied(key, f"{name} are copied from the GPU, to be normalised in float64")
            elif given.name not in INPUT_TYPES and not self.is_text:
                self.notes.append(f"{name} are converted from {given} to float32 once they are "
                                  f"normalised in float64")
        elif given.name not in INPUT_TYPES:
            stored = as_float32(flat, name, self._places(name), self.names,
                                "normalise='learned' scales inputs in float64")
            self.resident.pop(key, None)
            if not self.is_text:
                self.notes.append(f"{name} are converted from {given} to float32")
        elif not (flat.flags.c_contiguous and flat.dtype.isnative):
            stored = np.ascontiguousarray(flat, flat.dtype.newbyteorder("="))
            self._copied(key, f"{name} are copied, since their rows are not contiguous in memory")
        elif key in self.resident:
            self._check_rows(key, name)
        if key == "train_images" and (normalisation.mean is not None or stored.dtype != given):
            self._note_merged(
                flat, normalisation.apply, name, self.names,
                "normalise='learned' computes in float64, which keeps them apart"
                if normalisation.mean is None else _TOO_WIDE)
        return stored

    def _note_merged(self, flat: NDArray[Any], rounded: Callable[[NDArray[Any]], NDArray[Any]],
                     name: str, names: Sequence[str], fix: str) -> None:
        merged = merged_columns(flat, rounded)
        if merged:
            self.cautions.append(merged_text(name, merged, names, fix))
            self.notes.append(self.cautions[-1])

    def _check_range(self, flat: NDArray[Any], normalisation: Normalisation, name: str) -> None:
        """Check that float32 can hold the normalised inputs."""
        for extreme in (flat.min(axis=0), flat.max(axis=0)):
            bad = np.flatnonzero(~np.isfinite(normalisation.apply(extreme[None])[0]))
            if bad.size:
                column = int(bad[0])
                row = int(np.argmax(flat[:, column] == extreme[column]))
                raise DataError(f"{name}: the value in row {place_of(row, self._places(name))}, "
                                f"{column_text(column, self.names)} is too large for float32 once "
                                f"it is normalised ({flat[row, column]}): leave the row out, or "
                                f"give the column a larger std")

    def _check_rows(self, key: str, name: str) -> None:
        """Check the row pitch: kernels read rows padded to exactly 16 bytes."""
        found = self.resident[key]
        size = found.dtype.itemsize
        wanted = -(-math.prod(found.shape[1:]) * size // ROW_BYTES) * ROW_BYTES
        if found.address % ROW_BYTES or found.pitch * size != wanted:
            self._copied(key, f"{name} are copied on the GPU: kernels read rows of {wanted} bytes "
                              f"at multiples of {ROW_BYTES}, but theirs are {found.pitch * size} "
                              f"bytes apart")

    def answered(self, made: Dataset, train: Any, test: Any, kind: Kind | None,
                 classes: int | None, label_names: Sequence[str], outputs: int | None,
                 known: int, normalise_targets: NormaliseTargets = None) -> Dataset:
        """`made` with labels or targets. Classes are derived from the first `known` parts."""
        found = []
        read: list[NamedColumns] = []
        for array, part, inputs in ((train, "train", made.train_images),
                                    (test, "test", made.test_images)):
            name = "the training" if part == "train" else "the validation"
            answers = self._noted(read_answers(array, f"{name} y"))
            given = answers.array
            host = given.numpy(self.device) if isinstance(given, DeviceArray) else given
            if _rows(host, f"{name} y") != len(inputs):
                raise DataError(f"{name} inputs have {len(inputs):,} rows, but {name} y has "
                                f"{len(host):,}")
            found.append((given, host, name, part))
            read.append(answers)
        numbered = all(each.integers for each in read) and any(each.names for each in read)
        columns = [each.integers if numbered else each.names or self._answer_names for each in read]
        if kind not in (None, *get_args(Kind)):
            raise ConfigError(f"kind = {kind!r}" + (nearest(str(kind), get_args(Kind))
                                                    or ": use labels or values"))
        exact = normalise_targets not in (None, "none")
        as_labels = not exact and has_labels(found[0][1]) if kind is None else kind == "labels"
        if not as_labels and (label_names or classes is not None):
            raise ConfigError("label_names and classes are of class labels, but y is values: leave "
                              "them out, or say kind='labels'")
        if not as_labels:
            check_columns("the validation y", read[1], "the training y", read[0])
            targets = [self._values(*each, names, exact) for each, names in
                       zip(found, columns, strict=True)]
            if targets[0].shape[1] != targets[1].shape[1]:
                raise DataError(f"the training y has {targets[0].shape[1]} columns, but the "
                                f"validation y has {targets[1].shape[1]}")
            normalisation = TargetNormalisation.of(normalise_targets, targets[0])
            self._note_merged_targets(found[0][1], normalisation, columns[0])
            if normalisation is not None:
                for place, (values, each, names) in enumerate(
                        zip(list(targets), found, columns, strict=True)):
                    targets[place] = normalisation.apply(values)
                    check_overflow(values, targets[place], f"{each[2]} values once normalised",
                                   self._places(each[2]), names)
            return replace(made, train_targets=targets[0], test_targets=targets[1],
                           target_names=columns[0], target_normalisation=normalisation)
        if exact:
            made.with_targets(normalise_targets)  # raises the error with the reason
        labels = [given_labels(host, name, self._places(name), names)
                  for (_, host, name, _), names in zip(found, columns, strict=True)]
        if labels[0].columns is not None:
            self.notes.append("the training y is one-hot, and taken by argmax: its columns are the "
                              "classes")
        wanted = tuple(map(str, label_names))
        twice = next((name for name in wanted if wanted.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(f"label_names has '{twice}' twice: every class needs a name of its "
                              f"own")
        for label, (_, _, name, _) in zip(labels, found, strict=True):
            check_words(label, wanted, f"{name} labels", self._places(name))
        names = class_names(labels[:known], wanted, classes, outputs)
        is_open = not (classes or wanted)  # the training labels say which classes there are
        hosts, parts = [], []
        for place, (label, (_, _, name, _)) in enumerate(zip(labels, found, strict=True)):
            with _naming_a_class(is_open and place >= known):
                hosts.append(class_indices(label, names, labels[0], f"{name} labels",
                                           self._places(name)))
        classes = classes or len(names) or labels[0].columns \
            or 1 + max(int(h.max()) for h in hosts[:known] if h.dtype.kind in "iu")
        if names and len(names) != classes:
            raise ConfigError(f"there are {len(names)} label names, but {classes} classes")
        for place, (host, (given, _, name, part)) in enumerate(zip(hosts, found, strict=True)):
            with _naming_a_class(is_open and place >= known):
                parts.append(self._labels(given, host, classes, f"{name} labels",
                                          f"{part}_labels"))
        return replace(made, train_labels=parts[0], test_labels=parts[1], classes=classes,
                       label_names=names, label_dtype=labels[0].dtype)

    def _values(self, given: Any, host: NDArray[Any], name: str, part: str,
                columns: Sequence[str], exact: bool) -> NDArray[Any]:
        """[N, outputs] as float32, or as float64 if they are still to be normalised."""
        if host.ndim > 2 or 0 in host.shape:
            raise DataError(f"{name} y is of shape {list(host.shape)}, but values must be "
                            f"[examples] or [examples, outputs]")
        flat, rows = host.reshape(len(host), -1), self._places(name)
        if flat.dtype.kind == "f":  # also where they are normalised in float64
            with np.errstate(over="ignore", under="ignore"):
                check_overflow(flat, flat.astype(np.float32), f"{name} values", rows, columns)
        if exact and (flat.dtype.kind in "biu" or (flat.dtype.kind == "f"
                                                   and flat.dtype.itemsize > 4)):
            made: NDArray[Any] = flat.astype(np.float64)
        else:
            made = as_float32(flat, f"{name} values", rows, columns,
                              "normalise_targets='learned' scales targets in float64")
        if made.dtype == np.float32 != host.dtype and not self.is_text:
            self.notes.append(f"{name} values are converted from {host.dtype} to float32")
        made = np.ascontiguousarray(made)
        check_finite(made, f"{name} values", rows, columns)
        if isinstance(given, DeviceArray) and exact:
            self.notes.append(f"{name} values are copied from the GPU, since they are normalised")
        elif isinstance(given, DeviceArray) and given.dtype == np.float32:
            self.resident[f"{part}_targets"] = given
        return made

    def _note_merged_targets(self, host: NDArray[Any], normalisation: TargetNormalisation | None,
                             names: Sequence[str]) -> None:
        flat = host.reshape(len(host), -1)
        if normalisation is not None:
            self._note_merged(flat, normalisation.apply, "the training values", names, _TOO_WIDE)
        elif not np.can_cast(flat.dtype, np.float32):
            self._note_merged(
                flat, lambda values: values.astype(np.float32), "the training values", names,
                "normalise_targets='learned' computes in float64, which keeps them apart")

    def _labels(self, given: Any, host: NDArray[Any], classes: int, name: str,
                key: str) -> Labels:
        check_labels(host, classes, name, self._places(name))
        if host.dtype.name in LABEL_TYPES:
            if isinstance(given, DeviceArray):
                self.resident[key] = given
            return np.ascontiguousarray(host)
        return host.astype(np.uint8 if classes <= 256 else np.int32)
