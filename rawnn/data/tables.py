"""Tables (`.npz` archives and CSV files) as data sets."""

from __future__ import annotations

import csv
import os
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.common.csvformat import DEFAULT_FORMAT, Columns, CsvFormat, columns_of
from rawnn.common.errors import ConfigError, DataError, nearest
from rawnn.data.arrays import Pair, from_arrays
from rawnn.data.catalog import TABLES
from rawnn.data.columns import NamedColumns
from rawnn.data.csvfile import Sheet, not_decodable, open_text
from rawnn.data.dataset_types import DEFAULT_FRACTION, Dataset, Kind
from rawnn.data.normalise import Normalise, NormaliseTargets
from rawnn.data.precision import as_float32

_SPLIT_KEYS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True, eq=False)
class Table:
    """The content of a file: `inputs` [N, F], and `answers` [N] or [N, C], or None without a
    target: values of a CSV file are float64. `test` is the file's own test part. Names are empty if
    the file has none. `notes` are messages for the user, some of them
    `cautions`, as of a Dataset."""

    inputs: NDArray[Any]
    answers: NDArray[Any] | None
    test: Pair | None = None
    feature_names: tuple[str, ...] = ()
    target_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()


def load_table(
    path: str | os.PathLike[str],
    target: Columns = None,
    *,
    fraction: float = DEFAULT_FRACTION,
    normalise: Normalise = None,
    normalise_targets: NormaliseTargets = None,
    kind: Kind | None = None,
    seed: int = 0,
    label_names: Sequence[str] = (),
    classes: int | None = None,
    outputs: int | None = None,
    unseen_classes: bool = False,
    csv_format: CsvFormat = DEFAULT_FORMAT,
) -> Dataset:
    """A Dataset of the table at `path`: see `read_table` for the files, `target` and `csv_format`.

    A file without a test part is split: `fraction` of its rows, selected by `seed`, are for
    testing. Whole numbers and words in a single target column are classes unless `kind` says
    otherwise; other numbers, and several target columns, are values. A CSV file without a target is
    for an autoencoder. `outputs` are those of a network for an `.npz` file; they and
    `unseen_classes` are as in `from_arrays`. Raises DataError and ConfigError.
    """
    plain = normalise_targets in (None, "none")
    kind = kind if plain or kind else "values"
    table = read_table(path, target, kind, (), csv_format, bool(label_names), exact=True)
    is_text = Path(path).suffix.lower() != ".npz"
    test: Any = fraction if table.test is None else table.test
    inputs = NamedColumns(table.inputs, table.feature_names, table.notes, table.cautions)
    answers = None if table.answers is None else NamedColumns(table.answers, table.target_names)
    made = from_arrays(Pair(inputs, answers), test, normalise=normalise,
                       normalise_targets=normalise_targets, kind=kind, seed=seed,
                       name=_stem(Path(path)), source=os.fspath(path), label_names=label_names,
                       classes=classes, outputs=0 if is_text else outputs,
                       unseen_classes=unseen_classes, is_text=is_text)
    idle = () if table.test is None or fraction == DEFAULT_FRACTION else (
        f"validation = {fraction:g} has no effect: {path} has a test part of its own",)
    return replace(made, target_names=table.target_names, notes=(*made.notes, *idle))


def _stem(path: Path) -> str:
    ending = next((e for e in sorted(TABLES, key=len, reverse=True)
                   if path.name.lower().endswith(e)), path.suffix)
    return path.name.removesuffix(path.name[len(path.name) - len(ending):]) or path.name


def read_table(path: str | os.PathLike[str], target: Columns = None, kind: Kind | None = None,
               features: Sequence[str] = (), csv_format: CsvFormat = DEFAULT_FORMAT,
               classes_known: bool = False, exact: bool = False) -> Table:
    """Read a table.

    `.npz`: the arrays `X` and `y`, or `x_train`, `y_train`, `x_test` and `y_test`, in any case. `y`
    is optional. `target` is not allowed, unless it names an array to be used instead of `y`.

    `.csv` (or `.tsv`, either also with `.gz`): numbers, separated by commas, semicolons, tabs or
    vertical bars, with or without a header. `target` names the column to be predicted, or several,
    as a list or comma-separated, each by its name or its index (from 0; -1 is the last). With a
    header, `features` selects the input columns in their order; without `features` all are inputs
    but the target and those that `csv_format` skips. `csv_format` also has the encoding and the
    decimal mark. Inputs are float32; `exact` leaves them float64, for a normalisation that needs
    it.

    A target column of numbers with decimals is refused for `kind` "labels", unless the names of the
    classes are known, among which the caller looks labels up.

    Raises DataError, naming row and column, for unreadable values, ConfigError for a missing
    column.
    """
    file = Path(path)
    if file.suffix.lower() == ".npz":
        if option := csv_format.given():
            raise ConfigError(f"{option} is for a CSV file, and {path} holds arrays: leave it out")
        return _read_npz(file, columns_of(target))
    return _read_csv(file, target, kind, features, csv_format, classes_known, exact)


# -- npz ------------------------------------------------------------------------------------------


def _read_npz(path: Path, targets: list[str]) -> Table:
    arrays = _load_npz(path)
    if len(targets) > 1:
        raise ConfigError(f"{path} holds arrays, of which one is the target, not {len(targets)}: "
                          f"put all values into one array [examples, outputs]")
    target = targets[0] if targets else None
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
        if "allow_pickle" in str(error):  # NumPy says so of any file that is no archive
            reason = "it holds pickled Python objects, which are not loaded: save texts as " \
                     "y.astype(str), and numbers as x.astype(float)" \
                if zipfile.is_zipfile(path) else "it is damaged or no .npz file"
        raise DataError(f"{path} cannot be read: {reason}") from None
    except MemoryError:
        raise DataError(f"{path} declares arrays that do not fit in memory") from None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__


# -- CSV ------------------------------------------------------------------------------------------


def _read_csv(path: Path, target: Columns, kind: Kind | None, features: Sequence[str],
              csv_format: CsvFormat, classes_known: bool, exact: bool) -> Table:
    sheet = Sheet(path, target, features, csv_format)
    try:
        with open_text(path, csv_format.encoding) as file:
            sheet.read(file)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a readable gzip file: {_line(error)}") from None
    except UnicodeDecodeError as error:
        raise not_decodable(path, csv_format, f"{error.reason} at byte {error.start}") from None
    except UnicodeError as error:  # UTF-16 without a byte-order mark
        raise not_decodable(path, csv_format, _line(error)) from None
    except csv.Error as error:
        raise DataError(f"{path} is not a readable CSV file: {error}") from None
    answers: NDArray[Any] | None = None
    if len(sheet.targets) == 1:
        answers = sheet.answers(0, kind, classes_known)
    elif sheet.targets:
        answers = np.stack([sheet.numbers(i) for i in range(len(sheet.targets))], axis=1)
    inputs = sheet.inputs()
    if sheet.has_large_numbers and path.is_file():  # a pipe cannot be read twice
        with open_text(path, csv_format.encoding) as file:
            sheet.note_merged(file)
    names = tuple(sheet.header[c] for c in sheet.features) if sheet.header else ()
    return Table(inputs if exact else as_float32(inputs, os.fspath(path), None, names), answers,
                 None, names,
                 tuple(sheet.header[c] for c in sheet.targets) if sheet.header else (),
                 tuple(sheet.notes), tuple(sheet.cautions))
