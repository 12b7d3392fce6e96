"""Checks whether float32 can hold the values of a data set, and tell them apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.common.errors import DataError
from rawnn.data.columns import column_text, fix_of
from rawnn.data.labels import Rows, place_of

_EXACT = 2**24
"""float32 holds every integer up to this one."""
_CHUNK = 1 << 22
"""Elements per check."""
_SAMPLED = 1 << 21
"""Most elements that are compared: sorting more would take longer than reading them."""
_FEWEST = 256
"""Least rows that are compared."""
_SHARE = 0.01
"""Fraction of a column's distinct values that may be lost without a message: a few continuous
values are always closer together than float32 resolves."""


def as_float32(array: NDArray[Any], name: str, rows: Rows = None, names: Sequence[str] = (),
               fix: str = "") -> NDArray[np.float32]:
    """The array [N, F] as float32. `rows` and `names` are those of its rows and columns; `fix` says
    what to do about integers that float32 cannot tell apart. Raises DataError if float32 cannot
    hold the values."""
    if array.dtype == np.float32:
        return array
    kind = array.dtype.kind
    if kind not in "biuf" and array.dtype.name != "bfloat16":
        raise DataError(f"{name} are of type {array.dtype}: only numbers can be trained on; "
                        f"{fix_of(array)}")
    if kind in "iu" and array.dtype.itemsize > 2 and array.size \
            and max(abs(int(array.min())), abs(int(array.max()))) > _EXACT:
        raise DataError(f"{name} hold integers beyond {_EXACT:,}, which float32 cannot tell apart: "
                        f"{fix}{'; or ' * bool(fix)}scale them first")
    with np.errstate(over="ignore", under="ignore"):
        made = np.ascontiguousarray(array, np.float32)
    if kind == "f":
        check_rounded(array, made, name, rows, names, fix)
    return made


def check_rounded(array: NDArray[Any], rounded: NDArray[Any], name: str, rows: Rows = None,
                  names: Sequence[str] = (), fix: str = "") -> None:
    """Raise DataError for the first finite value of `array` [N, F] that is infinite in `rounded`,
    or 0 there alone. `rows` and `names` are those of its rows and columns; `fix` comes before the
    general one."""
    check_overflow(array, rounded, name, rows, names, fix)
    if np.count_nonzero(rounded) != np.count_nonzero(array):
        row, column = np.argwhere((rounded == 0) & (array != 0))[0]
        raise DataError(f"{name}: the value in row {place_of(row, rows)}, "
                        f"{column_text(column, names)} is too close to 0 for {rounded.dtype}, "
                        f"which rounds it to 0 ({array[row, column]}): {fix}{'; or ' * bool(fix)}"
                        f"multiply the column by a power of ten, or write 0 if that is meant")


def check_overflow(array: NDArray[Any], rounded: NDArray[Any], name: str, rows: Rows = None,
                   names: Sequence[str] = (), fix: str = "") -> None:
    """The part of `check_rounded` on infinite values."""
    bad = np.isinf(rounded)
    if bad.any() and (bad := bad & np.isfinite(array)).any():
        row, column = np.argwhere(bad)[0]
        raise DataError(f"{name}: the value in row {place_of(row, rows)}, "
                        f"{column_text(column, names)} is too large for {rounded.dtype} "
                        f"({array[row, column]}): {fix}{'; or ' * bool(fix)}divide the column by a "
                        f"power of ten, or leave the row out")


def check_finite(array: NDArray[Any], name: str, places: Rows = None,
                 names: Sequence[str] = ()) -> None:
    """Raise DataError for the first value of [N, F] that is NaN or infinite. `places` and `names`
    are those of its rows and columns."""
    rows = max(_CHUNK // max(math.prod(array.shape[1:]), 1), 1)
    for start in range(0, len(array), rows):
        bad = ~np.isfinite(array[start : start + rows])
        if bad.any():
            row, column = np.argwhere(bad)[0]
            value = float(array[start + row, column])
            raise DataError(f"{name} hold {value} (row {place_of(start + row, places)}, "
                            f"{column_text(column, names)}): every value must be a finite number")


def merged_columns(values: NDArray[Any], rounded: Callable[[NDArray[Any]], NDArray[Any]]
                   ) -> list[tuple[int, int, int]]:
    """Columns of `values` [N, F] in which distinct values become equal when they are `rounded`: the
    column, and how many values are distinct before and after. A large set is sampled."""
    rows = max(_SAMPLED // max(values.shape[1], 1), _FEWEST)
    if len(values) > rows:
        values = values[np.sort(np.random.default_rng(0).choice(len(values), rows, replace=False))]
    before, after = (_distinct(array) for array in (values, rounded(values)))
    return merged_counts(before, after, range(values.shape[1]))


def merged_counts(before: NDArray[Any], after: NDArray[Any], columns: Sequence[int]
                  ) -> list[tuple[int, int, int]]:
    """Those `columns` of which too many values became equal, with the numbers of distinct values
    `before` and `after`."""
    return [(columns[place], int(before[place]), int(after[place]))
            for place in np.flatnonzero(before - after > _SHARE * before).tolist()]


def _distinct(values: NDArray[Any]) -> NDArray[np.int64]:
    """Number of distinct values in each column."""
    ordered = np.sort(values, axis=0)
    count: NDArray[np.int64] = 1 + np.count_nonzero(ordered[1:] != ordered[:-1], axis=0)
    return count
