"""Tables and charts of what trains: the ladder, workloads, toggles, ablation, comparisons."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import count

from rawnn.bench.pairings import TogglesSuite, pairings
from rawnn.bench.record import Entry, Results
from rawnn.bench.render import charts
from rawnn.bench.render.charts import Chart
from rawnn.bench.render.grid import Grid
from rawnn.bench.render.tables import (
    ACCURACY,
    BOUND,
    ENERGY,
    MEMORY,
    PLAN,
    Column,
    Scope,
    compared,
    deviation_of,
    groups,
    interval_over,
    iqr_of,
    is_measured,
    median_of,
    multiple,
    provenance,
    range_of,
    remarks,
    speedup_over,
    speedup_words,
    table,
    text,
    workload,
)
from rawnn.bench.render.texts import IN_THE_NOISE, factor, mean_and_deviation, milliseconds
from rawnn.bench.statistics import Ratio, mean_std
from rawnn.bench.suites import read_suites
from rawnn.opts import TOGGLES
from rawnn.opts.registry import Toggle

REFERENCE = "reference"
"""The variant whose accuracies are those of float64 on the host, a seed a sample."""
TOLERATED_DEVIATIONS = 2.0
SYNTHETIC = "the data are SYNTHETIC: the accuracies say nothing about a real data set"
SIMULATED = "the GPU is SIMULATED: the times say nothing about a real one"
MEANING = ("Speedups are quotients of median times: above 1 the toggle makes it faster; an "
           "interaction above 1 means that its speedup is greater with the others.")


# -- the ladder ------------------------------------------------------------------------------------


def agreement(rung: Entry, reference: Entry | None) -> str:
    """Whether the mean accuracy of the runs lies within two standard deviations of the reference,
    and the largest difference between runs of the same seed."""
    mine, right = rung.samples("accuracy"), reference.samples("accuracy") if reference else []
    if not mine or not right or reference is None or rung.variant == reference.variant:
        return ""
    mean, deviation = mean_std(right)
    agrees = abs(statistics.fmean(mine) - mean) <= TOLERATED_DEVIATIONS * deviation + 1e-12
    known = dict(zip(_seeds(reference), right, strict=False))
    apart = [abs(a - known[seed]) for seed, a in zip(_seeds(rung), mine, strict=False)
             if seed in known]
    return ("agrees" if agrees else "DIFFERS") + (f" ({max(apart):.4f})" if apart else "")


def _seeds(entry: Entry) -> Iterable[int]:
    """Of an entry's runs, in order."""
    seeds, first = entry.conditions.get("seeds"), entry.conditions.get("seed")
    return seeds if isinstance(seeds, list) else count(first if isinstance(first, int) else 0)


def _reference(results: Results) -> Entry | None:
    """What accuracies are compared with: float64 where it was computed, else the first rung."""
    exact = results.entries("ladder", variant=REFERENCE)
    return next((e for e in [*exact, *rungs(results)[:1]] if e.samples("accuracy")), None)


LADDER = (
    Column("rung", lambda e, s: f"`{e.variant}`", left=True),
    median_of("epoch (ms)", "epoch_ms", absent="status"), range_of("min-max", "epoch_ms"),
    iqr_of("IQR", "epoch_ms"), median_of("total (ms)", "total_ms"),
    speedup_over("x before", Scope.before), interval_over("95 %", Scope.before),
    speedup_over("x baseline", Scope.first), BOUND, *PLAN, ENERGY,
    Column("accuracy", ACCURACY.cell, left=True),
    Column("reference", lambda e, s: agreement(e, _reference(s.results)), left=True, optional=True))


DISPENSABLE = ("reference", "J/epoch", "MB/step", "nodes", "launches", "IQR", "95 %", "min-max",
               "total (ms)", "x baseline", "x lower bound")
"""Columns that a narrow terminal does without: what they say is below the table or in the file, or
follows from other columns."""


def rungs(results: Results) -> list[Entry]:
    """The rungs in order, without the reference."""
    return [e for e in results.entries("ladder") if e.variant != REFERENCE]


