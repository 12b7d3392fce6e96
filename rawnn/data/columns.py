"""Inputs and answers of other libraries as one array: frames of pandas and polars, dictionaries of
columns, structured arrays, sparse matrices. None of those libraries is imported.

Values that a network cannot be trained on are refused with column, row and fix.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.common.errors import DataError, nearest
from rawnn.data.dlpack import DeviceArray, read
from rawnn.data.labels import are_whole

DENSE_LIMIT = 4 << 30
"""Largest dense size in bytes of a sparse matrix."""


EXACT_IN_FLOAT64 = 2**53
"""float64 holds every integer up to this one."""


@dataclass(frozen=True, eq=False)
class NamedColumns:
    """An array [N, ...], the names of its columns if they have any, and messages for the user.
    `cautions` are those of the `notes` on values that became equal. `integers` are the names as
    text where all are integers; 0, 1, 2, ... are no `names`."""

    array: NDArray[Any] | DeviceArray
    names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()
    integers: tuple[str, ...] = ()


def read_inputs(data: Any, name: str, wanted: Sequence[str] = (), count: int = 0) -> NamedColumns:
    """`data` as one array of numbers. `name` begins the sentence of a DataError, which names the
    column of a value that is missing or no number. Where the columns have names, those `wanted` are
    read, in their order, and no others. Integers are the indices of columns where the `count`
    columns of training had no names. NamedColumns are else returned unchanged."""
    return _read(data, name, True, wanted, count)


def read_answers(data: Any, name: str, wanted: Sequence[str] = (), count: int = 0) -> NamedColumns:
    """`data` as labels or values. A single column may hold words. Raises as `read_inputs`."""
    return _read(data, name, False, wanted, count)


def _in_order(given: Sequence[str], wanted: Sequence[str], name: str) -> list[int] | None:
    """The places among the names `given` of the columns that are `wanted`, in their order; None for
    all as they are, also without names on either side. `name` begins the sentence of a DataError
    for a column that is missing, or whose name occurs twice."""
    if not given or not wanted or tuple(given) == tuple(wanted):
        return None
    for column in wanted:
        if given.count(column) > 1 or wanted.count(column) > 1:
            raise DataError(f"{name} have several columns '{column}', so that names do not say "
                            f"their order: give them as in training, or as an array")
        if column not in given:
            raise DataError(f"{name} have no column '{column}', which the network was trained "
                            f"on{nearest(column, given)}; an array, such as frame.to_numpy(), "
                            f"goes by position")
    return [given.index(column) for column in wanted]


def check_columns(name: str, columns: NamedColumns, first: str, training: NamedColumns) -> None:
    """Raise DataError if the columns of two frames differ, or have another order."""
    for names, wanted in ((columns.names, training.names), (columns.integers, training.integers)):
        if names and wanted and names != wanted:
            raise DataError(f"{name} have the columns {', '.join(names[:12])}, but {first} have "
                            f"{', '.join(wanted[:12])}, in this order: name and order them alike")


def is_missing(value: object) -> bool:
    """Whether a Python object represents a missing value: None, NaN, pandas' NA, NaT."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    try:
        return bool(value != value)
    except (TypeError, ValueError, ArithmeticError):
        return False


def _read(data: Any, name: str, of_inputs: bool, wanted: Sequence[str],
          count: int) -> NamedColumns:
    if isinstance(data, NamedColumns):
        places = _in_order(data.names, wanted, name)
        return data if places is None or isinstance(data.array, DeviceArray) else \
            replace(data, array=data.array[:, places], names=tuple(wanted))
    if hasattr(data, "collect_schema") and hasattr(data, "collect"):
        data = data.collect()  # a LazyFrame of polars
    columns = _columns(data)
    if columns is None:
        if hasattr(data, "toarray") and hasattr(data, "nnz"):
            return _dense(data, name)
        return NamedColumns(_plain(_series(data), name, of_inputs))
    if not columns:
        raise DataError(f"{name}: there is no column")
    names = tuple(str(column) for column, _ in columns)
    integers = names if all(isinstance(column, int | np.integer) for column, _ in columns) else ()
    indices = tuple(map(str, range(len(columns))))
    known = () if integers == indices else names
    if integers and are_whole(wanted):
        known = names
    elif integers and known and not wanted:
        wanted = tuple(map(str, range(count)))
    places = _in_order(known, wanted, name)
    if places is not None:
        columns, names = [columns[place] for place in places], tuple(wanted)
        known = integers = names
    elif _is_uniform(data):  # one block of memory, which can be shared
        return NamedColumns(np.asarray(data), known, integers=integers)
    words = not of_inputs and len(columns) == 1
    arrays = [_column(values, name, column, words)
              for column, (_, values) in zip(names, columns, strict=True)]
    for column, array in zip(names, arrays, strict=True):
        if len(array) != len(arrays[0]):
            raise DataError(f"{name}: column '{column}' has {len(array):,} rows, but '{names[0]}' "
                            f"has {len(arrays[0]):,}")
    found = np.column_stack(arrays)
    lost = _lost_integers(name, names, arrays, found)
    return NamedColumns(found, known, lost, lost, integers)


