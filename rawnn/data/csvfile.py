"""CSV files: text to numbers, and for text that is no number the option that helps.

The modules of Python's library suffice: pandas would be a large dependency for one function.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import gzip
import io
import itertools
import re
import shlex
from array import array
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from rawnn.common.csvformat import DEFAULT_FORMAT, Columns, CsvFormat, columns_of, joined_columns
from rawnn.common.errors import ConfigError, DataError, nearest
from rawnn.data.columns import EXACT_IN_FLOAT64, merged_text
from rawnn.data.dataset_types import Kind
from rawnn.data.labels import MISSING
from rawnn.data.precision import merged_counts

_DELIMITERS = ",;\t|"
_MARKS = {codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32",
          codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
"""Byte-order marks; those of UTF-32 first, because one begins with that of UTF-16."""
_MANY_ZEROS = "0" * 300
"""A number without an exponent that float64 rounds to 0 has more of them in a row."""
_COMMA = re.compile(r"[-+]?(\d+|\d{1,3}(\.\d{3})+)?,\d+([eE][-+]?\d+)?")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(,\d{3})+(\.\d*)?")
_DATE = re.compile(r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2})"
                   r"|\d{1,2}:\d{2})([T ,].*|:.*|Z)?")


def open_text(path: Path, encoding: str | None) -> IO[str]:
    """The file as text, after its byte-order mark if it has one."""
    name = "utf-8-sig" if encoding is None else encoding
    if codecs.lookup(name).name == "utf-8":
        name = "utf-8-sig"
    if path.suffix.lower() == ".gz":
        return io.TextIOWrapper(gzip.open(path, "rb"), newline="", encoding=name)
    return open(path, newline="", encoding=name)


def not_decodable(path: Path, csv_format: CsvFormat, why: str) -> DataError:
    """The error for a file that is not text in its encoding, with the option that helps."""
    with (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rb") as file:
        head = file.read(4096)
    named = next((name for mark, name in _MARKS.items() if head.startswith(mark)), "")
    if not named and b"\0" in head:  # ASCII with two bytes per character
        named = "utf-16-le" if head[1::2].count(0) > head[::2].count(0) else "utf-16-be"
    asked = csv_format.encoding or "UTF-8"
    fix = f"it is in {named.upper()}: read it with --encoding {named}" \
        if named and named != csv_format.encoding else \
        "name its encoding with --encoding, such as latin-1, or cp1252 for files of Windows" \
        if csv_format.encoding is None else "name another --encoding"
    return DataError(f"{path} is not a text file in {asked}: {why}; {fix}")


class Sheet:
    """A CSV file read row by row. Features are converted to float64 at once (the text of MNIST
    would take gigabytes); the cells of target columns are stored as text."""

    def __init__(self, path: Path, target: Columns, features: Sequence[str] = (),
                 csv_format: CsvFormat = DEFAULT_FORMAT) -> None:
        self.path = path
        self._named, self._format = features, csv_format
        self._asked, self._skip = columns_of(target), columns_of(csv_format.skip)
        self.header: list[str] = []
        self.width = 0
        self.targets: list[int] = []
        self.features: list[int] = []
        self._cells: list[list[str]] = []  # per target, row by row
        self._numbers = array("d")
        self._lines: list[int] = []  # line numbers in the file, per row
        self._is_plain = True  # whether no line since the last row has an underscore
        self._may_underflow = False  # whether a line since then may have a number close to 0
        self.notes: list[str] = []
        self.cautions: list[str] = []  # of the notes

    def read(self, file: IO[str]) -> None:
        reader = self._reader(file)
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

    def _reader(self, file: IO[str]) -> Any:
        """The rows of the file, as the csv module reads them. Raises DataError."""
        start = file.tell()
        if file.read(1) == "\ufeff":  # of an encoding with an explicit byte order
            start = file.tell()
        file.seek(start)
        first = file.readline()
        while first and not first.strip("\r\n"):  # a blank line says nothing of the separator
            first = file.readline()
        file.seek(start)
        if "\0" in first:
            raise not_decodable(self.path, self._format, "it holds characters of value 0")
        return csv.reader(self._watched(file), delimiter=self._delimiter(first.rstrip("\r\n")),
                          skipinitialspace=True, strict=True)

    def _watched(self, lines: IO[str]) -> Iterator[str]:
        for line in lines:
            if "_" in line:  # a check of each cell would cost as much as its conversion
                self._is_plain = False
            if "e-" in line or "E-" in line or _MANY_ZEROS in line:
                self._may_underflow = True
            yield line

    def _delimiter(self, first: str) -> str:
        """The separator of columns, from the first line."""
        others = [mark for mark in _DELIMITERS if mark != "," and mark in first]
        for mark in others:
            pieces = [piece.strip() for piece in first.split(mark)]
            comma = [piece for piece in pieces if _COMMA.fullmatch(piece)]
            if comma and all(piece in comma or _float(piece) is not None for piece in pieces):
                return mark  # a row of numbers with decimal commas
        known = others if others and self._format.decimal == "," else _DELIMITERS
        return max(known, key=first.count)

    def _begin(self, row: list[str]) -> None:
        """A first row is a header if it holds no number, or a name that is asked for."""
        self.width = len(row)
        names = {*self._asked, *self._skip}
        named = any(cell in names and self.number(cell) is None for cell in row)
        if named or all(self.number(cell) is None for cell in row):
            self.header = row
        elif [cell for cell in row if cell] == [str(i) for i in range(sum(map(bool, row)))]:
            self.notes.append(f"{self.path}: line 1 is read as a row of data ({', '.join(row[:4])}"
                              f"{', ...' if len(row) > 4 else ''}); if these are names of columns, "
                              f"as pandas writes them, delete the line")
        self.targets = self._places(self._asked, "the target")
        skipped = self._places(self._skip, "--skip")
        for column in skipped:
            if column in self.targets:
                raise ConfigError(f"column '{self.name(column)}' of {self.path} is the target, but "
                                  f"--skip leaves it out")
        self.features = [i for i in range(self.width) if i not in {*self.targets, *skipped}]
        if self._named and self.header:
            self.features = self._trained_on()
            for column in self.features:
                if column in skipped:
                    raise ConfigError(f"--skip leaves column '{self.name(column)}' out, which the "
                                      f"network was trained on")
        if not self.features:
            takers = "--skip and the target take" if skipped else "the target takes"
            raise ConfigError(f"{self.path}: {takers} all {self.width} columns, so that no input "
                              f"is left")
        self._cells = [[] for _ in self.targets]

    def _trained_on(self) -> list[int]:
        """The columns that the network was trained on, by their names. Raises ConfigError."""
        if [self.header[column] for column in self.features] == list(self._named):
            return self.features
        for name in self._named:
            if name not in self.header:
                raise ConfigError(f"{self.path} has no column '{name}', which the network was "
                                  f"trained on" + nearest(name, self.header))
            if self.header.count(name) > 1 or self._named.count(name) > 1:
                raise ConfigError(f"several columns named '{name}' are in {self.path} or were "
                                  f"trained on, so that names do not say their order: give the "
                                  f"columns in the order {joined_columns(self._named)}")
        return [self.header.index(name) for name in self._named]

    def _places(self, asked: Sequence[str], what: str) -> list[int]:
        found: list[int] = []
        for name in asked:
            column = self._column(name)
            if column in found:
                raise ConfigError(f"{what} names column '{self.name(column)}' of {self.path} twice")
            found.append(column)
        return found

    def _row(self, row: list[str]) -> None:
        for kept, column in zip(self._cells, self.targets, strict=True):
            kept.append(row[column].strip())
        if len(self.features) < self.width or self._named:
            row = [row[column] for column in self.features]
        try:
            self._numbers.extend(map(self._with_comma if self._format.decimal == "," else
                                     float if self._is_plain or "_" not in "".join(row)
                                     else _with_point, row))
            self._is_plain = True
        except ValueError:
            place = next(i for i, cell in enumerate(row) if self.number(cell) is None)
            raise self._bad(len(self._lines) - 1, self.features[place], row[place]) from None
        if self._may_underflow:
            self._may_underflow = False
            for place, (cell, number) in enumerate(zip(row, self._numbers[-len(row):],
                                                       strict=True)):
                if number == 0 and _underflows(cell):
                    raise self._bad(len(self._lines) - 1, self.features[place], cell)

    def _with_comma(self, cell: str) -> float:
        """A number whose decimal mark is the comma. Raises ValueError."""
        if "." in cell:  # it separates thousands there
            raise ValueError
        return _with_point(cell.replace(",", "."))

    def number(self, cell: str) -> float | None:
        """The number in a cell, None for other text."""
        return _float(cell) if self._format.decimal == "." else _float(cell, self._with_comma)

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
            if self.width == 1 and self.header and name in self.header[0].split():
                known = f": its lines, such as '{self.header[0]:.40}', are one column each; " \
                        f"separate columns by commas, semicolons, tabs or vertical bars"
            raise ConfigError(f"{self.path} has no column '{name}'{known}") from None
        if not -self.width <= column < self.width:
            raise ConfigError(f"{self.path} has no column {column}: it has {self.width}, 0 to "
                              f"{self.width - 1}")
        return column % self.width

    def _where(self, row: int, column: int) -> str:
        return f"{self.path}: line {self._lines[row]}, column '{self.name(column)}'"

    def _bad(self, row: int, column: int, cell: str) -> DataError:
        where, text = self._where(row, column), cell.strip()
        feature = column not in self.targets
        if text.lower() in MISSING:
            also = f", or the column ({self._skipping(column)})" if feature else ""
            return DataError(f"{where} has no value ('{text}'): fill it in, or leave the row out"
                             f"{also}")
        shown = text if len(text) <= 40 else f"{text[:37]}..."
        if (number := self.number(text)) is not None:
            if number == 0 and _underflows(text):
                return DataError(f"{where} holds {shown}, which float64 rounds to 0: write 0, or "
                                 f"multiply the column by a power of ten")
            also = f", or the column out ({self._skipping(column)})" if feature else " out"
            return DataError(f"{where} holds {shown}, but every value must be a finite number that "
                             f"float32 can hold: divide the column by a power of ten, or leave the "
                             f"row{also}")
        why = self._of_another_mark(text) or (
            f"{_of_feature(text)}; {self._skipping(column)} leaves the column out" if feature else
            "several targets are values to be reached" if len(self.targets) > 1 else
            "the loss compares with values; classes need --loss cross_entropy")
        return DataError(f"{where} holds '{shown}', which is no number: {why}")

    def _skipping(self, column: int) -> str:
        """The option that leaves a column out."""
        unique = self.header.count(self.name(column)) == 1
        name = joined_columns([self.name(column)]) if unique else f"{column}"
        return f"--skip {shlex.quote(name)}"

    def _of_another_mark(self, text: str) -> str:
        """The fix for a number with another decimal mark, "" for any other text."""
        if self._format.decimal == "." and _THOUSANDS.fullmatch(text):
            return "where the comma separates thousands, leave it out; where it is the decimal " \
                   "mark, read the file with --decimal ,"
        if self._format.decimal == ".":
            return "where the comma is the decimal mark, read the file with --decimal ," \
                if _COMMA.fullmatch(text) else ""
        return "with --decimal , a point is no part of a number: leave separators of thousands " \
               "out, or use --decimal . where the point is the decimal mark" \
            if "." in text and _float(text.replace(",", "").replace(".", "")) is not None else ""

    def inputs(self) -> NDArray[np.float64]:
        """float64 [rows, features], all finite in float32."""
        values = np.frombuffer(self._numbers, np.float64).reshape(-1, len(self.features))
        with np.errstate(over="ignore"):
            bad = ~np.isfinite(values.astype(np.float32))
        if bad.any():
            row, place = np.argwhere(bad)[0]
            raise self._bad(int(row), self.features[place], str(values[row, place] * np.inf))
        return values

    @property
    def has_large_numbers(self) -> bool:
        """Whether an input may stand for another integer, which float64 does not hold."""
        values = np.frombuffer(self._numbers, np.float64)
        return max(float(values.max()), -float(values.min())) >= EXACT_IN_FLOAT64

    def note_merged(self, file: IO[str]) -> None:
        """Note the columns of inputs of which distinct numbers became equal in float64, from the
        same file, read again: their text is not stored."""
        values = np.frombuffer(self._numbers, np.float64).reshape(-1, len(self.features))
        places = np.flatnonzero(np.abs(values).max(axis=0) >= EXACT_IN_FLOAT64).tolist()
        texts: list[set[Decimal]] = [set() for _ in places]
        rows = (row for row in self._reader(file) if row)
        for row in itertools.islice(rows, int(bool(self.header)), None):
            for found, place in zip(texts, places, strict=True):
                found.add(Decimal(row[self.features[place]].strip().replace(",", ".")))
        before = np.array([len(found) for found in texts])
        after = np.array([len(np.unique(values[:, place])) for place in places])
        merged = merged_counts(before, after, places)
        if merged:
            self.cautions.append(merged_text(
                f"{self.path}", merged, [self.name(column) for column in self.features],
                "write them less their lowest value", "float64"))
            self.notes.append(self.cautions[-1])

    def numbers(self, target: int) -> NDArray[np.float64]:
        """A target column as float64 [rows], each finite in float32."""
        cells, column = self._cells[target], self.targets[target]
        values = np.array([number if (number := self.number(cell)) is not None else np.nan
                           for cell in cells])
        with np.errstate(over="ignore"):
            bad = np.flatnonzero(~np.isfinite(values.astype(np.float32)))
        lost = [row for row in np.flatnonzero(values == 0) if _underflows(cells[row])]
        if bad.size or lost:
            row = int(bad[0]) if bad.size else int(lost[0])
            raise self._bad(row, column, cells[row])
        return values

    def _check_spellings(self, target: int, numbers: NDArray[np.int64]) -> None:
        """Raise DataError if two labels of the column, such as 1 and 01, are the same number."""
        cells, first = self._cells[target], dict[int, str]()
        for row, (cell, number) in enumerate(zip(cells, numbers.tolist(), strict=True)):
            if first.setdefault(number, cell) != cell:
                raise DataError(f"{self._where(row, self.targets[target])} holds '{cell}', and a "
                                f"line before it '{first[number]}', which is the same whole "
                                f"number: write the labels of one class alike, and those of two "
                                f"classes as words")

    def answers(self, target: int, kind: Kind | None, known: bool = False) -> NDArray[Any]:
        """A target column: whole numbers as int64, others as float64, words as strings [rows].
        Numbers with decimals are no classes. If the names of the classes are `known`, labels are
        strings, to be looked up."""
        cells, column = self._cells[target], self.targets[target]
        if kind == "values":
            return self.numbers(target)
        for row, cell in enumerate(cells):
            if cell.lower() in MISSING:
                raise self._bad(row, column, cell)
        with contextlib.suppress(ValueError, OverflowError):
            whole = np.array([_whole(cell) for cell in cells], np.int64)
            self._check_spellings(target, whole)
            return whole
        comma = [row for row, cell in enumerate(cells) if self._of_another_mark(cell)]
        if len(comma) > len(cells) // 2 and not known:
            raise self._bad(comma[0], column, cells[comma[0]])
        if sum(self.number(cell) is None for cell in cells) > len(cells) // 2:
            return np.array(cells)
        if kind == "labels" and known:
            return np.array(cells)
        if kind == "labels":
            decimals = [row for row, cell in enumerate(cells) if self.number(cell) is not None
                        and not cell.lstrip("+-").isdecimal()]
            if not decimals:
                return np.array(cells)
            cell = cells[decimals[0]]
            number = self.number(cell)
            is_whole = number is not None and number.is_integer()
            raise DataError(f"{self._where(decimals[0], column)} holds {cell}: "
                            f"numbers with decimals are values, for --loss mse; the loss compares "
                            f"with classes, which are whole numbers or words"
                            + (f": write {number:.0f} for a class" if is_whole else ""))
        return self.numbers(target)


def _with_point(cell: str) -> float:
    """A number as CSV files write it. Python alone reads 1_000 as 1000. Raises ValueError."""
    if "_" in cell:
        raise ValueError
    return float(cell)


def _whole(cell: str) -> int:
    """A whole number as CSV files write it. Raises ValueError."""
    if "_" in cell:
        raise ValueError
    return int(cell)


def _float(cell: str, convert: Any = _with_point) -> float | None:
    try:
        number: float = convert(cell)
    except ValueError:
        return None
    return number


def _underflows(cell: str) -> bool:
    """Whether the text of a number that became 0 is that of another number."""
    digits = cell.lower().partition("e")[0]
    return any(digit.isdecimal() and int(digit) for digit in digits)


def _of_feature(text: str) -> str:
    """Why text is no input, and how to convert it."""
    if text.lower() in ("true", "false"):
        return "1 and 0 can stand for true and false"
    if _DATE.fullmatch(text):
        return "columns of numbers, such as year, month and day, can stand for a date or time"
    return "only a target may be a word; columns of 0 and 1, one for each word, can stand for it"
