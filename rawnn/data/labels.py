"""Class labels as users give them (whole numbers, words, one-hot rows), their indices among a
network's classes, and the range of targets of a binary cross-entropy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rawnn.common.errors import DataError

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?", "<na>", "nat"})
"""Cells and words, in lower case, that represent a missing value."""

Rows: TypeAlias = NDArray[np.int32] | None
"""The original row of each row in the caller's array; None if they are the same."""


def place_of(row: Any, rows: Rows) -> int:
    """The original row in the caller's array."""
    return int(row if rows is None else rows[row])


@dataclass(frozen=True, eq=False)
class GivenLabels:
    """`values` [N] are whole numbers or strings; `dtype` is the dtype that numbers had. For one-hot
    rows `columns` is the number of columns, and values are their names, or their indices without
    names."""

    values: NDArray[Any]
    dtype: str = ""
    columns: int | None = None
    names: tuple[str, ...] = ()

    @property
    def are_words(self) -> bool:
        return bool(self.values.dtype.kind == "U")


def given_labels(array: NDArray[Any], name: str, rows: Rows = None,
                 columns: Sequence[str] = ()) -> GivenLabels:
    """The labels in an array [N], [N, 1], or one-hot [N, C] whose `columns` may have names. Raises
    DataError, naming the row, for a value that is no label."""
    if array.ndim == 2 and array.shape[1] > 1:
        return _one_hot(array, name, rows, columns)
    if array.size != len(array):
        raise _of_other_shape(array, name)
    flat = array.reshape(-1)
    if flat.dtype.kind in "SUTO":
        return GivenLabels(np.array(_texts(flat.tolist(), name, rows), dtype=np.str_))
    if flat.dtype.kind in "biu":
        return GivenLabels(flat.view(np.uint8) if flat.dtype.kind == "b" else flat,
                           dtype=flat.dtype.name)
    if flat.dtype.kind != "f" and flat.dtype.name != "bfloat16":
        raise DataError(f"{name} labels are of type {flat.dtype}, but labels are whole numbers or "
                        f"words")
    bad = np.flatnonzero(~(flat == np.floor(flat)) | np.isinf(flat))
    if bad.size:
        row, value = place_of(bad[0], rows), float(flat[bad[0]])
        if np.isnan(value):
            raise DataError(f"{name} labels: row {row} has no value (nan): fill it in, or leave "
                            f"the row out")
        raise DataError(f"{name} label in row {row} is {value:g}, but labels are whole numbers, or "
                        f"words: round them, or use a loss of values (mse)")
    wide = flat.astype(np.float64)  # float16 has no 2^63
    bad = np.flatnonzero((wide < -(2.0**63)) | (wide >= 2.0**63))
    if bad.size:
        raise DataError(f"{name} label in row {place_of(bad[0], rows)} is {float(flat[bad[0]]):g}, "
                        f"beyond the whole numbers of int64: give such labels as words")
    return GivenLabels(flat.astype(np.int64), dtype=flat.dtype.name)


def _texts(values: Sequence[Any], name: str, rows: Rows) -> list[str]:
    """Words as text. Raises DataError for bytes that are not UTF-8, and for a word and a number
    that are spelt alike."""
    found: list[str] = []
    kinds: dict[str, bool] = {}  # whether the label of this text is a word
    for row, value in enumerate(values):
        try:
            text = value.decode() if isinstance(value, bytes) else str(value)
        except UnicodeDecodeError:
            raise DataError(f"{name} label in row {place_of(row, rows)} is {value!r}, which is no "
                            f"text in UTF-8: decode such labels first, as numpy.char.decode(y, "
                            f"'latin-1') does") from None
        is_word = isinstance(value, str | bytes)
        if kinds.setdefault(text, is_word) != is_word:
            raise DataError(f"{name} labels hold {text} as a number and '{text}' as a word (row "
                            f"{place_of(row, rows)}): give all labels one type")
        found.append(text)
    return found


def _of_other_shape(array: NDArray[Any], name: str, row: int | None = None) -> DataError:
    why = "" if row is None else f"; one-hot rows are one label for each example, too, but row " \
                                 f"{row} does not hold a single 1 and else 0"
    return DataError(f"{name} labels are of shape {list(array.shape)}, but must be one for each "
                     f"example: [examples]{why}")


def _one_hot(array: NDArray[Any], name: str, rows: Rows, columns: Sequence[str]) -> GivenLabels:
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        raise _of_other_shape(array, name)
    ones = array == 1
    bad = np.flatnonzero((ones.sum(axis=1) != 1) | ((array != 0) & ~ones).any(axis=1))
    if bad.size:
        raise _of_other_shape(array, name, place_of(bad[0], rows))
    found = ones.argmax(axis=1)
    if columns:
        return GivenLabels(np.asarray(columns, np.str_)[found], "int64" if are_whole(columns)
                           else "", len(columns), tuple(columns))
    return GivenLabels(found.astype(np.int64), "int64", array.shape[1])


