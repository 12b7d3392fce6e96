"""Tables: `.npz` archives and CSV files, as data sets, by NumPy and Python's csv: pandas would be a
large dependency for one function."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import os
import zipfile
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from rawnn.data.arrays import Pair, from_arrays
from rawnn.data.base import DEFAULT_FRACTION, Dataset, Kind
from rawnn.data.catalog import TABLES
from rawnn.data.normalise import Normalise
from rawnn.errors import ConfigError, DataError, nearest

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
"""Cells, in lower case, that stand for a value that is not there."""

_SPLIT_KEYS = ("x_train", "y_train", "x_test", "y_test")
_DELIMITERS = ",;\t|"


@dataclass(frozen=True, eq=False)
class Table:
    """What a file holds: `inputs` [N, F], and `answers` [N] or [N, C] or None where no target was
    named. `test` is the file's own test part. The names are empty where the file has none."""

    inputs: NDArray[Any]
    answers: NDArray[Any] | None
    test: Pair | None = None
    feature_names: tuple[str, ...] = ()
    target_names: tuple[str, ...] = ()


def load_table(
    path: str | os.PathLike[str],
    target: str | None = None,
    *,
    fraction: float = DEFAULT_FRACTION,
    normalise: Normalise = None,
    kind: Kind | None = None,
    seed: int = 0,
    label_names: Sequence[str] = (),
    classes: int | None = None,
) -> Dataset:
    """A Dataset of the table at `path`: see `read_table` for the files and for `target`.

    A file without a test part is split: `fraction` of its rows, chosen by `seed`, are for testing.
    Whole numbers and words in a single target column are classes unless `kind` says otherwise;
    other numbers, and several target columns, are values. A CSV file without a target is
    reproduced by an autoencoder. Raises DataError and ConfigError.
    """
    table = read_table(path, target, kind)
    y, names = table.answers, tuple(label_names)
    text = Path(path).suffix.lower() != ".npz"
    if text and y is not None and y.ndim == 1 and y.dtype.kind == "i":
        # Numbers in a text file are names of classes as words are, unless they count from 0.
        found = np.unique(y)
        if not names and classes is None and not np.array_equal(found, np.arange(len(found))):
            names = tuple(map(str, found))
        if names:
            y = y.astype(str)
    test: Any = fraction if table.test is None else table.test
    made = from_arrays(Pair(table.inputs, y), test, normalise=normalise, kind=kind, seed=seed,
                       name=_stem(Path(path)), source=os.fspath(path), label_names=names,
                       classes=classes)
    idle = () if table.test is None or fraction == DEFAULT_FRACTION else (
        f"validation = {fraction:g} plays no part: {path} has a test part of its own",)
    return replace(made, feature_names=table.feature_names, notes=(*made.notes, *idle))


def _stem(path: Path) -> str:
    ending = next((e for e in sorted(TABLES, key=len, reverse=True)
                   if path.name.lower().endswith(e)), path.suffix)
    return path.name.removesuffix(path.name[len(path.name) - len(ending):]) or path.name


def read_table(path: str | os.PathLike[str], target: str | None = None, kind: Kind | None = None,
               features: Sequence[str] = ()) -> Table:
    """Read a table.

    `.npz`: the arrays `X` and `y`, or `x_train`, `y_train`, `x_test` and `y_test` (case does not
    matter); `y` may be left out, and takes no `target`, unless that is the name of an array to be
    used in place of `y`.

    `.csv` (or `.tsv`, either also with `.gz`): numbers, separated by commas, semicolons, tabs or
    vertical bars, under a header or not.
    `target` names the column to be predicted, or several separated by commas, each by its name or
    its index (from 0; -1 is the last). Under a header the `features` are the columns of these
    names, in their order, and others are not read; without `features` all but the target are.

    Raises DataError, naming row and column, for what cannot be read, ConfigError for a column that
    is not there.
    """
    file = Path(path)
    if file.suffix.lower() == ".npz":
        return _read_npz(file, target)
    return _read_csv(file, target, kind, features)


# -- npz ------------------------------------------------------------------------------------------


