"""From entries of records to tables: a column says its heading and how an entry's cell reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rawnn.bench.record import Entry, Results
from rawnn.bench.render.grid import Grid
from rawnn.bench.render.texts import (
    IN_THE_NOISE,
    bound_multiple,
    factor,
    mean_and_deviation,
    milliseconds,
)
from rawnn.bench.statistics import Ratio, interquartile_range, ratio, runs_text, spread
from rawnn.common.words import counted
from rawnn.engine.result import Environment

WATCHED_S = 1.0
"""Seconds from which on the steps of the energy counter, of some 0.1 s, do not matter."""


@dataclass(frozen=True)
class Scope:
    """What a cell can refer to: all entries of its table."""

    results: Results
    entries: Sequence[Entry]

    def before(self, entry: Entry) -> Entry | None:
        """The measured entry ahead of one."""
        ahead = [e for e in self.entries[:self.entries.index(entry)] if is_measured(e)]
        return ahead[-1] if ahead else None

    def first(self, entry: Entry) -> Entry | None:
        """The first entry, for all others; None for itself and where it was not measured."""
        first = self.entries[0]
        return None if first is entry or not is_measured(first) else first


Cell = Callable[[Entry, Scope], str]
Other = Callable[[Scope, Entry], Entry | None]
"""Which entry another is compared with."""


@dataclass(frozen=True)
class Column:
    """A heading and what stands below it. Where `optional`, it is left out if no row has a text,
    and on a terminal that has no room for it."""

    heading: str
    cell: Cell
    left: bool = False
    optional: bool = False


def table(columns: Sequence[Column], results: Results, entries: Sequence[Entry], *,
          title: str = "", notes: Sequence[str] = (), source: str = "") -> Grid:
    """A row for each entry."""
    scope = Scope(results, entries)
    optional = [c.heading for c in columns if c.optional]
    built = Grid([c.heading for c in columns],
                [[c.cell(entry, scope) for c in columns] for entry in entries],
                [c.heading for c in columns if c.left], title, notes, source, entries,
                optional[::-1])
    return built.without_empty(optional)


# -- which rows may stand in one table -------------------------------------------------------------


def unequal(results: Results, entries: Sequence[Entry]) -> str:
    """Why rows cannot stand in one table: a sentence that names two of unequal epochs, GPUs or
    commits; "" where all are alike."""
    if not entries:
        return ""
    first = entries[0]
    for other in entries[1:]:
        for what, value in _must_equal(results).items():
            mine, its = value(first), value(other)
            if mine != its:
                return (f"one table would have rows of unequal {what}: '{_name(first)}' has "
                        f"{mine}, '{_name(other)}' has {its}; split the table, or measure them "
                        f"anew together")
    return ""


def _must_equal(results: Results) -> dict[str, Callable[[Entry], object]]:
    return {"epochs": lambda e: e.conditions.get("epochs"),
            "GPUs": lambda e: results.place(e).machine,
            "commits": lambda e: results.place(e).commit or "no commit"}


def groups(results: Results, entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Entries that may stand in one table, by what sets them apart in words: the GPU, the commit
    and the epochs. The newest GPU and commit is the first."""
    found: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        epochs = entry.conditions.get("epochs")
        key = (results.place(entry).machine, results.place(entry).commit[:7],
               counted(int(epochs), "epoch") if isinstance(epochs, int) else "")
        found.setdefault(key, []).append(entry)
    apart = [len({key[n] for key in found}) > 1 for n in range(3)]
    order = sorted(found, key=lambda key: results.place(found[key][0]).date, reverse=True)
    return {", ".join(part if n != 1 else f"commit {part}" for n, part in enumerate(key)
                      if part and (apart[n] or n == 0)): found[key] for key in order}


def _name(entry: Entry) -> str:
    name = entry.case.partition("/")[2]
    return f"{name} {entry.variant}".strip()


# -- entries ---------------------------------------------------------------------------------------


def is_measured(entry: Entry) -> bool:
    """Whether its times count."""
    return entry.status == "measured" and bool(time_of(entry))


def time_of(entry: Entry) -> list[float]:
    """The samples that entries are compared by: of an epoch, whose steps may be others with another
    batch, else of a step or a launch."""
    for metric in ("epoch_ms", "step_us", "launch_us"):
        if found := entry.samples(metric):
            return found
    return []