def ladder(results: Results) -> list[Grid]:
    """A row for each rung."""
    found = rungs(results)
    return [replace(table(LADDER, results, found, notes=ladder_remarks(results), source=provenance(
        results, found, "{runs} in one process",
        shared=("layers", "batch", "lr", "epochs", "dataset", "seed"))),
        dispensable=DISPENSABLE)] if found else []


def ladder_remarks(results: Results) -> list[str]:
    """What a reader must know besides the figures, in sentences."""
    found, scope = [], Scope(results, rungs(results))
    if any(results.place(e).device == "sim" for e in scope.entries):
        found.append(SIMULATED)
    if any(e.conditions.get("synthetic") for e in scope.entries):
        found.append(SYNTHETIC)
    reference = _reference(results)
    for rung in scope.entries:
        if rung.status != "measured":
            found.append(f"{rung.variant} {rung.status}: {rung.reason}")
        found += [n if n.startswith(rung.variant) else f"{rung.variant}: {n}" for n in rung.notes
                  if not n.startswith("toggles: ")]
        if agreement(rung, reference).startswith("DIFFERS"):
            found.append(f"the accuracy of {rung.variant}, "
                         f"{statistics.fmean(rung.samples('accuracy')):.4f}, is NOT within two "
                         f"standard deviations of the reference")
    for rung in scope.entries:
        before = scope.before(rung)
        ratio = compared(before, rung)
        if before is None or ratio is None:
            continue
        if ratio.value < 1:
            how = "but their samples overlap, so this may be noise" if ratio.is_noise else \
                "and their samples do not overlap"
            found.append(f"{rung.variant} is slower than {before.variant} "
                         f"({factor(ratio.value)}x), {how}")
        elif ratio.is_noise:
            found.append(f"{rung.variant} and {before.variant} differ by no more than the noise")
    if reference is None:
        return found
    right = reference.samples("accuracy")
    what = "float64 on the host" if reference.variant == REFERENCE else \
        f"{reference.variant} (--oracle compute: float64 on the host)"
    return [*found, f"reference: {what}, {mean_and_deviation(right)} over {len(right)} seeds; "
                    f"'agrees' is a mean within two standard deviations, and in brackets stands "
                    f"the largest difference between runs of the same seed"]


def ladder_charts(results: Results) -> dict[str, Chart]:
    found = [e for e in rungs(results) if is_measured(e)]
    if not found:
        return {}
    place, last, first = results.place(found[-1]), found[-1], found[0]
    layers = "-".join(map(str, first.conditions.get("layers", [])))  # type: ignore[arg-type]
    title = (f"One epoch of {layers}: {milliseconds(first.median('epoch_ms') or 0)} ms to "
             f"{milliseconds(last.median('epoch_ms') or 0)} ms")
    return {"ladder": charts.ladder(title, subtitle(results, found, (
        f"{first.conditions.get('dataset')}, batch {first.conditions.get('batch')}")), [
        (e.variant, e.median("epoch_ms") or 0.0, min(e.samples("epoch_ms")),
         max(e.samples("epoch_ms"))) for e in found], "ms")} if place else {}


def subtitle(results: Results, entries: Sequence[Entry], what: str = "") -> str:
    """GPU, date and commit, for a chart."""
    place = results.place(entries[-1])
    return "; ".join(filter(None, (what, place.machine, place.date[:10],
                                   f"commit {place.commit[:7]}" if place.commit else "")))


# -- workloads -------------------------------------------------------------------------------------

WORKLOADS = (
    text("workload", lambda e: f"`{workload(e)}`"), text("toggles", lambda e: f"`{e.variant}`"),
    Column("µs/step", lambda e, s: deviation_of(e.samples("step_us"), 2) if "step_us" in e
           else e.reason or e.status),
    median_of("ms/epoch", "epoch_ms", lambda v: f"{v:.2f}"), BOUND, *PLAN, ENERGY, ACCURACY, MEMORY)


def workloads(results: Results) -> list[Grid]:
    """A row for each workload and set of toggles, a table for each number of epochs."""
    return [table(WORKLOADS, results, entries, title=_title(words), notes=remarks(entries),
                  source=trained(results, entries))
            for words, entries in groups(results, results.entries("workloads")).items()]


