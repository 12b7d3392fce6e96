"""How a suite of `rawnn bench` is shown, and how one is that does not say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rawnn.bench.record import Entry, Results, unit_of
from rawnn.bench.render.charts import Chart
from rawnn.bench.render.grid import Grid
from rawnn.bench.render.tables import (
    Column,
    median_of,
    provenance,
    range_of,
    remarks,
    table,
    text,
    workload,
)
from rawnn.bench.render.texts import three_digits

Grids = Callable[[Results], list[Grid]]
Charts = Callable[[Results], dict[str, Chart]]


@dataclass(frozen=True)
class View:
    """How a suite is shown: in a terminal, in Markdown and in the report. A table is a tuple of
    columns (rawnn/bench/render/tables.py) over its entries, or a function where rows are not
    entries. Charts have names, by which results/ keeps them."""

    title: str
    text: str
    grids: Grids
    charts: Charts = lambda results: {}


def default_view(suite: str) -> View:
    """A row for each variant, with the median and the range of each metric that it has."""

    def grids(results: Results) -> list[Grid]:
        entries = results.entries(suite)
        return [table(_columns(entries), results, entries, notes=remarks(entries),
                      source=provenance(results, entries))] if entries else []

    return View(suite.replace("-", " ").capitalize(), "", grids)


def _columns(entries: Sequence[Entry]) -> list[Column]:
    found = [Column("case", lambda e, s: workload(e), left=True, optional=True),
             text("variant", lambda e: e.variant),
             Column("precision", lambda e, s: e.precision, left=True, optional=True)]
    for number, metric in enumerate(dict.fromkeys(r.metric for e in entries for r in e.records)):
        unit = unit_of(metric)
        heading = f"{metric.removesuffix(f'_{unit}')} ({unit})" if unit else metric
        found += [median_of(heading, metric, three_digits, "" if number else "status"),
                  range_of(f"min-max of {metric}", metric, three_digits)]
    return found
