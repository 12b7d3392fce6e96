"""The speedup of each toggle of the fastest configuration, alone and together with the others."""

from __future__ import annotations

import click
import msgspec

from rawnn.bench.case import BUDGET, DEVICE, MNIST, Case
from rawnn.bench.harness import Harness, require_gpu
from rawnn.bench.render import training
from rawnn.bench.render.view import View
from rawnn.bench.suites import Count, Settings, Suites, check_workloads
from rawnn.bench.training import WorkloadOpt, measure_workloads, open_timed
from rawnn.engine.config import Config
from rawnn.model.workloads import workload
from rawnn.opts import select
from rawnn.opts.registry import Machine
from rawnn.plan.recipe import DataSpec

EXAMPLES = 60_000
"""Of the training set of MNIST."""


class AblationSuite(Settings, frozen=True, kw_only=True):
    """`bench ablation`: a workload with the fastest configuration `full`, less one toggle at a
    time, and with `base`, plus one at a time."""

    workload: str
    full: str
    base: str
    epochs: Count = 3
    repeats: Count = 3

    def __post_init__(self) -> None:
        check_workloads([self.workload])


def measure(harness: Harness, suites: Suites, *, repeats: int | None, dataset: str,
            device: str) -> None:
    """Measure the speedup of each toggle of the fastest configuration, alone and together with the
    others.

    The fastest configuration is trained less one toggle at a time, and the base with one toggle at
    a time."""
    opened = open_timed(harness, device)
    require_gpu(opened, "an ablation means something")
    tables: list[AblationSuite] = suites.ablation
    of = {pair: suite for suite in tables for t in ablated(suite, opened.machine)
          for pair in t.variants}
    epochs = {s.workload: max(o.epochs for o in tables if o.workload == s.workload)
              for s in tables}
    measure_workloads(harness, list(of), repeats or max(s.repeats for s in tables), epochs, device,
                      dataset, opened=opened,
                      conditions=lambda pair: {"base": of[pair].base, "full": of[pair].full})


class Ablated(msgspec.Struct, frozen=True, kw_only=True):
    """A toggle of a fastest configuration, and the four variants that show its speedup."""

    workload: str
    toggle: str
    base: str
    full: str

    @property
    def plus(self) -> str:
        """The base with it."""
        return f"{self.base},{self.toggle}"

    @property
    def less(self) -> str:
        """The fastest configuration without it."""
        return f"{self.full},-{self.toggle.partition('=')[0]}"

    @property
    def variants(self) -> list[WorkloadOpt]:
        return [(self.workload, opt) for opt in (self.base, self.full, self.plus, self.less)]


def ablated(suite: AblationSuite, machine: Machine) -> list[Ablated]:
    """The toggles that a fastest configuration has beyond its base on a machine. Raises
    ConfigError."""
    config = Config(**{**workload(suite.workload), "opt": suite.full, "epochs": suite.epochs})
    recipe, form = config.recipe(), DataSpec(EXAMPLES, labels="uint8", scale=1 / 255)
    steps = recipe.steps(EXAMPLES)

    def words(opt: str) -> list[str]:
        return select(opt, config.network(), steps, machine, batch=recipe.batch, recipe=recipe,
                      data_spec=form).words()

    base = words(suite.base)
    return [Ablated(workload=suite.workload, toggle=word, base=suite.base, full=suite.full)
            for word in words(suite.full) if word not in base]


CASE = Case("ablation", measure, (
    click.option("--repeats", type=click.IntRange(1), help="Runs of each variant (3)."),
    BUDGET, MNIST, DEVICE), settings=list[AblationSuite], view=View(
        "Ablation", "The fastest set less one toggle at a time, and the base with one at a time.",
        training.ablation, training.ablation_charts))
