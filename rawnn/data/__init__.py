"""Data sets: IDX files, which are found, fetched with checksums, validated and cached unzipped;
tables; and arrays of the caller.

Names load on first use, so that listing the data sets does not import NumPy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rawnn.data.catalog import DATASETS

if TYPE_CHECKING:
    from rawnn.data.arrays import from_arrays
    from rawnn.data.dataset import load_dataset
    from rawnn.data.dataset_types import Dataset
    from rawnn.data.normalise import Normalisation

_HOMES = {"Dataset": "dataset_types", "Normalisation": "normalise", "from_arrays": "arrays",
          "load_dataset": "dataset"}

__all__ = ["DATASETS", "Dataset", "Normalisation", "from_arrays", "load_dataset"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"rawnn.data.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