def trained(results: Results, entries: Sequence[Entry]) -> str:
    """The source of what was trained in turns."""
    return provenance(results, entries, shared=("epochs", "seed", "dataset"),
                      closing="times: median and median deviation; accuracy: mean and standard "
                              "deviation")


def _title(words: str) -> str:
    return f"{words}:"


# -- toggles ---------------------------------------------------------------------------------------


@cache
def _packaged() -> TogglesSuite:
    found: TogglesSuite = read_suites().toggles
    return found


@dataclass(frozen=True)
class Shown:
    """A row of a toggle's table: what it is called, its entry, and the entry without the toggle,
    None where that is this row."""

    words: str
    workload: str
    entry: Entry
    base: Entry | None

    def speedup(self) -> str:
        found = compared(self.base, self.entry)
        return speedup_words(found) if found else ""


def toggle_rows(toggle: Toggle, entries: Sequence[Entry]) -> list[Shown]:
    """The entries that show the speedup of a toggle, in the order of its pairings. A pairing of
    which a side was not measured is left out."""
    known = {_key(e): e for e in entries if e.status != "not measured"}
    rows: list[Shown] = []
    for pairing in pairings(toggle, _packaged()):
        base, *others = (known.get(_plain(pair)) for pair in pairing.variants)
        base_words = f"`{pairing.base}`" if pairing.base else "nothing"
        if base is None or not any(others):  # a file may lack one of both: it shows no speedup
            continue
        rows.append(Shown(base_words, pairing.workload, base, None))
        rows += [Shown(f"with `{word}`", pairing.workload, entry, base)
                 for word, entry in zip(pairing.added, others, strict=True) if entry]
    return rows


def _plain(pair: tuple[str, str]) -> tuple[str, str]:
    """A workload and toggles as they are looked up: "none," ahead of them changes nothing."""
    return pair[0], pair[1].removeprefix("none,")


def _key(entry: Entry) -> tuple[str, str]:
    return _plain((workload(entry), entry.variant))


def toggle_grids(toggle: Toggle, results: Results) -> list[Grid]:
    """The speedup of a toggle: a table for each GPU, commit and number of epochs."""
    grids = []
    for words, entries in groups(results, results.entries("toggles")).items():
        rows = toggle_rows(toggle, entries)
        if not rows:
            continue
        scope = Scope(results, entries)
        left = ("workload", "toggles")
        cells = [[f"`{row.workload}`" if row.base is None else "", row.words,
                  _epoch_words(row.entry), row.speedup(),
                  *(column.cell(row.entry, scope) for column in (BOUND, *PLAN, ACCURACY, MEMORY))]
                 for row in rows]
        shown = list({id(row.entry): row.entry for row in rows}.values())
        grids.append(Grid(
            (*left, "ms/epoch", "speedup", *(c.heading for c in (BOUND, *PLAN, ACCURACY, MEMORY))),
            cells, left, _title(words), remarks(shown), trained(results, shown), shown
        ).without_empty([c.heading for c in (BOUND, *PLAN)]))
    return grids


def _epoch_words(entry: Entry) -> str:
    samples = entry.samples("epoch_ms")
    if not samples:
        return "cannot run" if entry.reason else "not measured"
    return deviation_of(samples, len(milliseconds(statistics.median(samples)).partition(".")[2]))


def toggles(results: Results) -> list[Grid]:
    """The tables of all toggles that were measured."""
    return [replace(grid, title=f"{toggle.name}, {grid.title}")
            for toggle in TOGGLES.values() for grid in toggle_grids(toggle, results)]


# -- ablation --------------------------------------------------------------------------------------


def ablated(entries: Sequence[Entry]) -> list[tuple[str, str, dict[str, Entry | None]]]:
    """Workload, toggle, and the four entries that show its speedup: the base without and with it,
    and the fastest set without it and with all."""
    known = {(workload(e), e.variant): e for e in entries}
    rows = []
    for (name, opt), entry in known.items():
        base, full = (str(entry.conditions.get(key)) for key in ("base", "full"))
        if not opt.startswith(f"{base},"):
            continue
        toggle = opt.removeprefix(f"{base},")
        less = f"{full},-{toggle.partition('=')[0]}"
        rows.append((name, toggle, {
            "base": known.get((name, base)), "plus": entry, "less": known.get((name, less)),
            "full": known.get((name, full))}))
    return rows


