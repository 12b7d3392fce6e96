"""A ladder as a table: the same rows for the terminal and for the README."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from rich.console import Console
from rich.table import Table

from rawnn.bench.columns import WHY, markdown_table
from rawnn.bench.conditions import joules, slowed
from rawnn.bench.footprint import NO_FLOORS, traffic, x_floor
from rawnn.bench.records import LadderResult, Rung
from rawnn.bench.statistics import (
    Spread,
    interquartile_range,
    ratio_interval,
    runs_text,
    with_deviation,
)
from rawnn.common.words import counted

HEADINGS = ("rung", "epoch (ms)", "min-max", "IQR", "total (ms)", "x before", "95 %",
            "x baseline", "x floor", *WHY, "accuracy", "reference")
NUMBERS = range(1, 9 + len(WHY))
"""Columns that are set right."""
CLOCK_WORDS = {"sm_mhz": ("SM", "MHz"), "mem_mhz": ("memory", "MHz"),
               "temperature_c": ("temperature", "C"), "power_w": ("power", "W")}


@dataclass(frozen=True)
class Row:
    """One rung. Factors are quotients of the medians of the average epoch: above 1 is faster than
    the rung before that was measured, or than the baseline; None where there is nothing to compare.
    """

    rung: Rung
    before: Rung | None
    factor: float | None
    overall: float | None

    @property
    def slower(self) -> bool:
        return self.factor is not None and self.factor < 1.0

    @property
    def distinct(self) -> bool:
        """Whether the repetitions of this rung and of the one before do not overlap at all. One
        repetition has no spread that could tell."""
        mine = self.rung.average_epoch_ms
        other = self.before.average_epoch_ms if self.before else None
        return bool(mine and other and min(mine.n, other.n) > 1
                    and (mine.min > other.max or mine.max < other.min))

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        """The bootstrap 95 % interval of `factor`; None for one repetition, which has none."""
        if self.factor is None or self.before is None:
            return None
        before, mine = ([run.average_epoch_ms for run in rung.runs]
                        for rung in (self.before, self.rung))
        return ratio_interval(before, mine) if min(len(before), len(mine)) > 1 else None

    @property
    def in_the_noise(self) -> bool:
        return self.interval is not None and self.interval[0] <= 1.0 <= self.interval[1]

    @property
    def x_floor(self) -> str:
        """How many times the least time of a step; "" where this GPU's limits were not known."""
        epoch, print_ = self.rung.average_epoch_ms, self.rung.footprint
        if epoch is None or print_ is None or not print_.steps:
            return ""
        return x_floor(epoch.median * 1e3 / print_.steps, print_)

    def cells(self) -> tuple[str, ...]:
        """The texts under HEADINGS."""
        rung, epoch = self.rung, self.rung.average_epoch_ms
        if epoch is None or rung.total_ms is None:
            return (rung.name, rung.status, *[""] * (len(HEADINGS) - 2))
        return (
            rung.name, milliseconds(epoch.median),
            f"{milliseconds(epoch.min)}-{milliseconds(epoch.max)}", self._quartiles(),
            milliseconds(rung.total_ms.median), times_text(self.factor), self._interval_text(),
            times_text(self.overall), self.x_floor, *traffic(rung.footprint),
            joules(rung.conditions, sum(len(run.epoch_ms) for run in rung.runs)),
            with_deviation(rung.accuracy_mean or 0.0, rung.accuracy_std or 0.0, len(rung.runs)),
            _agreement(rung),
        )

    def _quartiles(self) -> str:
        """The interquartile range of the epoch's time over the runs, which one does not have."""
        times = [run.average_epoch_ms for run in self.rung.runs]
        return f"{interquartile_range(times):#.2g}" if len(times) > 1 else ""

    def _interval_text(self) -> str:
        return "" if self.interval is None else "-".join(map(times_text, self.interval))