def _lost_integers(name: str, names: Sequence[str], arrays: Sequence[NDArray[Any]],
                   found: NDArray[Any]) -> tuple[str, ...]:
    """A note on columns of integers whose distinct values became equal in the float64 of `found`,
    which holds all columns."""
    merged = []
    for place, array in enumerate(arrays):
        if array.dtype.kind in "iu" and found.dtype.kind == "f" and len(array) \
                and max(abs(int(array.min())), abs(int(array.max()))) > EXACT_IN_FLOAT64:
            before, after = len(np.unique(array)), len(np.unique(found[:, place]))
            if after < before:
                merged.append((place, before, after))
    return (merged_text(name, merged, names, "subtract the lowest value first", found.dtype.name,
                        "integers"),) if merged else ()


def _columns(data: Any) -> list[tuple[Any, Any]] | None:
    """Name and values of each column; None for data without columns of their own."""
    if isinstance(data, Mapping) and not hasattr(data, "toarray"):  # dok_matrix of SciPy is one
        return list(data.items())
    if isinstance(data, np.ndarray) and data.dtype.names and data.ndim == 1:
        return [(column, data[column]) for column in data.dtype.names]
    if hasattr(data, "iloc") and hasattr(data, "columns"):
        return [(column, data.iloc[:, place]) for place, column in enumerate(data.columns)]
    if hasattr(data, "get_columns") and hasattr(data, "to_numpy"):
        return [(series.name, series) for series in data.get_columns()]
    return None


def _is_uniform(data: Any) -> bool:
    """Whether all columns of a pandas frame have the same numeric NumPy type."""
    types = set(data.dtypes) if hasattr(data, "iloc") else ()
    return len(types) == 1 and all(isinstance(t, np.dtype) and t.kind in "biuf" for t in types)


def _dense(matrix: Any, name: str) -> NamedColumns:
    size = int(np.prod(matrix.shape, dtype=np.float64)) * matrix.dtype.itemsize
    shape = " x ".join(f"{length:,}" for length in matrix.shape)
    if size > DENSE_LIMIT:
        raise DataError(f"{name}: a sparse matrix, {shape}, that takes {size / 2**30:.1f} GiB as a "
                        f"dense array, but at most {DENSE_LIMIT / 2**30:.0f} GiB are made dense: "
                        f"reduce its columns first, or use part of its rows")
    return NamedColumns(read(matrix.toarray(), name), (),
                   (f"{name}: the sparse matrix, {shape}, is made dense "
                    f"({size:,} bytes)",))


def _series(data: Any) -> Any:
    """A column of pandas or polars as a NumPy array; a nullable type becomes its NumPy type if
    nothing is missing. Other data are returned unchanged."""
    if type(data).__module__.startswith("polars"):
        return data.to_numpy()
    if not (hasattr(data, "iloc") and hasattr(data, "isna")):
        return data
    plain = getattr(data.dtype, "numpy_dtype", None)  # of pandas' nullable types
    if plain is None:
        return np.asarray(data)
    return np.asarray(data, object) if data.isna().any() else data.to_numpy(dtype=plain)


def _plain(data: Any, name: str, of_inputs: bool) -> NDArray[Any] | DeviceArray:
    """An array, or a list of numbers as one."""
    array = read(data, name)
    if isinstance(array, DeviceArray) or array.dtype.kind not in "OMm":
        return array
    for place in np.ndindex(array.shape):
        value = array[place]
        if is_missing(value):
            where = ", ".join(f"{axis} {index}" for axis, index in
                              zip(("row", "column"), place, strict=False))
            raise DataError(f"{name}: {where} has no value ({value}): {_FILL}")
    if array.dtype.kind in "Mm":
        raise DataError(f"{name}: of type {array.dtype}, which is no number: {fix_of(array)}")
    return array if of_inputs else _numbers(array, name)


