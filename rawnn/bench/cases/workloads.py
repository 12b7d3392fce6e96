"""The built-in workloads, each with the toggles that say most about it."""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec

from rawnn.bench.case import BUDGET, DEVICE, MNIST, WORKLOADS, Case
from rawnn.bench.harness import Harness
from rawnn.bench.record import Results
from rawnn.bench.render import training
from rawnn.bench.render.view import View
from rawnn.bench.suites import OTHERS, Count, Settings, Suites, check_workloads
from rawnn.bench.training import WorkloadOpt, measure_workloads
from rawnn.model.workloads import workload

REPEATS = click.option("--repeats", type=click.IntRange(1),
                       help="Runs of each, with a seed of its own each time (3).")
EPOCHS = click.option("--epochs", type=click.IntRange(1),
                      help="Passes over the data (those of bench.toml, else the workload's own).")
TRAINING = (REPEATS, BUDGET, EPOCHS, MNIST, DEVICE)
"""The options of all that trains workloads."""


class WorkloadsSuite(Settings, frozen=True, kw_only=True):
    """`bench workloads`: workloads by name, and the toggles that each is trained with (`sets`);
    `others` are those of workloads that have none. `epochs` likewise, where they are not the
    workload's own."""

    names: list[str]
    repeats: Count
    epochs: dict[str, Count] = msgspec.field(default_factory=dict)
    sets: dict[str, list[str]]

    def __post_init__(self) -> None:
        check_workloads(self.names)
        for key in ("sets", "epochs"):
            check_workloads(set(getattr(self, key)) - {OTHERS}, key)


def measure(harness: Harness, suites: Suites, *, names: tuple[str, ...], opts: tuple[str, ...],
            repeats: int | None, epochs: int | None, dataset: str, device: str) -> None:
    """Measure the built-in workloads: time a step, accuracy and device memory."""
    suite: WorkloadsSuite = suites.workloads
    measure_workloads(harness, workload_opts(names or suite.names, opts, suite),
                      repeats or suite.repeats, epochs or suite.epochs, device, dataset)


def default_opts(name: str, suite: WorkloadsSuite) -> list[str]:
    """The toggles that a workload is measured with. Raises ConfigError for an unknown name."""
    workload(name)
    return list(suite.sets.get(name, suite.sets.get(OTHERS, ["best"])))


def workload_opts(names: Sequence[str], opts: Sequence[str],
                  suite: WorkloadsSuite) -> list[WorkloadOpt]:
    """Every workload with each of `opts`, those of bench.toml unless some are given."""
    return [(name, opt) for name in names for opt in (opts or default_opts(name, suite))]


def nothing_ran(results: Results) -> str:
    """A sentence where not one variant could run."""
    found = any(entry.samples("accuracy") for entry in results.entries())
    return "" if found else "none of it can run here; the reasons stand above"


CASE = Case("workloads", measure, (
    WORKLOADS,
    click.option("--opt", "opts", multiple=True, metavar="TOGGLES",
                 help="Toggles to measure each with; several may be given (best, the workload's "
                      "own, and best,sr where its weights are in 16 bits)."),
    *TRAINING), nothing_ran, settings=WorkloadsSuite,
    view=View("Workloads", "", training.workloads))
