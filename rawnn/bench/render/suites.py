"""What each suite of `rawnn bench` shows: its title, its tables and its charts.

A case shows itself by one line of SUITES. A table is a tuple of columns
(rawnn/bench/render/tables.py) over its entries, or a function where rows are not entries; a chart
is a kind of rawnn/bench/render/charts.py with its numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rawnn.bench.record import Results
from rawnn.bench.render import curves, machine, peers, sample, training
from rawnn.bench.render.charts import Chart
from rawnn.bench.render.grid import Grid

Grids = Callable[[Results], list[Grid]]
Charts = Callable[[Results], dict[str, Chart]]


def _none(results: Results) -> dict[str, Chart]:
    return {}


@dataclass(frozen=True)
class Suite:
    """How a suite is shown: in a terminal, in Markdown and in the report. Charts have names, by
    which results/ keeps them."""

    title: str
    text: str
    grids: Grids
    charts: Charts = _none


SUITES: dict[str, Suite] = {
    "ladder": Suite("The ladder", "The same training with one optimization more at every rung.",
                    training.ladder, training.ladder_charts),
    "sample": Suite("Random networks", "Networks that nobody has tuned to. Ratios are the peers' "
                    "time over that of rawnn: above 1 rawnn is faster, below 1 slower.",
                    sample.sample, sample.sample_charts),
    "peers": Suite("Built-in workloads and peers", "Every program of every system.",
                   lambda results: [*peers.headline(results), *peers.programs("peers")(results)]),
    "sweep": Suite("Width and batch", "The fastest variant of each system and precision.",
                   peers.programs("sweep"), peers.sweep_charts),
    "ablation": Suite("Ablation", "The fastest set less one toggle at a time, and the base with "
                      "one at a time.", training.ablation, training.ablation_charts),
    "curves": Suite("Loss curves", "From the same weights on the same batches: curves that lie on "
                    "top of each other did the same work.", curves.curves, curves.curve_charts),
    "workloads": Suite("Workloads", "", training.workloads),
    "toggles": Suite("Toggles", "Each toggle without it and with it.", training.toggles),
    "lower-bounds": Suite("What limits this GPU", "Launches, barriers, memory and arithmetic by "
                          "themselves: what 'x lower bound' is counted from.",
                          machine.lower_bounds),
    "launches": Suite("What a launch costs the host", "One small kernel, launched from Python by "
                      "each system that is installed.", machine.launches),
    "scaling": Suite("Several GPUs", "The same batch on more GPUs, and more examples with them.",
                     machine.scaling, machine.scaling_charts),
    "phases": Suite("Phases of the generated kernel", "Cycles of each phase of a step, and those "
                    "that the cost model expects.", machine.phases),
    "compare": Suite("Comparison", "Sets of toggles on one network.", training.comparison),
    "check": Suite("Random runs", "Each checked against NumPy.", machine.checks),
}
"""Suites in the order of the report."""
