"""What each suite shows: its case says so, else it is shown as all are that do not."""

from __future__ import annotations

import os

from rawnn.bench.case import all_cases
from rawnn.bench.record import Results
from rawnn.bench.render.training import comparison, ladder_charts
from rawnn.bench.render.view import View, default_view
from rawnn.common.errors import ConfigError

SUITES: dict[str, View] = {
    **{case.name: case.view or default_view(case.name) for case in all_cases().values()},
    "compare": View("Comparison", "Sets of toggles on one network.", comparison)}
"""Suite -> how it is shown. `rawnn compare` is no case of `rawnn bench`."""


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
