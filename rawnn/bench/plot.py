"""A ladder as a bar chart. matplotlib is imported only when one is drawn."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from rawnn.bench.records import LadderResult
from rawnn.bench.scaling import SYSTEMS, ScalingResult
from rawnn.bench.table import Row, milliseconds, rows, times_text
from rawnn.common.errors import ConfigError, MissingLibrary
from rawnn.common.files import write_atomically

STYLE = {"svg.fonttype": "none", "svg.hashsalt": "rawnn", "font.family": "sans-serif"}
BAR, BASE_BAR, INK = "#3b6ea5", "#9aa5b1", "#333333"


def require_matplotlib() -> Any:
    """matplotlib, drawing without a display. Raises MissingLibrary."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingLibrary(
            f"--plot needs matplotlib, which cannot be imported ({error}): pip install matplotlib"
        ) from None
    matplotlib.use("Agg")
    return matplotlib


def plot_ladder(ladder: LadderResult, path: str | os.PathLike[str]) -> None:
    """Write a horizontal bar chart (SVG, PNG or PDF by the ending), one bar a measured rung, its
    length the median epoch on a log scale, its whisker from the fastest to the slowest repetition.

    The same ladder gives the same bytes of SVG. Raises ConfigError if nothing was measured,
    MissingLibrary, RawnnError.
    """
    matplotlib = require_matplotlib()
    from matplotlib.figure import Figure

    measured = [row for row in rows(ladder) if row.rung.average_epoch_ms]
    if not measured:
        raise ConfigError("no rung was measured, so there is nothing to plot")
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.0, 1.4 + 0.38 * len(measured)), layout="constrained")
        _draw(figure.add_subplot(), measured, ladder)
        _write(figure, path)


def plot_scaling(result: ScalingResult, path: str | os.PathLike[str]) -> None:
    """Write speed-ups (examples a second over those of one rank) against ranks, strong scaling on
    the left and weak on the right, a line for each workload and system; perfect scaling is dotted.

    The same result gives the same bytes of SVG. Raises ConfigError if nothing was measured on
    several ranks, MissingLibrary, RawnnError.
    """
    matplotlib = require_matplotlib()
    from matplotlib.figure import Figure

    lines: dict[tuple[str, str, str], list[tuple[int, float]]] = {}
    for point in result.points:
        if (ratio := result.speed_up(point)) is not None:
            key = point.scaling, point.workload, SYSTEMS[point.system]
            lines.setdefault(key, []).append((point.ranks, ratio))
    most = max((n for line in lines.values() for n, _ in line), default=1)
    if most == 1:
        raise ConfigError("nothing was measured on several ranks, so there is nothing to plot")
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.0, 3.6), layout="constrained")
        for axes, scaling in zip(figure.subplots(1, 2, sharey=True), ("strong", "weak"),
                                 strict=True):
            axes.plot([1, most], [1, most], ":", color=BASE_BAR)
            for (kind, workload, system), line in lines.items():
                if kind == scaling:
                    axes.plot(*zip(*line, strict=True), marker="o", label=f"{workload}, {system}",
                              linestyle="-" if system == SYSTEMS["rawnn"] else "--")
            axes.set_xticks(sorted({n for line in lines.values() for n, _ in line}))
            axes.set_xlabel("ranks")
            axes.set_title(f"{scaling} scaling", loc="left", fontsize=11)
            axes.grid(color="#dddddd")
        figure.axes[0].set_ylabel("speed-up")
        figure.axes[0].legend(fontsize=8)
        _write(figure, path)


def _write(figure: Any, path: str | os.PathLike[str]) -> None:
    content = io.BytesIO()
    ending = Path(path).suffix.lstrip(".").lower() or "svg"
    try:
        figure.savefig(content, format=ending, dpi=150,
                       metadata={"Date": None} if ending == "svg" else None)
    except ValueError as error:
        raise ConfigError(f"cannot plot to {path}: {error}") from None
    write_atomically(path, content.getvalue())


def _draw(axes: Any, measured: list[Row], ladder: LadderResult) -> None:
    spreads = [row.rung.average_epoch_ms for row in measured if row.rung.average_epoch_ms]
    medians = [s.median for s in spreads]
    whiskers = [[s.median - s.min for s in spreads], [s.max - s.median for s in spreads]]
    places = range(len(measured))
    axes.barh(places, medians, xerr=whiskers, height=0.7, ecolor=INK, capsize=2.5,
              color=[BAR if row.overall is not None else BASE_BAR for row in measured])
    for place, row, s in zip(places, measured, spreads, strict=True):
        factor = f"  ({times_text(row.overall)}x)" if row.overall is not None else ""
        axes.annotate(f"{milliseconds(s.median)} ms{factor}", (s.max, place), xytext=(6, 0),
                      textcoords="offset points", va="center", color=INK, fontsize=9)
    axes.set_xscale("log")
    axes.set_xlim(min(s.min for s in spreads) / 2, max(s.max for s in spreads) * 3)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_yticks(places, [row.rung.name for row in measured])
    axes.invert_yaxis()
    config, gpu = ladder.config, ladder.environment.gpu
    axes.set_title(
        f"One epoch of {'-'.join(map(str, config.layers))} on {ladder.dataset}, batch "
        f"{config.batch}, {gpu['name'] if gpu else 'host (NumPy)'}", loc="left", fontsize=11)
    axes.set_xlabel("average epoch, ms, log scale: shorter is faster "
                    "(brackets: times faster than the baseline)")
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="x", which="major", color="#dddddd")
    axes.set_axisbelow(True)