def compared(other: Entry | None, mine: Entry | None) -> Ratio | None:
    """How many times faster `mine` is; None where either has no time that counts."""
    if other is None or mine is None or not (is_measured(other) and is_measured(mine)):
        return None
    return ratio(time_of(other), time_of(mine))


def workload(entry: Entry) -> str:
    """The part of the case behind the suite."""
    return entry.case.partition("/")[2]


def multiple(entry: Entry | None, print_: Entry | None = None) -> str:
    """How many times its lower bound a step takes, by the plan of an entry, or of another one."""
    if entry is None or not time_of(entry):
        return ""
    us = entry.median("step_us")
    return bound_multiple(us, (print_ or entry).median("lower_bound_us"))


def remarks(entries: Sequence[Entry], name: Callable[[Entry], str] = _name) -> list[str]:
    """What could not run, was wrong or ran slowed down, in sentences."""
    found = []
    for entry in entries:
        if entry.reason:
            found.append(f"{name(entry)} {entry.status}: {entry.reason}")
        found += [f"{name(entry)}: {note}" for note in entry.notes if is_warning(note)]
    return found


def is_warning(note: str) -> bool:
    """Whether a note says that a time is not what it seems."""
    return note.startswith("ran on a slowed-down GPU") or note.endswith("never became steady")


# -- columns ---------------------------------------------------------------------------------------


def text(heading: str, of: Callable[[Entry], str]) -> Column:
    """A column of words."""
    return Column(heading, lambda entry, scope: of(entry), left=True)


def median_of(heading: str, metric: str, words: Callable[[float], str] = milliseconds,
              absent: str = "") -> Column:
    """The median of a metric; without samples what became of the entry, if `absent` is "status"."""

    def cell(entry: Entry, scope: Scope) -> str:
        value = entry.median(metric)
        if value is None:
            return entry.status if absent == "status" else absent
        return words(value)

    return Column(heading, cell)


def range_of(heading: str, metric: str, words: Callable[[float], str] = milliseconds) -> Column:
    """The least and the greatest sample."""

    def cell(entry: Entry, scope: Scope) -> str:
        found = entry.samples(metric)
        return f"{words(min(found))}-{words(max(found))}" if found else ""

    return Column(heading, cell, optional=True)


def iqr_of(heading: str, metric: str) -> Column:
    """The distance of the quartiles, which one sample does not have."""

    def cell(entry: Entry, scope: Scope) -> str:
        found = entry.samples(metric)
        return f"{interquartile_range(found):#.2g}" if len(found) > 1 else ""

    return Column(heading, cell, optional=True)


def speedup_over(heading: str, other: Other) -> Column:
    """How many times faster an entry is than another."""

    def cell(entry: Entry, scope: Scope) -> str:
        found = compared(other(scope, entry), entry)
        return factor(found.value) if found else ""

    return Column(heading, cell, optional=True)


def interval_over(heading: str, other: Other) -> Column:
    """The 95 % interval of that, or its range where there are few samples."""

    def cell(entry: Entry, scope: Scope) -> str:
        found = compared(other(scope, entry), entry)
        return interval(found) if found else ""

    return Column(heading, cell, optional=True)


def interval(found: Ratio, words: Callable[[float], str] = factor) -> str:
    """ "1.02-1.10", or "range 1.02-1.10" of few samples; "" of a single one, which has neither."""
    if min(found.samples) == 1:
        return ""
    return f"{'' if found.is_interval else 'range '}{words(found.low)}-{words(found.high)}"


BOUND = Column("x lower bound", lambda entry, scope: multiple(entry), optional=True)


def megabytes(nbytes: float) -> str:
    """Three digits, whole from 1,000 on."""
    return f"{nbytes / 1e6:,.0f}" if nbytes >= 1e9 else f"{nbytes / 1e6:.3g}"


def _plan(heading: str, metric: str, words: Callable[[float], str]) -> Column:
    def cell(entry: Entry, scope: Scope) -> str:
        value = entry.median(metric)
        return "" if value is None or not entry.median("launches") else words(value)

    return Column(heading, cell, optional=True)


PLAN = (_plan("launches", "launches", lambda v: f"{v:.3g}"),
        _plan("nodes", "graph_nodes", lambda v: f"{v:,.0f}"),
        _plan("MB/step", "step_bytes", megabytes))
"""Why a time is what it is: launches of a step, nodes of the graph, bytes by the plan."""