def milliseconds(value: float) -> str:
    """Three significant digits, or all digits before the point."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:#.3g}"


def times_text(factor: float | None) -> str:
    return "" if factor is None else f"{factor:.2f}" if factor < 10 else milliseconds(factor)


def _agreement(rung: Rung) -> str:
    if rung.accuracy_agrees is None:
        return ""
    close = "" if rung.oracle_difference is None else f" ({rung.oracle_difference:.4f})"
    return ("agrees" if rung.accuracy_agrees else "DIFFERS") + close


def rows(ladder: LadderResult) -> list[Row]:
    """Every rung with its factors."""
    made: list[Row] = []
    baseline = before = None
    for index, rung in enumerate(ladder.rungs):
        if index == 0 and rung.average_epoch_ms:
            baseline = rung
        made.append(Row(rung, before, _quotient(before, rung), _quotient(baseline, rung)))
        if rung.average_epoch_ms:
            before = rung
    return made


def _quotient(other: Rung | None, rung: Rung) -> float | None:
    if other is rung or not (other and other.average_epoch_ms and rung.average_epoch_ms):
        return None
    return other.average_epoch_ms.median / rung.average_epoch_ms.median


def remarks(ladder: LadderResult) -> list[str]:
    """What a reader must know beside the figures, in sentences."""
    found = list(ladder.notes)
    if ladder.environment.device == "sim":
        found.append("the GPU is SIMULATED: the times say nothing about a real one")
    if ladder.synthetic:
        found.append("the data are SYNTHETIC: the accuracies say nothing about a real data set")
    if ladder.interrupted:
        found.append("interrupted: the figures are of the runs that had finished")
    for rung in ladder.rungs:
        if rung.status != "measured":
            found.append(f"{rung.name} {rung.status}: {rung.reason}")
        if slow := slowed(rung.conditions):
            found.append(f"{rung.name} {slow}")
        found += [note if note.startswith(rung.name) else f"{rung.name}: {note}"
                  for note in rung.notes]
        if rung.accuracy_agrees is False and ladder.oracle:
            found.append(f"the accuracy of {rung.name}, {rung.accuracy_mean:.4f}, is NOT within "
                         f"two standard deviations of the reference")
    for row in rows(ladder):
        if row.slower and row.before:
            how = "and no repetitions overlap" if row.distinct else "but their repetitions do " \
                "not tell them apart, so this may be noise"
            found.append(f"{row.rung.name} is slower than {row.before.name} "
                         f"({times_text(row.factor)}x), {how}")
        elif row.in_the_noise and row.before:
            found.append(f"{row.rung.name} and {row.before.name} differ by no more than the noise")
    if ladder.environment.device == "cuda" and not any(row.x_floor for row in rows(ladder)):
        found.append(NO_FLOORS)
    return [*found, _reference(ladder)]


def _reference(ladder: LadderResult) -> str:
    oracle = ladder.oracle
    if oracle is None:
        return ("no reference accuracy is kept for this configuration, so the accuracies were not "
                "compared: --oracle compute makes one on the host")
    return (f"reference: float64 on the host, {oracle.mean:.4f} ± {oracle.std:.4f} over "
            f"{len(oracle.seeds)} seeds; 'agrees' is a mean within two standard deviations, and in "
            f"brackets stands the largest difference between runs of the same seed")


def provenance(ladder: LadderResult) -> list[str]:
    """Where, when and how the figures were measured."""
    env, config = ladder.environment, ladder.config
    gpu = env.gpu
    machine = f"{gpu['name']}, driver {gpu['driver']}, CUDA {gpu['cuda']}" if gpu else \
        f"host ({env.platform})"
    libraries = ", ".join(f"{name} {version}" for name, version in env.libraries.items())
    runs = runs_text({len(r.runs) for r in ladder.rungs if r.runs})
    return [
        f"{machine}; Python {env.python}, {libraries}",
        f"clocks: {_clocks(ladder)}",
        f"{ladder.dataset} from {ladder.data_source}; "
        f"{'-'.join(map(str, config.layers))}, batch {config.batch}, lr {config.lr:g}, "
        f"{counted(config.epochs, 'epoch')}, seeds from {config.seed}; every rung starts from "
        f"{config.opt.removeprefix('none,') or 'nothing'}",
        f"{runs} in one process; {env.date}, commit {env.commit or 'unknown'}",
    ]


def _clocks(ladder: LadderResult) -> str:
    parts = []
    for name, (word, unit) in CLOCK_WORDS.items():
        spreads = [r.clocks[name] for r in ladder.rungs if name in r.clocks]
        if spreads:
            parts.append(f"{word} {_range(spreads)} {unit}")
    locked = ", ".join(f"{k} {v}" for k, v in ladder.environment.clocks.items())
    seen = f"{', '.join(parts)} (read between runs)" if parts else "not observed"
    return f"{seen}; {locked}" if locked else seen


def _range(spreads: Sequence[Spread]) -> str:
    low, high = min(s.min for s in spreads), max(s.max for s in spreads)
    return f"{low:.0f}" if low == high else f"{low:.0f}-{high:.0f}"


DISPENSABLE = ("reference", *reversed(WHY), "IQR", "95 %", "min-max", "total (ms)", "x baseline",
               "x floor")
"""Columns that a narrow terminal does without, in the order in which they go: what `reference`
says is repeated below the table, what a step moves is in the file, the rest follows from other
columns."""


def terminal_table(ladder: LadderResult, width: int) -> tuple[Table, tuple[str, ...]]:
    """The table for a terminal of `width` columns, and the headings that found no room; rich."""
    cells = [row.cells() for row in rows(ladder)]
    empty = [h for n, h in enumerate(HEADINGS) if not any(row[n] for row in cells)]
    for gone in range(len(DISPENSABLE) + 1):
        left_out = DISPENSABLE[:gone]
        table = _table(cells, [h for h in HEADINGS if h not in (*left_out, *empty)])
        if Console(width=10_000).measure(table).maximum <= width:
            break
    return table, tuple(h for h in left_out if h not in empty)


def _table(cells: Sequence[Sequence[str]], shown: Sequence[str]) -> Table:
    table = Table(title="ladder", title_justify="left")
    places = [HEADINGS.index(heading) for heading in shown]
    for place in places:
        table.add_column(HEADINGS[place], justify="right" if place in NUMBERS else "left",
                         no_wrap=True)
    for row in cells:
        table.add_row(*(row[place] for place in places))
    return table


def markdown_rows(ladder: LadderResult, left_out: Sequence[str] = ()) -> list[str]:
    """The table alone, without the columns `left_out`, or what nothing is known of."""
    shown = [n for n, heading in enumerate(HEADINGS) if heading not in left_out]
    cells = [row.cells() for row in rows(ladder)]
    return markdown_table([HEADINGS[n] for n in shown],
                          [[f"`{row[0]}`", *(row[n] for n in shown[1:])] for row in cells],
                          ("rung", "accuracy", "reference"))


def markdown(ladder: LadderResult) -> str:
    """The table in Markdown, with remarks and provenance below it."""
    lines = markdown_rows(ladder)
    lines += ["", *(f"- {remark}" for remark in remarks(ladder)), ""]
    lines += [f"{text}  " for text in provenance(ladder)[:-1]]
    return "\n".join([*lines, provenance(ladder)[-1], ""])
