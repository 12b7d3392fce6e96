"""Figures on the classification of each class, as tables."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Column, Table
from rich.text import Text

MOST_CLASSES = 30
"""Most classes for which a confusion matrix fits a terminal."""

Counts = NDArray[np.int64]


def class_figures(confusion: Counts) -> list[dict[str, Any]]:
    """For each class: `examples`, `precision`, `recall` and their harmonic mean `f1` (NaN for
    0 / 0)."""
    right = np.diag(confusion).astype(float)
    with np.errstate(invalid="ignore", divide="ignore"):
        precision = right / confusion.sum(axis=0)
        recall = right / confusion.sum(axis=1)
        f1 = 2 * right / (confusion.sum(axis=0) + confusion.sum(axis=1))
    return [{"examples": int(n), "precision": float(p), "recall": float(r), "f1": float(f)}
            for n, p, r, f in zip(confusion.sum(axis=1), precision, recall, f1, strict=True)]


def class_table(confusion: Counts, names: list[str]) -> Table:
    """Precision, recall and F1 of each class."""
    table = Table("class", *(_right(c) for c in ("examples", "precision", "recall", "F1")))
    for name, row in zip(names, class_figures(confusion), strict=True):
        table.add_row(Text(name), f"{row['examples']:,}",
                      *(_share(row[key]) for key in ("precision", "recall", "f1")))
    return table


def confusion_table(confusion: Counts, names: list[str]) -> Table:
    """Rows are the true classes, columns the predicted ones; zeros are left out."""
    table = Table("", *(_right(name) for name in names), title="true class by row, predicted class "
                                                              "by column")
    for place, (name, row) in enumerate(zip(names, confusion, strict=True)):
        cells = [Text(f"{n:,}" if n or place == at else "", "bold" if place == at else "")
                 for at, n in enumerate(row.tolist())]
        table.add_row(Text(name), *cells)
    return table


def _right(name: str) -> Any:
    return Column(Text(name), justify="right")


def _share(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.4f}"
