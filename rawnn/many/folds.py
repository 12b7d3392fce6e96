"""Which rows each member trains on, and on which it is scored: k-fold cross-validation, own lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.common.errors import ConfigError
from rawnn.common.random import permutation
from rawnn.data import Dataset
from rawnn.many.members import Rows

_SHUFFLES = 2**32 - 2
"""The epoch whose random order shuffles the rows of the first repeat; each further repeat takes the
epoch before. No run gets that far. The epoch behind it splits data into training and test part."""


@dataclass(frozen=True, eq=False)
class Folds:
    """L lists of training `rows`, and of the rows `held_out` that members of each list are scored
    on (() where that is the data set's test part). `counts` says how lists came to be: folds and
    repeats, 0 for own lists."""

    rows: tuple[Rows, ...] = ()
    held_out: tuple[Rows, ...] = ()
    folds: int = 0
    repeats: int = 1

    def __len__(self) -> int:
        return max(len(self.rows), 1)


def folds_of(folds: Any, repeats: int, rows: Any, data: Dataset, seed: int) -> Folds:
    """The lists that a caller asks for; see `train_many`. Raises ConfigError."""
    count = len(data.train_images)
    if not isinstance(repeats, int | np.integer) or isinstance(repeats, bool) or repeats < 1:
        raise ConfigError(f"repeats = {repeats!r}: it must be a whole number of at least 1")
    if folds is not None and rows is not None:
        raise ConfigError("give either folds or rows: folds may be a list of (training rows, "
                          "scored rows) of your own")
    if repeats > 1 and not isinstance(folds, int | np.integer):
        raise ConfigError(f"repeats = {repeats} plays no part without a number of folds: give "
                          f"folds=5, or leave it out")
    if rows is not None:
        return Folds(tuple(_checked(each, count, f"rows[{i}]") for i, each in
                           enumerate(_listed(rows, "rows"))))
    if folds is None:
        return Folds()
    if isinstance(folds, int | np.integer) and not isinstance(folds, bool):
        return _k_folds(int(folds), int(repeats), data, seed)
    if hasattr(folds, "split") and not isinstance(folds, str):  # a cross-validator of scikit-learn
        labels = data.train_labels if data.train_labels is not None else data.train_targets
        name = type(folds).__name__
        try:
            folds = list(folds.split(data.train_images, labels))
        except (TypeError, ValueError) as error:  # it needs groups, or has too many folds
            raise ConfigError(f"folds: {name} cannot split these data: {error}; folds may also be "
                              f"a list of (training rows, scored rows), such as "
                              f"list(splitter.split(X, y, groups))") from None
    pairs = _listed(folds, "folds")
    for place, pair in enumerate(pairs):
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise ConfigError(f"folds[{place}] must be a pair: the training rows, and the rows to "
                              f"score on")
    return Folds(tuple(_checked(pair[0], count, f"folds[{i}][0]") for i, pair in enumerate(pairs)),
                 tuple(_checked(pair[1], count, f"folds[{i}][1]") for i, pair in enumerate(pairs)),
                 len(pairs))


def _listed(given: Any, name: str) -> list[Any]:
    """Raises ConfigError for what is no list, or an empty one."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        what = "a number of folds, a list of (training rows, scored rows), or a cross-validator " \
               "of scikit-learn" if name == "folds" else "a list of lists of row numbers"
        raise ConfigError(f"{name} = {given!r}: give {what}")
    found = list(given)
    if not found:
        raise ConfigError(f"{name} is an empty list: give one list of rows or more")
    return found


def _checked(given: Any, count: int, name: str) -> Rows:
    """Row numbers as int32. Raises ConfigError for others than whole numbers from 0 to
    `count` - 1; a mask of booleans counts as the rows where it is true."""
    try:
        array = np.asarray(given)
    except ValueError:
        array = np.empty((0, 0))
    if array.dtype == np.bool_ and array.shape == (count,):
        array = np.flatnonzero(array)
    if array.ndim != 1 or array.dtype.kind not in "iu" or not array.size:
        raise ConfigError(f"{name} must be a list of row numbers, from 0 to {count - 1}")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= count:
        raise ConfigError(f"{name} has the row {low if low < 0 else high}, but the data have the "
                          f"rows 0 to {count - 1}")
    return array.astype(np.int32)


def _k_folds(folds: int, repeats: int, data: Dataset, seed: int) -> Folds:
    """Each row is held out once a repeat. Rows are shuffled by `seed` alone, and every fold has its
    part of each class, where there are labels; sizes differ by one at most."""
    count = len(data.train_images)
    if not 2 <= folds <= count:
        raise ConfigError(f"folds = {folds}: give 2 or more, and at most the {count:,} rows of the "
                          f"data")
    rows: list[Rows] = []
    held_out: list[Rows] = []
    for repeat in range(repeats):
        order: NDArray[Any] = permutation(seed, _SHUFFLES - repeat, count)
        if data.train_labels is not None:
            order = order[np.argsort(data.train_labels[order], kind="stable")]
        fold = np.empty(count, np.int64)
        fold[order] = np.arange(count) % folds
        for number in range(folds):
            rows.append(np.flatnonzero(fold != number).astype(np.int32))
            held_out.append(np.flatnonzero(fold == number).astype(np.int32))
    return Folds(tuple(rows), tuple(held_out), folds, repeats)