def ablation(results: Results) -> list[Grid]:
    """The speedup of each toggle of the fastest set alone and within it, a table for each number of
    epochs."""
    grids = []
    for words, entries in groups(results, results.entries("ablation")).items():
        rows = []
        for name, toggle, found in ablated(entries):
            alone = compared(found["base"], found["plus"])
            within = compared(found["less"], found["full"])
            rows.append([f"`{name}`", f"`{toggle}`", _words(alone, found["base"], found["plus"]),
                         _words(within, found["less"], found["full"]),
                         factor(within.value / alone.value) if alone and within else "",
                         multiple(found["full"])])
        if rows:
            grids.append(Grid(
                ("workload", "toggle", "alone", "in the fastest set", "interaction",
                 "x lower bound"), rows, ("workload", "toggle"), _title(words), (MEANING,),
                trained(results, entries), entries).without_empty(("x lower bound",)))
    return grids


def _words(found: Ratio | None, *entries: Entry | None) -> str:
    if found is None:
        why = next((e.reason.partition(":")[0] for e in entries if e and e.reason), "")
        return f"cannot run: {why}" if why else "not measured"
    return f"{factor(found.value)} x{IN_THE_NOISE if found.is_noise else ''}"


def ablation_charts(results: Results) -> dict[str, Chart]:
    entries = results.entries("ablation")
    rows = ablated(entries)
    values: dict[str, list[float | None]] = {"alone": [], "in the fastest set": []}
    for _, _, found in rows:
        for name, (a, b) in (("alone", ("base", "plus")), ("in the fastest set", ("less", "full"))):
            ratio = compared(found[a], found[b])
            values[name].append(ratio.value if ratio else None)
    return {"ablation": charts.bars(
        "The speedup of each toggle, alone and in the fastest set", subtitle(results, entries),
        [f"{name} {toggle}" for name, toggle, _ in rows], values,
        "speedup with the toggle, log scale")} if rows else {}


# -- comparisons -----------------------------------------------------------------------------------

COMPARISON = (
    text("toggles", lambda e: e.variant), median_of("us/step", "step_us", lambda v: f"{v:.2f}"),
    range_of("min-max", "step_us", lambda v: f"{v:.2f}"),
    Column("x first", lambda e, s: _over_first(e, s)), BOUND, *PLAN,
    median_of("loss of epoch 1", "loss", lambda v: f"{v:.5f}"))


def _over_first(entry: Entry, scope: Scope) -> str:
    found = compared(scope.entries[0], entry)
    return f"{found.value:.2f}" if found else ""


def comparison(results: Results) -> list[Grid]:
    """`rawnn compare`: the others are compared with the first."""
    entries = results.entries("compare")
    if not entries:
        return []
    notes = [verdict(entries[0], e) for e in entries[1:] if compared(entries[0], e)]
    notes += [f"{e.variant} {e.status}: {e.reason}" for e in entries if e.reason]
    notes += [f"{e.variant}: {note}" for e in entries for note in e.notes
              if not note.startswith("toggles: ")]
    if results.place(entries[0]).device == "sim":
        notes.append(SIMULATED)
    return [table(COMPARISON, results, entries, notes=notes,
                  source=provenance(results, entries, shared=("layers", "batch", "dataset")))]


def verdict(first: Entry, other: Entry) -> str:
    """A sentence on an entry and the first."""
    found = compared(first, other)
    assert found is not None
    words = f"{'95 % interval' if found.is_interval else 'range'} {found.low:.3f}-{found.high:.3f}"
    if found.is_noise:
        return f"{other.variant} and {first.variant} differ by no more than the noise ({words})"
    way = "faster" if found.value > 1 else "slower"
    times = found.value if found.value > 1 else 1 / found.value
    return f"{other.variant} is {times:.3f} times {way} than {first.variant} ({words})"