def _joules(entry: Entry, scope: Scope) -> str:
    energy, watched = sum(entry.samples("energy_j")), sum(entry.samples("seconds"))
    epochs = entry.conditions.get("epochs")
    if not energy or watched < WATCHED_S or not isinstance(epochs, int):
        return ""
    return f"{energy / (epochs * len(time_of(entry))):.3g}"


ENERGY = Column("J/epoch", _joules, optional=True)
ACCURACY = Column("test accuracy",
                  lambda entry, scope: mean_and_deviation(entry.samples("accuracy")))
MEMORY = Column("device memory", lambda entry, scope: "" if "peak_memory_bytes" not in entry else
                f"{max(entry.samples('peak_memory_bytes')) / 2**20:.0f} MiB")


# -- where, when and how ---------------------------------------------------------------------------


def provenance(results: Results, entries: Sequence[Entry], how: str = "", *,
               libraries: bool = True, shared: Sequence[str] = (), closing: str = "") -> str:
    """The GPU, versions, how often and with what, date and commit. `shared` are conditions that all
    entries have, which are said once."""
    if not entries:
        return ""
    places = list({e.environment: results.place(e) for e in entries}.values())
    place = places[-1]
    parts = [machine(place)]
    if clocks := _clocks(entries):
        parts.append(clocks)
    if libraries and place.libraries:
        parts.append(", ".join(f"{name} {v}" for name, v in place.libraries.items()))
    counts = {len(time_of(e)) for e in entries if is_measured(e)}
    parts.append((how or "{runs}").format(runs=runs_text(counts)))
    parts += _condition_words(entries, shared)
    if len(places) > 1:
        parts.append(f"in {len(places)} sittings")
    if place.clocks:
        parts.append(", ".join(f"{name} {value}" for name, value in place.clocks.items()))
    ended = results.ended.get(entries[0].suite)
    return "; ".join([*parts, f"{place.date[:10]}, commit {place.commit[:7] or 'unknown'}",
                      *([f"ended early: {ended}"] if ended else []),
                      *([closing] if closing else [])])


def machine(place: Environment) -> str:
    """A GPU with its driver and CUDA version, or the host."""
    if place.device == "sim":
        return "a SIMULATED GPU, whose times say nothing about a real one"
    gpu = place.gpu
    if not gpu:
        return f"host ({place.platform}), by the wall clock"
    return ", ".join([str(gpu["name"]), *(f"{words} {gpu[name]}" for name, words in
                                          (("driver", "driver"), ("cuda", "CUDA")) if name in gpu)])


def _clocks(entries: Sequence[Entry]) -> str:
    """The SM clocks that were read while entries ran."""
    found = [mhz for e in entries for mhz in e.samples("sm_mhz")]
    if not found:
        return ""
    low, high = min(found), max(found)
    return f"SM at {low:.0f} MHz" if low == high else f"SM at {low:.0f}-{high:.0f} MHz"


CONDITION_WORDS: Mapping[str, Callable[[object], str]] = {
    "layers": lambda v: "-".join(map(str, v)) if isinstance(v, list) else str(v),
    "batch": lambda v: f"batch {v:,}", "lr": lambda v: f"lr {v:g}",
    "epochs": lambda v: counted(v, "epoch") if isinstance(v, int) else str(v),
    "seed": lambda v: f"seeds from {v}", "dataset": lambda v: f"on {v}",
    "run_steps": lambda v: f"`best` for runs of {v:,} steps",
    "sample_version": lambda v: f"sample version {v}", "opt": lambda v: f"{v}"}
"""Conditions in words."""


def _condition_words(entries: Sequence[Entry], names: Sequence[str]) -> Iterator[str]:
    for name in names:
        values = [e.conditions.get(name) for e in entries]
        if values[0] is not None and all(v == values[0] for v in values):
            yield CONDITION_WORDS[name](values[0])


def deviation_of(samples: Sequence[float], digits: int) -> str:
    """Median and median deviation: "2.50 ± 0.01"; a single sample has no deviation."""
    found = spread(samples)
    words = f"{found.median:.{digits}f}"
    return words + (f" ± {found.mad:.{digits}f}" if found.n > 1 else "")


def speedup_words(found: Ratio) -> str:
    """ "2.16 x, 2.15-2.17", with a remark where noise may explain it."""
    if min(found.samples) == 1:
        return f"{factor(found.value)} x, run once"
    noise = IN_THE_NOISE if found.is_noise else ""
    return f"{factor(found.value)} x, {interval(found)}{noise}"
