"""Tables, charts and the report of what was measured: all of them read records alone."""

from __future__ import annotations

import os

from rawnn.bench.record import Results
from rawnn.bench.render.report import write_report
from rawnn.bench.render.suites import SUITES
from rawnn.bench.render.training import ladder_charts
from rawnn.common.errors import ConfigError


def markdown(results: Results, suite: str) -> str:
    """The tables of a suite in Markdown, with their notes and sources."""
    return "\n".join(grid.markdown() for grid in SUITES[suite].grids(results))


def plot_ladder(results: Results, path: str | os.PathLike[str]) -> None:
    """Draw the ladder into an SVG, PNG or PDF file, by its ending. Raises ConfigError where nothing
    was measured, MissingLibrary, RawnnError."""
    chart = ladder_charts(results).get("ladder")
    if chart is None:
        raise ConfigError("no rung was measured, so there is nothing to plot")
    chart.write(path)


__all__ = ["SUITES", "markdown", "plot_ladder", "write_report"]
