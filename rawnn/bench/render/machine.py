"""Tables and charts of lower bounds, launches, scaling, phases and random runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rawnn.bench.record import Entry, Results
from rawnn.bench.render import charts
from rawnn.bench.render.charts import Axis, Chart, Line
from rawnn.bench.render.grid import Grid
from rawnn.bench.render.tables import (
    Column,
    Scope,
    median_of,
    provenance,
    range_of,
    remarks,
    table,
    text,
    workload,
)
from rawnn.bench.render.texts import three_digits
from rawnn.bench.render.training import SIMULATED, subtitle
from rawnn.bench.statistics import median_interval
from rawnn.common.words import counted

# -- lower bounds ----------------------------------------------------------------------------------

def _value(entry: Entry, scope: Scope) -> str:
    samples = entry.records[0].samples
    return three_digits(statistics.median(samples)) if samples else "-"


def _limit_range(entry: Entry, scope: Scope) -> str:
    samples = entry.records[0].samples
    return f"{three_digits(min(samples))}-{three_digits(max(samples))}" if samples else ""


LOWER_BOUNDS = (
    text("lower bound", lambda e: e.notes[0] if e.notes else e.variant),
    Column("median", _value), text("unit", lambda e: e.records[0].unit),
    Column("min-max", _limit_range),
    Column("n", lambda e, s: str(len(e.records[0].samples) or "")),
    text("how", lambda e: e.reason or "; ".join(e.notes[1:])))


def lower_bounds(results: Results) -> list[Grid]:
    """A row for each constant of a GPU."""
    every = results.entries("lower-bounds")
    constants = [e for e in every if e.variant != "gpu"]
    gpu = [e for e in every if e.variant == "gpu"]
    return [table(LOWER_BOUNDS, results, constants, notes=remarks(gpu), source=_source(
        results, gpu or constants))] if constants else []


def _source(results: Results, entries: Sequence[Entry], what: str = "medians") -> str:
    return provenance(results, entries, what, libraries=False)


# -- launches --------------------------------------------------------------------------------------

PACKED = "cuda.bindings, packed"
"""What others are compared with: the driver's call by itself, its arguments packed beforehand."""


def _over_packed(entry: Entry, scope: Scope) -> str:
    packed = next((e.median("launch_us") for e in scope.entries if e.variant == PACKED), None)
    mine = entry.median("launch_us")
    return "" if packed is None or mine is None or entry.variant == PACKED else \
        f"{mine - packed:+.2f}"


def _median_interval(entry: Entry, scope: Scope) -> str:
    samples = entry.samples("launch_us")
    return "{:.2f}-{:.2f}".format(*median_interval(samples)) if samples else ""


LAUNCHES = (
    text("launch", lambda e: e.variant),
    median_of("median us", "launch_us", lambda v: f"{v:.2f}", "-"),
    range_of("min-max", "launch_us", lambda v: f"{v:.2f}"),
    Column("95 % interval", _median_interval),
    Column("n", lambda e, s: str(len(e.samples("launch_us")) or "")),
    Column("over packed", _over_packed),
    text("how", lambda e: e.reason or "; ".join(f"`{note}`" for note in e.notes if note)))


def launches(results: Results) -> list[Grid]:
    """A row for each way of launching."""
    entries = results.entries("launches")
    if not entries:
        return []
    place, count = results.place(entries[0]), entries[0].conditions.get("launches")
    what = (f"Python {place.python}; time of the host, {count} launches a sample, interleaved "
            f"samples, all work awaited between them")
    return [table(LAUNCHES, results, entries, source=provenance(results, entries, what))]


# -- scaling ---------------------------------------------------------------------------------------

SYSTEMS = {"rawnn": "rawnn", "torch": "PyTorch DDP"}
ALIKE = 1e-4
"""The part of a loss by which two systems may differ to be called alike."""


def number(entry: Entry, name: str) -> int:
    """A condition that is an integer."""
    value = entry.conditions.get(name)
    return value if isinstance(value, int) else 0


