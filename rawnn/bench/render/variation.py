"""The score of many networks against what varied: a chart and a table of what `Many.to_dict` and
`rawnn many --json` have."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rawnn.bench.render.charts import LIGHT, Axis, Chart, divide
from rawnn.bench.render.grid import Grid
from rawnn.common.errors import ConfigError
from rawnn.engine.result import Environment
from rawnn.many.progress import HIGHER_IS_BETTER
from rawnn.many.result import SCHEMA_VERSION
from rawnn.many.tables import cell

WORDS = {"test_loss": "test loss", "test_accuracy": "test accuracy", "train_loss": "training loss",
         "lr": "learning rate", "weight_decay": "weight decay", "batch": "batch size"}
LOG_FROM = 10.0
"""The quotient of the ends from which an axis of positive numbers is logarithmic."""
ROWS = 10
"""Rows of the table of the best."""
_LABELS = 12
_HEAD = re.compile(rb'\{\s*"schema_version":\s*[0-9]+,\s*"members":')


def read_many(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """What a JSON file says of many networks, None for another file. Raises ConfigError for one
    that is torn, that a newer rawnn wrote, or that does not say where the networks trained."""
    try:
        with open(path, "rb") as file:
            if not _HEAD.match(file.read(200)):
                return None
        found: dict[str, Any] = msgspec.json.decode(Path(path).read_bytes())
    except OSError:
        return None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{os.fspath(path)} is not valid JSON: {error}") from None
    if found["schema_version"] > SCHEMA_VERSION:
        raise ConfigError(f"{os.fspath(path)} was written by a newer rawnn (schema_version "
                          f"{found['schema_version']}; this one reads up to {SCHEMA_VERSION}): "
                          f"update rawnn")
    if found.get("environment") is None:
        raise ConfigError(f"{os.fspath(path)} does not say where its networks trained, as it was "
                          f"written of a checkpoint: write it of the training itself, by rawnn "
                          f"many --json or by to_json of what train_many returns")
    return found


def environment_of(found: Mapping[str, Any]) -> Environment:
    """Where they trained."""
    return msgspec.convert(found["environment"], Environment)


def columns_of(found: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """The table, an array a column; numbers that there are none of are NaN."""
    return {name: np.array([np.nan if value is None else value for value in values])
            for name, values in found["table"].items()}


def best_of(found: Mapping[str, Any], rows: int = ROWS) -> Grid:
    """The best members by the figure that they were compared by."""
    table, monitor = columns_of(found), found["settings"]["monitor"]
    values = table[monitor].astype(np.float64)
    order = np.argsort(-values if monitor in HIGHER_IS_BETTER else values, kind="stable")[:rows]
    names = [name for name, column in table.items() if name != "best_epoch"
             and not (column.dtype.kind == "f" and np.isnan(column).all())]
    return Grid([name.replace("_", " ") for name in names],
                [[cell(table[name][i]) for name in names] for i in order], ("status",),
                f"The best {len(order)} of {found['members']:,} by {WORDS[monitor]}")


def chart_of(found: Mapping[str, Any]) -> Chart:
    """Medians, with quartiles over seeds, folds and whatever else varied, against one option that
    varied; against two, a map of medians. Raises ConfigError where nothing but seeds varied."""
    table, monitor = columns_of(found), found["settings"]["monitor"]
    named = [name for name in found["settings"]["varied"] if name != "seed"]
    varied = [name for name in named if len(np.unique(table[name])) > 1]
    if not varied:
        raise ConfigError("nothing but seeds and folds varied, so there is nothing to plot "
                          "against: add --vary, such as --vary lr=1e-4..1e-1:64")
    values = table[monitor].astype(np.float64)
    rest = [name for name in (*found["settings"]["varied"], "fold")
            if name in table and name not in varied[:2] and len(np.unique(table[name])) > 1]
    over = f", over {' and '.join(WORDS.get(n, n) + 's' for n in rest)}" if rest else ""
    facts = f"{found['members']:,} members of {found['facts'].get('dataset', 'the data')}"
    title = f"{WORDS[monitor].capitalize()} against {' and '.join(map(_words, varied[:2]))}"
    if len(varied) == 1:
        said = f"{facts}; median and quartiles{over}" if over else facts
        return Chart(title, said, lambda axes: _lines(axes, table[varied[0]], values, varied[0],
                                                      monitor))
    return Chart(title, f"{facts}; median{over}" if over else facts,
                 lambda axes: _map(axes, table[varied[0]], table[varied[1]], values, varied,
                                   monitor))


def _words(name: str) -> str:
    return WORDS.get(name, name)


def _quantiles(of: NDArray[Any], values: NDArray[np.float64]
               ) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """The distinct values of an option, and [3, values] quartiles of the score with each, NaN where
    no member has one."""
    distinct = np.unique(of)
    found = np.full((3, len(distinct)), np.nan)
    for place, value in enumerate(distinct):
        scores = values[of == value]
        if not np.isnan(scores).all():
            found[:, place] = np.nanquantile(scores, (0.25, 0.5, 0.75))
    return distinct, found


def _scale(values: NDArray[Any]) -> bool:
    """Whether an axis of these is logarithmic."""
    if values.dtype.kind not in "fiu":
        return False
    some = values[np.isfinite(values)]
    return bool(some.size and some.min() > 0 and some.max() >= LOG_FROM * some.min())


def _lines(axes: Any, of: NDArray[Any], values: NDArray[np.float64], name: str,
           monitor: str) -> None:
    distinct, (low, middle, high) = _quantiles(of, values)
    is_number = distinct.dtype.kind in "fiu"
    x = distinct if is_number else np.arange(len(distinct))
    axes.fill_between(x, low, high, color=LIGHT["bar"], alpha=0.45, linewidth=0)
    axes.plot(x, middle, "-", color=LIGHT["blue"], marker="o", markersize=4, linewidth=1.5)
    divide(axes, Axis(_words(name), "log" if is_number and _scale(distinct) else "linear"),
           Axis(WORDS[monitor], "log" if _scale(middle) else "linear"))
    if not is_number:
        axes.set_xticks(x, [str(value) for value in distinct])


def _map(axes: Any, across: NDArray[Any], up: NDArray[Any], values: NDArray[np.float64],
         names: list[str], monitor: str) -> None:
    columns, rows = np.unique(across), np.unique(up)
    grid = np.full((len(rows), len(columns)), np.nan)
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            scores = values[(up == row) & (across == column)]
            if not np.isnan(scores).all():
                grid[i, j] = np.nanmedian(scores)
    from matplotlib.colors import LogNorm

    norm = LogNorm() if _scale(grid) else None
    better = "viridis" if monitor == "test_accuracy" else "viridis_r"
    mesh = axes.pcolormesh(np.arange(len(columns)), np.arange(len(rows)),
                           np.ma.masked_invalid(grid), cmap=better, norm=norm, shading="nearest")
    for axis, distinct, name in (("x", columns, names[0]), ("y", rows, names[1])):
        every = -(-len(distinct) // _LABELS)
        places = np.arange(0, len(distinct), every)
        labels = [f"{v:.3g}" if distinct.dtype.kind in "fiu" else str(v) for v in distinct[places]]
        getattr(axes, f"set_{axis}ticks")(places, labels)
        getattr(axes, f"set_{axis}label")(_words(name))
    axes.figure.colorbar(mesh, ax=axes, label=WORDS[monitor])
