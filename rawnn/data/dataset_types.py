"""The data set: examples for training and testing, on the host."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rawnn.common.errors import ConfigError, DataError
from rawnn.data.dlpack import DeviceArray
from rawnn.data.input_scale import InputScale
from rawnn.data.labels import check_labels, is_text
from rawnn.data.normalise import (
    Normalisation,
    NormaliseTargets,
    TargetNormalisation,
    default_scale,
)
from rawnn.data.precision import as_float32

DEFAULT_FRACTION = 0.2
"""Fraction that is split off for testing from a set without a test part."""
INPUT_TYPES = ("uint8", "float16", "float32")
LABEL_TYPES = ("uint8", "int32")

Kind = Literal["labels", "values"]
"""What y is: class indices or names, or values."""
Inputs = NDArray[Any]  # uint8, float16 or float32 [N, features]; any numbers if `is_double`
Labels = NDArray[Any]  # uint8 or int32 [N], each in 0 .. classes - 1
Targets = NDArray[np.float32]  # [N, outputs]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples for training and testing, on the host: inputs, and labels or targets.

    With classes, `*_labels` hold their indices, `classes` is their number, `label_names` may name
    them, and `label_dtype` is the dtype of labels that were given as numbers. Otherwise labels are
    None, `classes` is 0 and `*_targets` hold the target values; those of an `autoencoder` are the
    normalised inputs, and not stored. With a `target_normalisation` the targets are normalised.

    source: where it came from, in words.
    synthetic: whether it is generated digits.
    notes: messages for the user on what was converted or copied.
    cautions: those of the notes on columns whose distinct values become equal.
    own: whether it is the user's, and no built-in set: then no example is left out by default.
    resident: the arrays ("train_images", ...) that are also on a GPU, and where.
    split: fraction and seed with which the test part was split off; None if it was given
        separately.
    given_types: the dtypes of inputs ("train_images", ...) before a conversion.

    Inputs are as the user gave them, also where the normalisation `is_double`: then the host
    normalises them in float64 before the engine reads them.

    Parameters
    ----------
    train_images, test_images
        inputs [examples, features]: uint8, float16, float32 or float64
    train_labels, test_labels
        class indices [examples], or None
    train_targets, test_targets
        float32 values [examples, outputs], or None
    image_shape
        extents of one example before it was flattened
    feature_names, target_names
        of the columns of a table, where it has any
    """

    name: str
    train_images: Inputs  # [N, features]
    train_labels: Labels | None  # [N]
    test_images: Inputs  # [M, features]
    test_labels: Labels | None  # [M]
    classes: int
    image_shape: tuple[int, ...]  # of one example, before flattening
    source: str
    synthetic: bool
    train_targets: Targets | None = None  # [N, outputs]
    test_targets: Targets | None = None  # [M, outputs]
    normalisation: Normalisation = None  # type: ignore[assignment]  # None: by the inputs' dtype
    label_names: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()  # of a table with a header
    target_names: tuple[str, ...] = ()  # of the target columns of a table
    target_normalisation: TargetNormalisation | None = None
    autoencoder: bool = False
    notes: tuple[str, ...] = ()
    own: bool = False
    resident: Mapping[str, DeviceArray] = field(default_factory=dict)
    split: tuple[float, int] | None = None
    given_types: Mapping[str, str] = field(default_factory=dict)
    label_dtype: str = ""
    cautions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.normalisation is None:
            scale = default_scale(self.train_images.dtype)
            object.__setattr__(self, "normalisation", Normalisation(scale))
        if self.train_labels is not None and not self.label_dtype and not self.label_names:
            object.__setattr__(self, "label_dtype", self.train_labels.dtype.name)
        for word in (*self.label_names, *self.feature_names, *self.target_names):
            if not is_text(word):
                raise DataError(f"{self.name}: the name {word!a} of a class or column has half "
                                f"a surrogate pair, which no text file can hold: name it otherwise")

    @cached_property
    def input_scale(self) -> InputScale | None:
        """The scale on which inputs were given, by one pass over all of them; see InputScale."""
        return InputScale.of(self)

    @property
    def features(self) -> int:
        """Number of features of an input."""
        return math.prod(self.image_shape)

    @property
    def outputs(self) -> int:
        """Number of outputs that a network for it needs: the classes, or the target columns."""
        if self.autoencoder:
            return self.features
        return self.classes if self.train_targets is None else self.train_targets.shape[1]

    def checked(self) -> Dataset:
        """The same set with arrays of the types that the engine reads. Raises DataError for arrays
        that do not fit each other: a set that was built by its constructor, or changed by
        dataclasses.replace, may have any."""
        changed: dict[str, Any] = {}
        for part, title in (("train", "training"), ("test", "test")):
            inputs, labels, targets = (getattr(self, f"{part}_{kind}")
                                       for kind in ("images", "labels", "targets"))
            what = f"the {title} inputs of {self.name}"
            _check_numbers(inputs, what, self.features)
            if inputs.dtype.name not in INPUT_TYPES and not self.normalisation.is_double:
                changed[f"{part}_images"] = as_float32(inputs, what)
            count = len(inputs)
            if targets is not None:
                what = f"the {title} targets of {self.name}"
                shape = np.shape(self.train_targets) if self.train_targets is not None else ()
                _check_numbers(targets, what, shape[1] if len(shape) == 2 else 1)
                if len(targets) != count:
                    raise DataError(f"{what} have {len(targets):,} rows, but the inputs {count:,}")
                if targets.dtype != np.float32:
                    changed[f"{part}_targets"] = as_float32(targets, what)
            elif labels is not None:
                what = f"the {title} labels of {self.name}"
                if not isinstance(labels, np.ndarray) or labels.shape != (count,):
                    raise DataError(f"{what} are of shape {list(np.shape(labels))}, but must be an "
                                    f"array {[count]}: one for each example")
                check_labels(labels, self.classes, what)
                if labels.dtype.name not in LABEL_TYPES:
                    changed[f"{part}_labels"] = labels.astype(
                        np.uint8 if self.classes <= 256 else np.int32)
        if self.label_names and len(self.label_names) != self.classes:
            raise DataError(f"{self.name} has {len(self.label_names)} label names, but "
                            f"{self.classes} classes")
        return replace(self, **changed) if changed else self

    def reconstructing(self) -> Dataset:
        """The same inputs with themselves, normalised, as targets: for an autoencoder."""
        return replace(self, train_labels=None, test_labels=None, train_targets=None,
                       test_targets=None, classes=0, label_names=(), label_dtype="",
                       target_names=(), target_normalisation=None, autoencoder=True,
                       resident=self._resident_inputs())

    def with_targets(self, wanted: NormaliseTargets) -> Dataset:
        """The same examples with target values normalised as `TargetNormalisation.of` explains; an
        earlier normalisation is inverted first. Raises ConfigError if the examples have no target
        values."""
        if self.train_targets is None or self.test_targets is None:
            what = "it is an autoencoder's, whose targets are the normalised inputs" \
                if self.autoencoder else "class labels have no mean and deviation"
            raise ConfigError(f"normalise_targets is for target values, and {self.name} has none: "
                              f"{what}")
        before = self.target_normalisation
        train, test = (self.train_targets, self.test_targets) if before is None else \
            (before.undo(self.train_targets), before.undo(self.test_targets))
        after = TargetNormalisation.of(wanted, train)
        if after is None or (before is not None and after.same(before)):
            return self
        return replace(self, train_targets=after.apply(train), test_targets=after.apply(test),
                       target_normalisation=after, resident=self._resident_inputs())

    def one_hot(self) -> Dataset:
        """The labels as targets, 1 for the class and 0 elsewhere: for losses that compare values.

        Raises ConfigError if there are no labels.
        """
        if self.train_labels is None or self.test_labels is None:
            raise ConfigError(f"{self.name} has no class labels")
        rows = np.eye(self.classes, dtype=np.float32)
        return replace(self, train_labels=None, test_labels=None, classes=0, label_dtype="",
                       train_targets=rows[self.train_labels], test_targets=rows[self.test_labels],
                       resident=self._resident_inputs())

    def relabelled(self, names: Sequence[str], label_names: tuple[str, ...]) -> Dataset:
        """The same examples with the labels of a model with the classes `names`: the index there of
        each label's own name, which is its number if classes have no names. `label_names` are those
        of the result.

        Raises DataError for a class that is not among `names`.
        """
        if self.train_labels is None or self.test_labels is None:
            return self
        own = self.label_names or tuple(map(str, range(self.classes)))
        places = {name: place for place, name in enumerate(names)}
        used = {int(label) for labels in (self.train_labels, self.test_labels)
                for label in np.unique(labels)}
        strange = [own[label] for label in sorted(used) if own[label] not in places]
        if strange:
            raise DataError(f"{self.name} has the class{'es' * (len(strange) > 1)} "
                            f"{listed(strange)}, but the model knows {listed(names)}")
        moved = np.array([places.get(name, 0) for name in own], np.int32)
        if np.array_equal(moved, np.arange(len(own))):
            return replace(self, classes=len(names), label_names=label_names)
        kind = np.uint8 if len(names) <= 256 else np.int32
        return replace(self, train_labels=moved[self.train_labels].astype(kind),
                       test_labels=moved[self.test_labels].astype(kind), classes=len(names),
                       label_names=label_names, resident=self._resident_inputs())

    def _resident_inputs(self) -> dict[str, DeviceArray]:
        return {k: v for k, v in self.resident.items() if k in ("train_images", "test_images")}


def _check_numbers(array: Any, what: str, width: int) -> None:
    """Raise DataError unless `array` is [examples, width] of numbers."""
    if not isinstance(array, np.ndarray) or array.ndim != 2 or not array.size \
            or array.shape[1] != width:
        raise DataError(f"{what} are of shape {list(np.shape(array))}, but must be an array "
                        f"[examples, {width}], as rawnn.from_arrays((X, y)) makes it")
    if array.dtype.kind not in "biuf":
        raise DataError(f"{what} are of type {array.dtype}, but must be numbers")


def listed(names: Sequence[str]) -> str:
    """The first names, for a sentence; "none" if there are none."""
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "") or "none"
