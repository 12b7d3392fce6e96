"""The speedup of each toggle: workloads trained without and with it, as bench.toml says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import click

from rawnn.bench.case import Case
from rawnn.bench.cases.workloads import TRAINING, nothing_ran
from rawnn.bench.harness import Harness
from rawnn.bench.suites import Suites, TogglesSuite
from rawnn.bench.training import WorkloadOpt, measure_workloads
from rawnn.common.errors import ConfigError, unknown
from rawnn.opts import TOGGLES
from rawnn.opts.presets import PRESETS
from rawnn.opts.registry import Toggle


def measure(harness: Harness, suites: Suites, *, names: tuple[str, ...], repeats: int | None,
            epochs: int | None, dataset: str, device: str) -> None:
    """Measure the speedup of each toggle: the workloads that show it, without it and with it.

    All toggles are measured unless some are named.
    """
    suite = suites.toggles
    pairs = [pair for toggle in toggles_named(names, suite)
             for pairing in pairings(toggle, suite) for pair in pairing.variants]
    measure_workloads(harness, list(dict.fromkeys(pairs)), repeats or suite.repeats,
                      epochs or suite.epochs, device, dataset)


@dataclass(frozen=True)
class Pairing:
    """One workload that shows the speedup of `toggle`: trained with the toggles `beside`, and with
    each of `added` beside those, the toggle itself unless some are given. Where the toggle stands
    in `beside` with a part left out (fuse=-head), it is that which is replaced: the pairing then
    shows the speedup of the part."""

    toggle: str
    workload: str
    beside: str
    added: tuple[str, ...]

    @property
    def is_of_part(self) -> bool:
        return any(word.startswith(f"{self.toggle}=-") for word in self.beside.split(","))

    @property
    def opts(self) -> list[str]:
        """Toggles as after --opt: those without it first, then with each that is added."""
        beside = self.beside.split(",")
        without = [word for word in beside if word.partition("=")[0] != self.toggle]
        return [_in_order(beside), *(_in_order([*without, word]) for word in self.added)]

    @property
    def variants(self) -> list[WorkloadOpt]:
        """What must be measured for it."""
        return [(self.workload, opt) for opt in self.opts]


def pairings(toggle: Toggle, suite: TogglesSuite) -> list[Pairing]:
    """What shows the speedup of a toggle, then what shows that of its parts."""
    found = [Pairing(toggle.name, name, c.beside, tuple(c.added) or (toggle.name,))
             for c in suite.compare.get(toggle.name, ()) for name in c.workloads]
    return sorted(found, key=lambda pairing: pairing.is_of_part)


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


def _in_order(words: Sequence[str]) -> str:
    """Toggles in the order of the registry behind a preset, so that equal lists are one."""
    places = {name: place for place, name in enumerate((*PRESETS, *TOGGLES))}
    return ",".join(sorted(filter(None, words), key=lambda word: places[word.partition("=")[0]]))


CASE = Case("toggles", measure, (
    click.argument("names", nargs=-1, metavar="[TOGGLE]..."), *TRAINING), nothing_ran)