def class_names(labels: Sequence[GivenLabels], wanted: tuple[str, ...], classes: int | None,
                outputs: int | None) -> tuple[str, ...]:
    """The names of the classes in `labels`: those `wanted`, the words in alphabetical order, or the
    numbers as text in ascending order; () if the numbers are the classes' indices.

    They are indices if the number of `classes` is given, if they count from 0 without a gap, or if
    all are below the `outputs` of a network. If `outputs` is unknown, all numbers are indices
    except -1 and 1.
    """
    if wanted or labels[0].names:
        return wanted or labels[0].names
    found = np.unique(np.concatenate([label.values for label in labels
                                      if label.are_words == labels[0].are_words]))
    if labels[0].are_words:
        return tuple(str(word) for word in found)
    counted = np.array_equal(found, np.arange(len(found)))
    indices = not np.array_equal(found, (-1, 1)) if outputs is None \
        else counted or (found[0] >= 0 and found[-1] < outputs)
    if labels[0].columns is not None or classes is not None or indices:
        return ()
    return tuple(str(int(label)) for label in found)


def class_indices(labels: GivenLabels, names: tuple[str, ...], first: GivenLabels, what: str,
                  rows: Rows = None) -> NDArray[Any]:
    """The class index of each label. Words are looked up by their names, and so are numbers if all
    of the training labels, `first`, are names. Raises DataError."""
    by_name = first.are_words or (are_whole(names) and first.columns is None and all(
        str(label) in names for label in np.unique(first.values).tolist()))
    return label_indices(labels.values, names, what, rows) if by_name else labels.values


def check_words(labels: GivenLabels, names: Sequence[str], what: str, rows: Rows = None) -> None:
    """Raise DataError for the first word that represents a missing value, unless a class has that
    name."""
    for word in np.unique(labels.values).tolist() if labels.are_words else ():
        if word.strip().lower() in MISSING and word not in (*names, *labels.names):
            row = place_of(int(np.argmax(labels.values == word)), rows)
            raise DataError(f"{what}: row {row} has no value ('{word}'): fill it in, or leave the "
                            f"row out; where a class has this name, name them all: "
                            f"rawnn.from_arrays(data, label_names=[...])")


def label_indices(labels: NDArray[Any], names: Sequence[str], what: str,
                  rows: Rows = None) -> NDArray[np.int32]:
    """The index of each label in `names`. Raises DataError for one that is not there."""
    found, where = np.unique(labels, return_inverse=True)
    places = {name: place for place, name in enumerate(names)}
    known = np.array([places.get(str(label), -1) for label in found.tolist()], np.int32)
    indices = known[where.reshape(-1)] if len(known) else np.zeros(0, np.int32)
    bad = np.flatnonzero(indices < 0)
    if bad.size:
        shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        raise DataError(f"{what}: row {place_of(bad[0], rows)} has the label '{labels[bad[0]]}', "
                        f"but the classes are {shown}")
    return indices


def check_labels(labels: NDArray[Any], classes: int, name: str, rows: Rows = None) -> None:
    """Raise DataError unless each label is a whole number in 0 .. classes - 1."""
    if labels.dtype.kind not in "biu":
        raise DataError(f"{name} are of type {labels.dtype}, but labels are whole numbers from 0")
    if not len(labels):
        return
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= classes:
        row = int(np.argmax(labels < 0 if lowest < 0 else labels >= classes))
        raise DataError(f"{name}: row {place_of(row, rows)} has the label {int(labels[row])}, but "
                        f"labels run from 0 to {classes - 1}")


def is_text(word: str) -> bool:
    """Whether UTF-8 can hold a word: not half a surrogate pair, as Python reads names of files in
    another encoding."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def are_whole(names: Sequence[str]) -> bool:
    """Whether every name is that of a whole number."""
    return bool(names) and all(name.removeprefix("-").isdecimal() for name in names)


def check_fractions(array: NDArray[Any], name: str) -> None:
    """Raise DataError unless every value is in 0 .. 1, as binary cross-entropy needs it."""
    low, high = (float(found) for found in (array.min(), array.max()))
    if low < 0 or high > 1:
        raise DataError(f"{name} reach from {low:g} to {high:g}, but the loss bce compares with "
                        f"numbers from 0 to 1: scale them, or use --loss mse")


def has_labels(array: NDArray[Any]) -> bool:
    """Whether answers are labels where nothing says so: one column of whole numbers or words."""
    one_column = array.ndim == 1 or (array.ndim == 2 and array.shape[1] == 1)
    return one_column and array.dtype.kind in "biuUSTO"