def _one_rank(entry: Entry, entries: Sequence[Entry]) -> Entry | None:
    """The run of one rank that another is compared with."""
    def alike(e: Entry) -> tuple[object, ...]:
        return e.case, e.variant, e.conditions.get("scaling")

    return next((e for e in entries if "step_us" in e and number(e, "ranks") == 1
                 and alike(e) == alike(entry)), None)


def examples_speedup(entry: Entry, entries: Sequence[Entry]) -> float | None:
    """Examples a second over those of one rank."""
    one, mine = _one_rank(entry, entries), entry.median("step_us")
    us = one.median("step_us") if one else None
    if one is None or us is None or mine is None:
        return None
    return us / mine * number(entry, "batch") / number(one, "batch")


def _speedup(entry: Entry, scope: Scope) -> str:
    found = examples_speedup(entry, scope.entries)
    return f"{found:.2f}" if found else ""


def _efficiency(entry: Entry, scope: Scope) -> str:
    found = examples_speedup(entry, scope.entries)
    return f"{found / number(entry, 'ranks'):.0%}" if found else ""


SCALING = (
    text("workload", workload), text("system", lambda e: SYSTEMS.get(e.variant, e.variant)),
    text("scaling", lambda e: str(e.conditions.get("scaling"))),
    Column("ranks", lambda e, s: str(number(e, "ranks"))),
    Column("batch", lambda e, s: f"{number(e, 'batch'):,}"),
    median_of("us a step", "step_us", lambda v: f"{v:,.1f}", "-"),
    range_of("min-max", "step_us", lambda v: f"{v:,.1f}"),
    Column("speedup", _speedup), Column("efficiency", _efficiency),
    text("note", lambda e: e.reason or "; ".join(n for n in e.notes
                                                 if not n.startswith("toggles: "))))


def scaling(results: Results) -> list[Grid]:
    """A row for each number of ranks."""
    entries = results.entries("scaling")
    if not entries:
        return []
    place = results.place(entries[-1])
    devices = [rank["device"] for rank in place.ranks]
    what = f"{len(devices) or 1} x {', '.join(dict.fromkeys(devices)) or 'the host'}; {{runs}}"
    return [table(SCALING, results, entries, notes=[*filter(None, [losses_apart(entries)])],
                  source=provenance(results, entries, what, shared=("opt", "epochs")))]


def losses_apart(entries: Sequence[Entry]) -> str:
    """How far training losses of the same batches lie apart at most, in a sentence; "" where but
    one system was measured."""
    found = []
    for one in entries:
        same = [e for e in entries if e.variant != one.variant and e.case == one.case
                and all(number(e, n) == number(one, n) for n in ("ranks", "batch"))]
        pairs = zip(one.samples("loss"), same[0].samples("loss"), strict=False) if same else ()
        ranks = counted(number(one, "ranks"), "rank")
        found += [(abs(a / b - 1), f"{workload(one)}, {ranks}, batch {number(one, 'batch'):,}")
                  for a, b in pairs if b]
    if not found:
        return ""
    most, where = max(found)
    alike = sum(apart <= ALIKE for apart, _ in found) / len(found)
    return (f"training losses of both systems, report by report: {alike:.0%} within {ALIKE:.2%} of "
            f"each other, the furthest {most:.2%} apart ({where})")


def scaling_charts(results: Results) -> dict[str, Chart]:
    """The speedup against ranks, strong scaling on the left and weak on the right."""
    entries = results.entries("scaling")
    found: dict[str, dict[tuple[str, str], list[tuple[float, float]]]] = {"strong": {}, "weak": {}}
    for entry in entries:
        if (ratio := examples_speedup(entry, entries)) is not None:
            lines = found[str(entry.conditions["scaling"])]
            lines.setdefault((workload(entry), entry.variant), []).append(
                (number(entry, "ranks"), ratio))
    ranks = sorted({int(n) for lines in found.values() for line in lines.values() for n, _ in line})
    if len(ranks) < 2:
        return {}
    names = list(dict.fromkeys(key for lines in found.values() for key in lines))
    parts = {f"{kind} scaling": [
        Line(f"{name}, {SYSTEMS.get(who, who)}", lines[name, who], who,
             PRECISION_OF[n % len(PRECISION_OF)])
        for n, (name, who) in enumerate(names)
        if any(count > 1 for count, _ in lines.get((name, who), ()))]
        for kind, lines in found.items()}
    return {"scaling": charts.panels(
        f"Speedup on up to {ranks[-1]} GPUs over one", subtitle(results, entries), parts,
        Axis("ranks", ticks=ranks), Axis("speedup"), ranks[-1])}


