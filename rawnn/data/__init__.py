"""Data sets: IDX files found, fetched with checksums, validated, and cached unzipped.

The names load on first use, so that asking for the list of data sets costs no NumPy import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rawnn.data.catalog import DATASETS

if TYPE_CHECKING:
    from rawnn.data.dataset import Dataset, load_dataset

__all__ = ["DATASETS", "Dataset", "load_dataset"]


def __getattr__(name: str) -> Any:
    if name in ("Dataset", "load_dataset"):
        from rawnn.data import dataset

        return getattr(dataset, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