def _read_npz(path: Path, target: str | None) -> Table:
    arrays = _load_npz(path)
    names = {name.lower(): name for name in arrays}
    has = ", ".join(sorted(arrays)[:12]) or "nothing"
    if target is not None and target not in arrays:
        raise ConfigError(f"{path} has no array '{target}'"
                          + (nearest(target, arrays) or f"; it holds {has}"))
    x, y, xt, yt = (arrays[names[key]] if key in names else None for key in _SPLIT_KEYS)
    if x is not None:
        if (xt is None) != (yt is None) and y is not None:
            raise DataError(f"{path} holds {has}, but x_test and y_test belong together")
        if target is not None:
            y = arrays[target]
        return Table(x, y, None if xt is None else Pair(xt, yt))
    if "x" not in names:
        raise DataError(f"{path} holds {has}, but X (and y) or x_train, y_train, x_test, y_test "
                        f"are looked for")
    key = names.get("y") if target is None else target
    return Table(arrays[names["x"]], arrays[key] if key else None)


def _load_npz(path: Path) -> dict[str, NDArray[Any]]:
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise DataError(f"{path} holds a single array and is no .npz archive")
        with archive:
            return {name: archive[name] for name in archive.files}
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError, KeyError, TypeError, zipfile.BadZipFile, zlib.error,
            NotImplementedError, RuntimeError, SyntaxError, OverflowError) as error:
        reason = f"it is damaged or no .npz file ({_line(error)})"
        if "allow_pickle" in str(error):  # which is said of anything that is no archive, too
            reason = "it holds pickled Python objects, which are not loaded" \
                if zipfile.is_zipfile(path) else "it is damaged or no .npz file"
        raise DataError(f"{path} cannot be read: {reason}") from None
    except MemoryError:
        raise DataError(f"{path} declares arrays that do not fit in memory") from None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__


# -- CSV ------------------------------------------------------------------------------------------


def _opened(path: Path) -> IO[str]:
    if path.suffix.lower() == ".gz":
        return io.TextIOWrapper(gzip.open(path, "rb"), newline="", encoding="utf-8-sig")
    return open(path, newline="", encoding="utf-8-sig")


def _read_csv(path: Path, target: str | None, kind: Kind | None, features: Sequence[str]) -> Table:
    try:
        with _opened(path) as file:
            sheet = _Sheet(path, target, features)
            sheet.read(file)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a readable gzip file: {_line(error)}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a text file in UTF-8: {error.reason} at byte "
                        f"{error.start}") from None
    except csv.Error as error:
        raise DataError(f"{path} is not a readable CSV file: {error}") from None
    answers: NDArray[Any] | None = None
    if len(sheet.targets) == 1:
        answers = sheet.answers(0, kind)
    elif sheet.targets:
        answers = np.stack([sheet.numbers(i) for i in range(len(sheet.targets))], axis=1)
    return Table(sheet.inputs(), answers, None,
                 tuple(sheet.header[c] for c in sheet.features) if sheet.header else (),
                 tuple(sheet.name(c) for c in sheet.targets))