PRECISION_OF = ("float32", "tf32", "bf16", "sr")
"""Dashes and marks of the lines of a scaling chart, which are of one precision each: the same in
both parts."""


# -- phases ----------------------------------------------------------------------------------------

PHASES = ("phase", "part", "expected", "measured", "slowest block", "of a warp")


def phases(results: Results) -> list[Grid]:
    """Cycles of each phase of a step, below it its parts where it has several, and the whole."""
    every = {e.variant: e for e in results.entries("phases")}
    step = every.pop("step", None)
    if step is None:
        return []
    rows: list[list[str]] = []
    for name, entry in every.items():
        if "/" in name:
            continue
        parts = [e for n, e in every.items() if n.startswith(f"{name}/")]
        rows.append([name, "", *_cycles(entry)])
        rows += [["", e.variant.partition("/")[2], *_cycles(e)] for e in parts] \
            if len(parts) > 1 else []
    expected = sum(e.median("expected_cycles") or 0.0 for n, e in every.items() if "/" not in n)
    rows.append(["step", "", f"{expected:,.0f}", _thousands(step, "cycles"), "", ""])
    rows += [[f"{what}, once a launch", "", "", _thousands(step, f"{what}_cycles"), "", ""]
             for what in ("load", "store")]
    notes = [SIMULATED] if results.place(step).device == "sim" else []
    return [Grid(PHASES, rows, PHASES[:2], _phases_title(step), notes,
                 _source(results, [step], "one trace"), [step])]


def _thousands(entry: Entry, metric: str) -> str:
    value = entry.median(metric)
    return "" if value is None else f"{value:,.0f}"


def _cycles(entry: Entry) -> list[str]:
    return [_thousands(entry, f"{name}cycles") for name in ("expected_", "", "slowest_", "warp_")]


def _phases_title(step: Entry) -> str:
    """What was traced, in a line or two."""
    conditions = step.conditions
    us = {name: step.median(f"{name}_us") or 0.0
          for name in ("step", "traced", "expected", "kernel", "epoch")}
    layers = conditions.get("layers")
    sizes = "-".join(map(str, layers)) if isinstance(layers, list) else ""
    return (f"{sizes}, batch {conditions.get('batch')}, {conditions.get('loss')}, "
            f"{conditions.get('optimizer')}: {conditions.get('opt')}\n{us['step']:.2f} us a step "
            f"({us['traced']:.2f} traced, {us['expected']:.2f} expected) of "
            f"{conditions.get('steps')} a launch; the traced kernel took {us['kernel']:.1f} us, "
            f"its epoch {us['epoch']:.1f}; {step.median('clock_mhz') or 0:,.0f} cycles a us")


# -- random runs -----------------------------------------------------------------------------------

CHECKS = (
    text("seed", workload),
    text("verdict", lambda e: "right" if e.status == "measured" else e.status),
    median_of("us a step", "step_us", lambda v: f"{v:.1f}"),
    median_of("tolerance used", "tolerance_used", lambda v: f"{v:.2f}"),
    text("what", lambda e: e.notes[0] if e.notes else e.variant))


def checks(results: Results) -> list[Grid]:
    """A row for each random run that was checked against NumPy."""
    entries = results.entries("check")
    return [table(CHECKS, results, entries, notes=remarks(entries), source=_source(
        results, entries, counted(len(entries), "random run")))] if entries else []


