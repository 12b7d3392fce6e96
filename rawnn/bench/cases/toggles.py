"""The speedup of each toggle: workloads trained without and with it, as bench.toml says."""

from __future__ import annotations

from collections.abc import Sequence

import click

from rawnn.bench.case import Case
from rawnn.bench.cases.workloads import TRAINING, nothing_ran
from rawnn.bench.harness import Harness
from rawnn.bench.pairings import TogglesSuite, pairings
from rawnn.bench.render import training
from rawnn.bench.render.view import View
from rawnn.bench.suites import Suites
from rawnn.bench.training import measure_workloads
from rawnn.common.errors import ConfigError, unknown
from rawnn.opts import TOGGLES
from rawnn.opts.registry import Toggle


def measure(harness: Harness, suites: Suites, *, names: tuple[str, ...], repeats: int | None,
            epochs: int | None, dataset: str, device: str) -> None:
    """Measure the speedup of each toggle: the workloads that show it, without it and with it.

    All toggles are measured unless some are named.
    """
    suite: TogglesSuite = suites.toggles
    pairs = [pair for toggle in toggles_named(names, suite)
             for pairing in pairings(toggle, suite) for pair in pairing.variants]
    measure_workloads(harness, list(dict.fromkeys(pairs)), repeats or suite.repeats,
                      epochs or suite.epochs, device, dataset)


def toggles_named(names: Sequence[str], suite: TogglesSuite) -> list[Toggle]:
    """The toggles of these names, all that are compared unless some are given. Raises ConfigError
    for others."""
    for name in names:
        if name not in TOGGLES:
            raise unknown("toggle", name, TOGGLES, "the toggles are")
        if not pairings(TOGGLES[name], suite):
            raise ConfigError(
                f"'{name}' speeds up runs on several GPUs only: rawnn bench scaling measures it"
                if TOGGLES[name].group == "scale" else
                f"nothing under [toggles.compare] shows the speedup of '{name}'")
    return [TOGGLES[name] for name in names or TOGGLES if pairings(TOGGLES[name], suite)]


CASE = Case("toggles", measure, (
    click.argument("names", nargs=-1, metavar="[TOGGLE]..."), *TRAINING), nothing_ran,
    settings=TogglesSuite,
    view=View("Toggles", "Each toggle without it and with it.", training.toggles))
