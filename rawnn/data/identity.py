"""Identifies the data set that a run was trained on: by shapes, dtypes, classes, columns and the
digest of a sample, as plain values that a checkpoint stores."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.data.dataset_types import Dataset, listed

SAMPLE = 1_000_000
"""Most bytes of the examples that are read, whatever the size of the set."""
ROWS = 64
"""Least rows that a sample contains, if there are so many."""


def identity_of(data: Dataset) -> dict[str, Any]:
    """Plain values that are equal for the same data with the same split. `digest` is the SHA-256 of
    a sample of at most `SAMPLE` bytes, evenly spaced over the rows of every part."""
    parts: dict[str, NDArray[Any]] = {}
    shown: dict[str, str] = {}
    for part, title in (("train", "training"), ("test", "test")):
        inputs = getattr(data, f"{part}_images")
        parts[f"{title} inputs"] = inputs
        dtype = data.given_types.get(f"{part}_images", inputs.dtype.name)
        shown[f"{title} inputs"] = f"{list(inputs.shape)} of type {dtype}"
        for kind in ("labels", "targets"):
            answers = getattr(data, f"{part}_{kind}")
            if answers is not None:
                # Indices of classes are equal numbers in any dtype.
                parts[f"{title} {kind}"] = answers.astype(np.int32) if kind == "labels" else answers
                shown[f"{title} {kind}"] = f"{list(answers.shape)}"
    sha = hashlib.sha256()
    for array in parts.values():
        sha.update(_sample(array, SAMPLE // len(parts)))
    return {"parts": shown, "classes": data.classes, "label_names": list(data.label_names),
            "columns": list(data.feature_names),
            "split": None if data.split is None else list(data.split), "digest": sha.hexdigest()}


def _sample(array: NDArray[Any], size: int) -> bytes:
    """At most `size` bytes of [N] or [N, F], evenly spaced, including the first and the last row
    and column: complete rows, unless that leaves fewer than `ROWS` of them."""
    flat = array.reshape(len(array), -1)
    rows, columns = flat.shape
    count = size // flat.itemsize
    columns = min(columns, max(count // min(rows, ROWS), 1))
    rows = min(rows, count // columns)
    chosen = (np.linspace(0, have - 1, take).astype(np.int64)
              for have, take in zip(flat.shape, (rows, columns), strict=True))
    return flat[np.ix_(*chosen)].tobytes()


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Sentences on how the data `now` differ from those `before`; empty if they are the same."""
    found = []
    old, new = dict(before["parts"]), dict(now["parts"])
    if before["split"] != now["split"]:
        found.append(f"the test set was {_split(before['split'])}, and is {_split(now['split'])}")
    for name in dict.fromkeys((*old, *new)):
        if old.get(name) != new.get(name):
            found.append(f"the {name} were {old.get(name, 'none')}, and are "
                         f"{new.get(name, 'none')}")
    for name, what in (("label_names", "classes"), ("columns", "columns")):
        if before[name] != now[name]:
            found.append(f"the {what} were {listed(before[name])}, and are {listed(now[name])}")
    if not found and before["digest"] != now["digest"]:
        found.append("their values are others")
    return found


def _split(split: Any) -> str:
    if split is None:
        return "given by itself"
    return f"a fraction of {split[0]:g} split off by the seed {split[1]}"