class _Sheet:
    """A CSV file read row by row: features are made float32 at once (the text of MNIST would take
    gigabytes), the cells of target columns are kept as they are."""

    def __init__(self, path: Path, target: str | None, features: Sequence[str]) -> None:
        self.path = path
        self._named = features
        self._asked = [] if target is None else [part.strip() for part in target.split(",")]
        self.header: list[str] = []
        self.width = 0
        self.targets: list[int] = []
        self.features: list[int] = []
        self._cells: list[list[str]] = []  # of each target, row by row
        self._numbers = array("f")
        self._lines: list[int] = []  # in the file, of each row

    def read(self, file: IO[str]) -> None:
        first = file.readline()
        file.seek(0)
        delimiter = max(_DELIMITERS, key=first.count)
        reader = csv.reader(file, delimiter=delimiter, skipinitialspace=True, strict=True)
        for row in reader:
            if not row:  # a blank line
                continue
            if not self.width:
                self._begin([cell.strip() for cell in row])
                if self.header:
                    continue
            if len(row) != self.width:
                raise DataError(f"{self.path}: line {reader.line_num} has {len(row)} columns, but "
                                f"the lines before it have {self.width}")
            self._lines.append(reader.line_num)
            self._row(row)
        if not self._lines:
            raise DataError(f"{self.path} is empty: it has no row of data")

    def _begin(self, row: list[str]) -> None:
        """A first row is a header if it holds no number, or a name that the target asks for."""
        self.width = len(row)
        named = any(cell in self._asked and _number(cell) is None for cell in row)
        if named or all(_number(cell) is None for cell in row):
            self.header = row
        self.targets = [self._column(name) for name in self._asked]
        for place, column in enumerate(self.targets):
            if column in self.targets[:place]:
                raise ConfigError(f"the target names column '{self.name(column)}' of {self.path} "
                                  f"twice")
        self.features = [i for i in range(self.width) if i not in self.targets]
        if self._named and self.header:
            for name in self._named:
                if name not in self.header:
                    raise ConfigError(f"{self.path} has no column '{name}', which the network was "
                                      f"trained on" + nearest(name, self.header))
            self.features = [self.header.index(name) for name in self._named]
        if not self.features:
            raise ConfigError(f"{self.path}: the target takes all {self.width} columns, so that no "
                              f"input is left")
        self._cells = [[] for _ in self.targets]

    def _row(self, row: list[str]) -> None:
        for kept, column in zip(self._cells, self.targets, strict=True):
            kept.append(row[column].strip())
        if self.targets or self._named:
            row = [row[column] for column in self.features]
        try:
            self._numbers.extend(map(float, row))
        except ValueError:
            place = next(i for i, cell in enumerate(row) if _number(cell) is None)
            raise self._bad(len(self._lines) - 1, self.features[place], row[place]) from None

    def name(self, column: int) -> str:
        return self.header[column] if self.header else f"{column}"

    def _column(self, name: str) -> int:
        if name in self.header:
            if self.header.count(name) > 1:
                raise ConfigError(f"{self.path} has {self.header.count(name)} columns named "
                                  f"'{name}': give the index of the one that is meant, from 0")
            return self.header.index(name)
        try:
            column = int(name)
        except ValueError:
            listed = ", ".join(self.header[:12]) + (", ..." if len(self.header) > 12 else "")
            known = nearest(name, self.header) or (
                f"; the columns are {listed}" if self.header else
                f"; it has no header, so give an index from 0 to {self.width - 1}")
            raise ConfigError(f"{self.path} has no column '{name}'{known}") from None
        if not -self.width <= column < self.width:
            raise ConfigError(f"{self.path} has no column {column}: it has {self.width}, 0 to "
                              f"{self.width - 1}")
        return column % self.width

    def _bad(self, row: int, column: int, cell: str) -> DataError:
        where = f"{self.path}: line {self._lines[row]}, column '{self.name(column)}'"
        text = cell.strip()
        if text.lower() in MISSING:
            return DataError(f"{where} has no value ('{text}'): fill it in, or leave the row out")
        shown = text if len(text) <= 40 else f"{text[:37]}..."
        if _number(text) is None:
            why = "only a target may be a word" if column not in self.targets else \
                "several targets are values to be reached" if len(self.targets) > 1 else \
                "the loss compares with values; classes need --loss cross_entropy"
            return DataError(f"{where} holds '{shown}', which is no number: {why}")
        return DataError(f"{where} holds {shown}, but every value must be a finite number that "
                         f"float32 can hold")

    def inputs(self) -> NDArray[np.float32]:
        """float32 [rows, features], all finite."""
        values = np.frombuffer(self._numbers, np.float32).reshape(-1, len(self.features))
        bad = ~np.isfinite(values)
        if bad.any():
            row, place = np.argwhere(bad)[0]
            raise self._bad(int(row), self.features[place], str(values[row, place]))
        return values

    def numbers(self, target: int) -> NDArray[np.float32]:
        """A target column as float32 [rows]."""
        cells, column = self._cells[target], self.targets[target]
        with np.errstate(over="ignore"):
            values = np.array([number if (number := _number(cell)) is not None else np.nan
                               for cell in cells]).astype(np.float32)
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size:
            raise self._bad(int(bad[0]), column, cells[bad[0]])
        return values

    def answers(self, target: int, kind: Kind | None) -> NDArray[Any]:
        """A target column: whole numbers as int64, others as float32, words as strings [rows]."""
        cells, column = self._cells[target], self.targets[target]
        if kind == "values":
            return self.numbers(target)
        for row, cell in enumerate(cells):
            if cell.lower() in MISSING:
                raise self._bad(row, column, cell)
        with contextlib.suppress(ValueError, OverflowError):
            return np.array([int(cell) for cell in cells], np.int64)
        words = [row for row, cell in enumerate(cells) if _number(cell) is None]
        if kind == "labels" or len(words) > len(cells) // 2:
            return np.array(cells)
        return self.numbers(target)


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None