def _column(values: Any, name: str, column: str, words: bool) -> NDArray[Any]:
    """A column [N] of numbers, or with `words` of anything that can be a label."""
    where = f"{name}: column '{column}'"
    array = read(_series(values), where)
    array = array.numpy() if isinstance(array, DeviceArray) else array
    if array.ndim == 2 and array.shape[1] == 1:
        array = array.reshape(-1)
    if array.ndim != 1:
        raise DataError(f"{where} is of shape {list(array.shape)}, but a column holds one value a "
                        f"row")
    if array.dtype.kind in "OMmf":
        for row in range(len(array)) if array.dtype.kind != "f" else np.flatnonzero(array != array):
            if is_missing(array[row]):
                raise DataError(f"{where} has no value in row {row} ({array[row]}): {_FILL}")
        array = _numbers(array, where)
    if array.dtype.kind in "biuf" or array.dtype.name == "bfloat16" or \
            (words and array.dtype.kind in "OUST"):
        return array
    row = next((row for row, value in enumerate(array) if not isinstance(value, Real)), 0)
    raise DataError(f"{where} holds '{array[row]!s:.40}' in row {row}, which is no number: "
                    f"{fix_of(array)}")


_FILL = "fill it in, or leave the row out"


def _numbers(array: NDArray[Any], name: str = "") -> NDArray[Any]:
    """An array of Python objects converted to numbers, if all of them are. Raises DataError, which
    `name` begins, for a Decimal that float64 rounds to 0."""
    values = array.reshape(-1).tolist()
    if array.dtype.kind != "O" or not values or \
            not all(isinstance(value, Real | Decimal | np.bool_) for value in values):
        return array
    for place, value in enumerate(values):
        if name and isinstance(value, Decimal) and value and not float(value):
            raise DataError(f"{name} holds {value} in row {place * len(array) // len(values)}, "
                            f"which float64 rounds to 0: write 0, or multiply the column by a "
                            f"power of ten")
    with contextlib.suppress(OverflowError, TypeError, ValueError):
        found = np.array([float(v) if isinstance(v, Decimal) else v for v in values])
        if found.dtype.kind in "biuf":
            return found.reshape(array.shape)
    return array


def fix_of(array: NDArray[Any]) -> str:
    """How to convert an array that holds no numbers."""
    if array.dtype.kind == "M":
        return "make numbers of dates, for example the days since the first, " \
               "(x - x.min()) / numpy.timedelta64(1, 'D')"
    if array.dtype.kind == "m":
        return "make numbers of durations, for example x / numpy.timedelta64(1, 's')"
    if array.dtype.kind == "c":
        return "give real and imaginary parts as columns of their own"
    texts = array.reshape(-1).tolist() if array.dtype.kind in "OUT" else ()
    with contextlib.suppress(TypeError, ValueError):
        if texts and all(isinstance(text, str) and math.isfinite(float(text)) for text in texts):
            return "all of them are texts of numbers, so that .astype(float) makes numbers of them"
    if _numbers(array) is not array:
        return "all of them are numbers, so that .astype(float) makes an array of numbers"
    return "leave the column out, or make a column of 0 and 1 for each word, as " \
           "pandas.get_dummies does"


def column_text(column: int, names: Sequence[str]) -> str:
    """How a sentence names a column: by its name, or by its index."""
    return f"column '{names[column]}'" if names else f"column {column}"


def merged_text(what: str, found: Sequence[tuple[int, int, int]], names: Sequence[str],
                fix: str, dtype: str = "float32", kind: str = "values") -> str:
    """A sentence on columns in which distinct values became equal as `dtype`: for each its place,
    and how many values are distinct before and after."""
    column, before, after = found[0]
    others = len(found) - 1
    more = f", and so in {others:,} other column{'s' * (others > 1)}" if others else ""
    return (f"{what}: distinct {kind} become equal in {dtype}, in {column_text(column, names)} "
            f"{before:,} become {after:,}{more}: {fix}")
