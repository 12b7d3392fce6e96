"""The score of many networks against what varied, as a chart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rawnn.bench.render.charts import LIGHT, Axis, Chart, divide
from rawnn.common.errors import ConfigError

if TYPE_CHECKING:
    from rawnn.many.result import Many

WORDS = {"test_loss": "test loss", "test_accuracy": "test accuracy", "train_loss": "training loss",
         "lr": "learning rate", "weight_decay": "weight decay", "batch": "batch size"}
LOG_FROM = 10.0
"""The quotient of the ends from which an axis of positive numbers is logarithmic."""
_LABELS = 12


def chart_of(many: Many) -> Chart:
    """Medians, with quartiles over seeds, folds and whatever else varied, against one option that
    varied; against two, a map of medians. Raises ConfigError where nothing but seeds varied."""
    table, monitor = many.table(), many.monitor
    named = [name for name in many.stored.settings["varied"] if name != "seed"]
    varied = [name for name in named if len(np.unique(table[name])) > 1]
    if not varied:
        raise ConfigError("nothing but seeds and folds varied, so there is nothing to plot "
                          "against: add --vary, such as --vary lr=1e-4..1e-1:64")
    values = table[monitor].astype(np.float64)
    rest = [name for name in (*many.stored.settings["varied"], "fold")
            if name in (table.dtype.names or ()) and name not in varied[:2]
            and len(np.unique(table[name])) > 1]
    over = f", over {' and '.join(WORDS.get(n, n) + 's' for n in rest)}" if rest else ""
    facts = f"{len(many):,} members of {many.stored.facts.get('dataset', 'the data')}"
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
