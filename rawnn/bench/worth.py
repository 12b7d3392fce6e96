"""What each toggle is worth: workloads trained without and with it, as bench.toml says, and the
tables of its page in docs/toggles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from rich.table import Table

from rawnn.bench.columns import TRAFFIC, filled, markdown_table
from rawnn.bench.footprint import traffic, x_floor
from rawnn.bench.series import restored
from rawnn.bench.sets import Measurement, SetsResult, WorkloadSet
from rawnn.bench.statistics import ratio_interval
from rawnn.bench.suites import TogglesSuite, read_suites
from rawnn.bench.table import milliseconds, times_text
from rawnn.common.errors import ConfigError, unknown
from rawnn.opts import TOGGLES
from rawnn.opts.presets import PRESETS
from rawnn.opts.registry import Toggle


@dataclass(frozen=True)
class Pairing:
    """One workload of a comparison (rawnn/bench/suites.py)."""

    workload: str
    beside: str
    added: tuple[str, ...] = ()

    def of_part(self, toggle: Toggle) -> bool:
        """Whether it shows what a part of the toggle is worth, which is left out beside it."""
        return any(word.startswith(f"{toggle.name}=-") for word in self.beside.split(","))


@cache
def _packaged() -> TogglesSuite:
    return read_suites().toggles


def pairings(toggle: Toggle, suite: TogglesSuite | None = None) -> list[Pairing]:
    """What shows the worth of a toggle, then what shows that of its parts; by the packaged file
    unless a suite is given."""
    found = [Pairing(name, c.beside, tuple(c.added))
             for c in (suite or _packaged()).compare.get(toggle.name, ()) for name in c.workloads]
    return sorted(found, key=lambda p: p.of_part(toggle))


def toggles_named(names: Sequence[str], suite: TogglesSuite | None = None) -> list[Toggle]:
    """The toggles of these names, all that are compared unless some are given. Raises ConfigError
    for others."""
    for name in names:
        if name not in TOGGLES:
            raise unknown("toggle", name, TOGGLES, "the toggles are")
        if not pairings(TOGGLES[name], suite):
            raise ConfigError(
                f"'{name}' is worth something with several GPUs only: rawnn bench scaling measures "
                f"it" if TOGGLES[name].group == "scale" else
                f"nothing under [toggles.compare] shows what '{name}' is worth")
    return [TOGGLES[name] for name in names or TOGGLES if pairings(TOGGLES[name], suite)]


def comparison_sets(toggles: Sequence[Toggle],
                    suite: TogglesSuite | None = None) -> list[WorkloadSet]:
    """All that must be measured to compare these toggles, each once."""
    return list(dict.fromkeys((c.workload, opt) for toggle in toggles
                              for c in pairings(toggle, suite) for opt in _opts(toggle, c)))


def _opts(toggle: Toggle, comparison: Pairing) -> list[str]:
    """Toggles as after --opt: those without it first, then with each that is added."""
    beside = comparison.beside.split(",")
    without = [word for word in beside if word.partition("=")[0] != toggle.name]
    return [_in_order(beside), *(_in_order([*without, word])
                                 for word in comparison.added or (toggle.name,))]


def _in_order(words: Sequence[str]) -> str:
    """Toggles in the order of the registry behind a preset, so that equal sets are one."""
    places = {name: place for place, name in enumerate((*PRESETS, *TOGGLES))}
    return ",".join(sorted(filter(None, words), key=lambda word: places[word.partition("=")[0]]))


def _key(workload: str, opt: str) -> WorkloadSet:
    """A set as it is looked up: in older results every list began with nothing but what it says."""
    return workload, opt.removeprefix("none,")


def _found(result: SetsResult) -> dict[WorkloadSet, Measurement]:
    """What was measured or refused; a run that was ended early did not come to the rest."""
    return {_key(m.workload, m.opt): m for m in result.measurements if m.epoch_ms or m.reason}


def has_all(result: SetsResult, toggle: Toggle) -> bool:
    """Whether everything was measured that the toggle is compared by, its parts aside."""
    wanted = {_key(c.workload, opt) for c in pairings(toggle) if not c.of_part(toggle)
              for opt in _opts(toggle, c)}
    return bool(wanted) and wanted <= _found(result).keys()


def _shown(toggle: Toggle, results: Sequence[Mapping[WorkloadSet, Measurement]],
           suite: TogglesSuite | None) -> Iterator[Pairing]:
    """Its comparisons, and those of its parts that one of the results has."""
    for pairing in pairings(toggle, suite):
        if not pairing.of_part(toggle) or any(
                _key(pairing.workload, _opts(toggle, pairing)[0]) in found for found in results):
            yield pairing


def markdown(toggle: Toggle, results: Sequence[SetsResult],
             suite: TogglesSuite | None = None) -> str:
    """The table of a toggle, with a column for each result's machine; below it what could not
    run, and provenance.

    Milliseconds an epoch; in brackets how many times faster than without it. Accuracy and memory
    are those of the result with the most runs; times the least, launches, nodes and bytes those of
    the first that knows them.
    """
    machines = [_name(result) for result in results]
    heads = ["workload", "toggles", *machines, "x floor", *TRAFFIC, "other GPUs", "test accuracy",
             "memory"]
    rows: list[list[str]] = []
    below: list[str] = []
    found = [_found(result) for result in results]
    for comparison in _shown(toggle, found, suite):
        opts = _opts(toggle, comparison)
        bases = [known.get(_key(comparison.workload, opts[0])) for known in found]
        said = [f"`{comparison.beside}`" if comparison.beside else "nothing",
                *(f"with `{added}`" for added in comparison.added or (toggle.name,))]
        for words, opt in zip(said, opts, strict=True):
            mine = [each.get(_key(comparison.workload, opt)) for each in found]
            fullest = max(filter(None, mine), key=lambda m: len(m.accuracies), default=None)
            known = next((m for m in mine if m and m.footprint and m.footprint.floor), fullest)
            rows.append([
                f"`{comparison.workload}`" if opt == opts[0] else "", words,
                *(_time(m, None if m is b else b) for m, b in zip(mine, bases, strict=True)),
                _floored(known), *traffic(known.footprint if known else None),
                "not measured", fullest.accuracy() if fullest and fullest.accuracies else "",
                fullest.memory() if fullest and fullest.peak_memory_bytes else "",
            ])
            below += [f"- {machine} cannot run {comparison.workload} with `{opt}`: {m.reason}"
                      for machine, m in zip(machines, mine, strict=True) if m and m.reason]
    below += [""] if below else []
    lines = markdown_table(heads, rows, ("workload", "toggles", "other GPUs"))
    return "\n".join([*lines, "", *below, *(f"{r.provenance()}.  " for r in results[:-1]),
                      f"{results[-1].provenance()}.", ""])


def terminal_table(toggle: Toggle, result: SetsResult,
                   suite: TogglesSuite | None = None) -> tuple[Table, list[str]]:
    """The table of a toggle for a terminal, and what could not run, in sentences; rich."""
    table = Table(box=None, pad_edge=False)
    rows: list[list[str]] = []
    found = _found(result)
    below: dict[str, None] = {}
    for comparison in _shown(toggle, [found], suite):
        opts = _opts(toggle, comparison)
        base = found.get(_key(comparison.workload, opts[0]))
        for place, (added, opt) in enumerate(
                zip(("", *(comparison.added or (toggle.name,))), opts, strict=True)):
            mine = found.get(_key(comparison.workload, opt))
            rows.append(["" if place else comparison.workload,
                         f"with {added}" if place else comparison.beside or "none",
                         _time(mine, None if mine is base else base), _floored(mine),
                         mine.accuracy() if mine and mine.accuracies else ""])
            if mine and mine.reason:
                below[f"cannot run here: {mine.reason}"] = None
    headings, shown = filled(("workload", "toggles", "ms an epoch", "x floor", "accuracy"), rows)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in shown:
        table.add_row(*row)
    return table, list(below)


def _floored(measured: Measurement | None) -> str:
    """How many times the least time of a step."""
    return x_floor(measured.us.median, measured.footprint) if measured and measured.us else ""


def _name(result: SetsResult) -> str:
    gpu = result.environment.gpu
    if result.environment.device == "sim":
        return "SIMULATED GPU"
    return str(gpu["name"]) if gpu else "host (wall clock)"


def _time(measured: Measurement | None, base: Measurement | None) -> str:
    """Milliseconds an epoch, and how many times faster than the other, with the bootstrap 95 %
    interval of that; where it holds 1, the difference is in the noise."""
    if measured is None or measured.epoch_ms is None:
        return "cannot run" if measured and measured.reason else "not measured"
    mine, other = measured.epoch_ms, base.epoch_ms if base else None
    median = milliseconds(mine.median)
    text = median + (f" ± {mine.mad:.{len(median.partition('.')[2])}f}" if mine.n > 1 else "")
    if base is None or other is None:
        return text
    ratio = f"{times_text(other.median / mine.median)} x"
    if min(mine.n, other.n) == 1:
        return f"{text} ({ratio}, run once)"
    low, high = ratio_interval(base.times_ms or restored(other),
                               measured.times_ms or restored(mine))
    doubt = ", in the noise" if low <= 1 <= high else ""
    return f"{text} ({ratio}, {times_text(low)}-{times_text(high)}{doubt})"
