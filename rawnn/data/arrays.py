"""Data sets from arrays: NumPy's, or those of any library that shares its memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rawnn.common.random import permutation
from rawnn.data.base import (
    DEFAULT_FRACTION,
    INPUT_TYPES,
    LABEL_TYPES,
    Dataset,
    Kind,
    Labels,
)
from rawnn.data.dlpack import DeviceArray, read
from rawnn.data.normalise import (
    Normalisation,
    Normalise,
    NormaliseTargets,
    TargetNormalisation,
)
from rawnn.errors import ConfigError, DataError

if TYPE_CHECKING:
    from rawnn.device.cuda.device import Device

ROW_BYTES = 16  # what rows of a matrix are padded to on the device
_EXACT = 2**24  # up to here float32 holds every integer
_CHUNK = 1 << 22  # elements checked at a time
_SPLIT = 2**32 - 1  # the epoch whose order splits a set: no run gets that far


class Pair(NamedTuple):
    """Inputs [N, ...] and what belongs to them: labels [N], values [N] or [N, C], or None."""

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
    seed: int = 0,
    name: str = "arrays",
    source: str = "arrays of the caller",
    device: Device | None = None,
) -> Dataset:
    """A Dataset of `data` = (X, y), tested on `validation` = (Xv, yv), or on a fraction of `data`
    that is taken out of it by a permutation that depends on `seed` alone.

    X is [N, ...], flattened to [N, features]: uint8, float16 and float32 stay as they are, other
    numbers become float32. Whole numbers and strings in y are class labels, other numbers (and
    anything of two dimensions) are values to be reached; `kind` decides where that guess is wrong.
    Without y the network is to reproduce its (normalised) inputs. `normalise` is explained at
    `Normalisation.of`, `normalise_targets` at `TargetNormalisation.of`. `classes` and `label_names`
    are found in the training labels if not given.

    Arrays may be NumPy's or have `__dlpack__` or `__cuda_array_interface__`. Host memory is shared,
    not copied, where type and layout allow; CUDA arrays are copied to the host once, to be
    checked, and are trained on in place where the engine can (`Dataset.resident`). They must not be
    written while they are in use. `device` is their GPU where it is open already.

    Raises DataError for data that cannot be used, ConfigError for arguments that cannot.
    """
    train = _pair(data, "data")
    notes: list[str] = []
    split = isinstance(validation, int | float) and not isinstance(validation, bool)
    reader = _Reader(device, notes)
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
        x, xt = (reader.converted(a, f"the {w} inputs") for a, w in
                 ((x, "training"), (xt, "validation")))
    normalisation = Normalisation.of(normalise, x)
    if (train.answers is None) != (test.answers is None):
        raise ConfigError("give y to both the training and the validation data, or to neither")
    made = Dataset(name, x, None, xt, None, 0, shape, source, False, normalisation=normalisation,
                   autoencoder=train.answers is None, own=True,
                   split=(float(validation), seed) if split else None,
                   given_types=reader.given_types)
    if train.answers is not None:
        made = reader.answered(made, train.answers, test.answers, kind, classes, label_names,
                               known=2 if split else 1, normalise_targets=normalise_targets)
    elif normalise_targets not in (None, "none"):
        made.with_targets(normalise_targets)  # which says why not
    return replace(made, notes=tuple(notes), resident=reader.resident)


def _pair(data: Any, name: str) -> Pair:
    if isinstance(data, tuple | list):
        if len(data) != 2:
            raise ConfigError(f"{name} must be (X, y), not {len(data)} arrays")
        return Pair(*data)
    return Pair(data)


def _rows(array: Any, name: str) -> int:
    if not array.shape:
        raise DataError(f"{name} is a single number, not an array")
    return int(array.shape[0])


def split_rows(count: int, fraction: float, seed: int) -> tuple[NDArray[np.int32],
                                                                NDArray[np.int32]]:
    """Rows for training and for validation, each in ascending order; the second holds `fraction`
    of them, rounded, at least one and not all. Raises DataError for fewer than two rows."""
    if count < 2:
        raise DataError("a single example cannot be split into training and validation" if count
                        else "there is no example to split into training and validation")
    size = min(max(round(count * fraction), 1), count - 1)
    order = permutation(seed, _SPLIT, count)
    return np.sort(order[size:]), np.sort(order[:size])


@dataclass
class _Reader:
    """Reads and checks arrays one by one; remembers which of them lie on a GPU too."""

    device: Device | None
    notes: list[str]
    resident: dict[str, DeviceArray] = field(default_factory=dict)
    rows: dict[str, NDArray[np.int32]] = field(default_factory=dict)
    given_types: dict[str, str] = field(default_factory=dict)

    def split(self, pair: Pair, fraction: float, seed: int) -> tuple[Pair, Pair]:
        """The pair for training and that for validation, of whose rows it remembers the places."""
        if not 0 < fraction < 1:
            raise ConfigError(f"validation = {fraction:g}: the fraction must lie between 0 and 1")
        arrays = []
        for array, name in ((pair.inputs, "X"), (pair.answers, "y")):
            found = None if array is None and name == "y" else read(array, name)
            if isinstance(found, DeviceArray):
                self.notes.append(f"{name} is copied from the GPU, since part of its rows are "
                                  f"taken out for validation: give validation=(X, y) to train on "
                                  f"it in place")
                found = found.numpy(self.device)
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

    def _places(self, name: str) -> Rows:
        """Where the rows of what is called so stand in what the caller gave."""
        return self.rows.get(name)

    def _host(self, array: Any, key: str, name: str) -> NDArray[Any]:
        found = read(array, name)
        if isinstance(found, DeviceArray):
            _rows(found, name)
            self.resident[key] = found
            return found.numpy(self.device)
        return found

    def _copied(self, key: str, note: str) -> None:
        self.notes.append(note)
        self.resident.pop(key, None)

    def inputs(self, array: Any, key: str, name: str) -> tuple[NDArray[Any], tuple[int, ...]]:
        """[N, features] of an input type, and the shape of one example."""
        host = self._host(array, key, name)
        if host.ndim < 2:
            raise DataError(f"{name} are of shape {list(host.shape)}, but must be [examples, "
                            f"features], or [examples, ...] to be flattened")
        if 0 in host.shape:
            raise DataError(f"{name} are empty: their shape is {list(host.shape)}")
        flat = host.reshape(len(host), -1)
        given = flat.dtype
        self.given_types[key] = given.name
        if given.name not in INPUT_TYPES:
            flat = self.converted(flat, name)
            self._copied(key, f"{name} are converted from {given} to float32")
        elif not (flat.flags.c_contiguous and flat.dtype.isnative):
            flat = np.ascontiguousarray(flat, flat.dtype.newbyteorder("="))
            self._copied(key, f"{name} are copied, since their rows are not contiguous in memory")
        elif key in self.resident:
            self._check_rows(key, name)
        if flat.dtype.kind == "f":
            check_finite(flat, name, self._places(name))
        return flat, host.shape[1:]

    def _check_rows(self, key: str, name: str) -> None:
        """Kernels read rows that are padded to 16 bytes, and to no more."""
        found = self.resident[key]
        size = found.dtype.itemsize
        wanted = -(-math.prod(found.shape[1:]) * size // ROW_BYTES) * ROW_BYTES
        if found.address % ROW_BYTES or found.pitch * size != wanted:
            self._copied(key, f"{name} are copied on the GPU: kernels read rows of {wanted} bytes "
                              f"at multiples of {ROW_BYTES}, but theirs are {found.pitch * size} "
                              f"bytes apart")

    def converted(self, array: NDArray[Any], name: str) -> NDArray[np.float32]:
        """As float32. Raises DataError where it cannot hold the values."""
        if array.dtype == np.float32:
            return array
        kind = array.dtype.kind
        if kind not in "biuf" and array.dtype.name != "bfloat16":
            raise DataError(f"{name} are of type {array.dtype}: only numbers can be trained on")
        if kind in "iu" and array.dtype.itemsize > 2 and array.size \
                and max(abs(int(array.min())), abs(int(array.max()))) > _EXACT:
            raise DataError(f"{name} hold integers beyond {_EXACT:,}, which float32 cannot tell "
                            f"apart: scale them first")
        with np.errstate(over="ignore"):
            made = np.ascontiguousarray(array, np.float32)
        if kind == "f":
            bad = np.isinf(made) & np.isfinite(array)
            if bad.any():
                row, column = np.argwhere(bad.reshape(len(array), -1))[0]
                raise DataError(f"{name}: the value in row {_place(row, self._places(name))}, "
                                f"column {column} is too large for float32")
        return made

    def answered(self, made: Dataset, train: Any, test: Any, kind: Kind | None,
                 classes: int | None, label_names: Sequence[str], known: int,
                 normalise_targets: NormaliseTargets = None) -> Dataset:
        """`made` with labels or targets. Classes are found in the first `known` of the parts."""
        found = []
        for array, part, inputs in ((train, "train", made.train_images),
                                    (test, "test", made.test_images)):
            name = "the training" if part == "train" else "the validation"
            given = read(array, f"{name} y")
            host = given.numpy(self.device) if isinstance(given, DeviceArray) else given
            if _rows(host, f"{name} y") != len(inputs):
                raise DataError(f"{name} inputs have {len(inputs):,} rows, but {name} y has "
                                f"{len(host):,}")
            found.append((given, host, name, part))
        exact = normalise_targets not in (None, "none")
        as_labels = not exact and _has_labels(found[0][1]) if kind is None else kind == "labels"
        if not as_labels:
            targets = [self._values(*each, exact) for each in found]
            if targets[0].shape[1] != targets[1].shape[1]:
                raise DataError(f"the training y has {targets[0].shape[1]} columns, but the "
                                f"validation y has {targets[1].shape[1]}")
            normalisation = TargetNormalisation.of(normalise_targets, targets[0])
            if normalisation is not None:
                targets = [normalisation.apply(values) for values in targets]
            return replace(made, train_targets=targets[0], test_targets=targets[1],
                           target_normalisation=normalisation)
        if exact:
            made.with_targets(normalise_targets)  # which says why not
        hosts = [_flat(host, name, self._places(name)) for _, host, name, _ in found]
        names = tuple(map(str, label_names))
        if hosts[0].dtype.kind in "USO":
            names = names or tuple(sorted({str(v) for h in hosts[:known] for v in h.tolist()}))
            hosts = [label_indices(h, names, f"{n} labels", self._places(n)) for h, (_, _, n, _) in
                     zip(hosts, found, strict=True)]
        classes = classes or len(names) or 1 + max(int(h.max()) for h in hosts[:known])
        if names and len(names) != classes:
            raise ConfigError(f"there are {len(names)} label names, but {classes} classes")
        labels = [self._labels(given, host, classes, f"{name} labels", f"{part}_labels")
                  for host, (given, _, name, part) in zip(hosts, found, strict=True)]
        return replace(made, train_labels=labels[0], test_labels=labels[1], classes=classes,
                       label_names=names)

    def _values(self, given: Any, host: NDArray[Any], name: str, part: str,
                exact: bool = False) -> NDArray[Any]:
        """[N, outputs] as float32, or as float64 where they are still to be normalised."""
        if host.ndim > 2 or 0 in host.shape:
            raise DataError(f"{name} y is of shape {list(host.shape)}, but values must be "
                            f"[examples] or [examples, outputs]")
        key, values = f"{part}_targets", host.reshape(len(host), -1)
        if exact and (values.dtype.kind in "biu" or values.dtype == np.float64):
            made: NDArray[Any] = values.astype(np.float64)
            self.converted(made, f"{name} values")  # refuses what float32 cannot hold
        else:
            made = self.converted(values, f"{name} values")
        if made.dtype == np.float32 != host.dtype:
            self.notes.append(f"{name} values are converted from {host.dtype} to float32")
        made = np.ascontiguousarray(made)
        check_finite(made, f"{name} values", self._places(name))
        if isinstance(given, DeviceArray) and exact:
            self.notes.append(f"{name} values are copied from the GPU, since they are normalised")
        elif isinstance(given, DeviceArray) and given.dtype == np.float32:
            self.resident[key] = given
        return made

    def _labels(self, given: Any, host: NDArray[Any], classes: int, name: str,
                key: str) -> Labels:
        check_labels(host, classes, name, self._places(name))
        if host.dtype.name in LABEL_TYPES:
            if isinstance(given, DeviceArray):
                self.resident[key] = given
            return np.ascontiguousarray(host)
        return host.astype(np.uint8 if classes <= 256 else np.int32)


def _has_labels(array: NDArray[Any]) -> bool:
    one_column = array.ndim == 1 or (array.ndim == 2 and array.shape[1] == 1)
    return one_column and array.dtype.kind in "biuUSO"


Rows: TypeAlias = NDArray[np.int32] | None
"""Where each row stood in the caller's array, of which it is a part; None: in the same place."""


def _place(row: int, rows: Rows) -> int:
    return int(row if rows is None else rows[row])


def _flat(array: NDArray[Any], name: str, rows: Rows) -> NDArray[Any]:
    if array.size != len(array):
        raise DataError(f"{name} labels are of shape {list(array.shape)}, but must be one for each "
                        f"example: [examples]")
    flat = array.reshape(-1)
    if flat.dtype.kind == "f":
        bad = np.flatnonzero(flat != np.floor(flat))
        if bad.size:
            raise DataError(f"{name} label in row {_place(bad[0], rows)} is {flat[bad[0]]:g}, but "
                            f"labels are whole numbers from 0")
        return flat.astype(np.int64)
    return flat


def label_indices(labels: NDArray[Any], names: Sequence[str], what: str,
                  rows: Rows = None) -> NDArray[np.int32]:
    """The place of each label in `names`. Raises DataError for one that is not there."""
    places = {name: place for place, name in enumerate(names)}
    found = np.empty(len(labels), np.int32)
    for row, label in enumerate(labels.tolist()):
        place = places.get(str(label))
        if place is None:
            shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            raise DataError(f"{what}: row {_place(row, rows)} has the label '{label}', but the "
                            f"classes are {shown}")
        found[row] = place
    return found


def check_labels(labels: NDArray[Any], classes: int, name: str, rows: Rows = None) -> None:
    """Raise DataError unless each label is a whole number in 0 .. classes - 1."""
    if labels.dtype.kind not in "biu":
        raise DataError(f"{name} are of type {labels.dtype}, but labels are whole numbers from 0")
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0:
        row = int(np.argmax(labels < 0))
        raise DataError(f"{name}: row {_place(row, rows)} has the label {int(labels[row])}, but "
                        f"labels run from 0 to {classes - 1}")
    if highest >= classes:
        row = int(np.argmax(labels >= classes))
        raise DataError(f"{name}: row {_place(row, rows)} has the label {int(labels[row])}, but "
                        f"labels run from 0 to {classes - 1}")


def check_fractions(array: NDArray[Any], name: str) -> None:
    """Raise DataError unless every value lies in 0 .. 1, as binary cross-entropy needs it."""
    low, high = (float(found) for found in (array.min(), array.max()))
    if low < 0 or high > 1:
        raise DataError(f"{name} reach from {low:g} to {high:g}, but the loss bce compares with "
                        f"numbers from 0 to 1: scale them, or use --loss mse")


def check_finite(array: NDArray[Any], name: str, places: Rows = None) -> None:
    """Raise DataError that names the first value of [N, F] that is NaN or infinite."""
    rows = max(_CHUNK // max(math.prod(array.shape[1:]), 1), 1)
    for start in range(0, len(array), rows):
        bad = ~np.isfinite(array[start : start + rows])
        if bad.any():
            row, column = np.argwhere(bad)[0]
            value = float(array[start + row, column])
            raise DataError(f"{name} hold {value} (row {_place(start + row, places)}, column "
                            f"{column}): every value must be a finite number")
