"""`rawnn bench workloads` and `rawnn bench toggles`: built-in workloads with sets of toggles."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from rawnn.bench.columns import OPTIONAL, WHY
from rawnn.bench.sets import (
    HEADINGS,
    Kind,
    Measurement,
    Progress,
    SetsResult,
    WorkloadSet,
    read_sets,
    run_sets,
)
from rawnn.bench.suites import TogglesSuite, read_suites
from rawnn.bench.workloads import workload_sets
from rawnn.bench.worth import comparison_sets, markdown, terminal_table, toggles_named
from rawnn.cli.kept import Kept
from rawnn.cli.peers import bench_option
from rawnn.cli.screen import Screen, say, sentences, table_console
from rawnn.common.errors import RawnnError
from rawnn.common.files import check_output, write_atomically
from rawnn.opts import TOGGLES
from rawnn.opts.registry import Toggle

_OPTIONS = [
    click.option("--repeats", type=click.IntRange(1),
                 help="Runs of each set, with a seed of its own each time (3)."),
    bench_option,
    click.option("--budget", type=click.FloatRange(0, min_open=True), metavar="SECONDS",
                 help="Run a set once more only where that is expected to end within this."),
    click.option("--epochs", type=click.IntRange(1),
                 help="Passes over the data (those of bench.toml, else the workload's own)."),
    click.option("--dataset", default="mnist", show_default=True, metavar="NAME",
                 help="mnist or synthetic."),
    click.option("--device", default="auto", metavar="auto|gpu:N|host|sim", help="Where to run."),
    click.option("--resume", metavar="FILE",
                 help="Keep the sets that this file has, measure the others, and write it."),
    click.option("--json", "json_file", metavar="FILE",
                 help="Keep everything as JSON; written after every run."),
    click.option("--markdown", "markdown_file", metavar="FILE",
                 help="Write the tables as Markdown."),
]


def _measuring(command: Callable[..., None]) -> Callable[..., None]:
    """With the options of all that measures sets."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command()
@click.option("--workload", "names", multiple=True, metavar="NAME",
              help="A built-in workload; several may be given (those of bench.toml).")
@click.option("--opt", "opts", multiple=True, metavar="TOGGLES",
              help="A set of toggles to measure each with; several may be given (best, the "
                   "workload's own, and best,sr where its weights are in 16 bits).")
@_measuring
def workloads(names: tuple[str, ...], opts: tuple[str, ...], markdown_file: str | None,
              bench_file: str | None, repeats: int | None, epochs: int | None,
              **options: Any) -> None:
    """Measure the built-in workloads: time a step, accuracy and device memory."""
    suite = read_suites(bench_file).workloads
    kept = Kept(options["json_file"] or options["resume"])
    result = _measured("workloads", workload_sets(names or suite.names, opts, suite),
                       markdown_file, kept, repeats=repeats or suite.repeats,
                       epochs=epochs or suite.epochs, **options)
    click.echo(result.provenance())
    _keep(result.markdown(), markdown_file)
    _finish(result, kept)


@click.command()
@click.argument("names", nargs=-1, metavar="[TOGGLE]...")
@_measuring
def toggles(names: tuple[str, ...], markdown_file: str | None, bench_file: str | None,
            repeats: int | None, epochs: int | None, **options: Any) -> None:
    """Measure what each toggle is worth: the workloads that show it, without it and with it.

    All toggles are measured unless some are named.
    """
    suite = read_suites(bench_file).toggles
    chosen = toggles_named(names, suite)
    kept = Kept(options["json_file"] or options["resume"])
    result = _measured("toggles", comparison_sets(chosen, suite), markdown_file, kept,
                       repeats=repeats or suite.repeats, epochs=epochs or suite.epochs, **options)
    click.echo()
    _compare(result, chosen, markdown_file, suite)
    _finish(result, kept)


def show_sets(result: SetsResult, markdown_file: str | None, bench_file: str | None = None
              ) -> None:
    """Print what `workloads` or `toggles` measured, as it was printed then, but for columns that
    nothing is known of."""
    rows = _Rows(((m.workload, m.opt) for m in result.measurements), result.measurements)
    for measured in result.measurements:
        rows.add(measured)
    if result.kind == "workloads":
        click.echo(result.provenance())
        _keep(result.markdown(), markdown_file)
        return
    names = {word.partition("=")[0] for m in result.measurements for word in m.opt.split(",")}
    click.echo()
    _compare(result, [t for name, t in TOGGLES.items() if name in names], markdown_file,
             read_suites(bench_file).toggles)


def _compare(result: SetsResult, chosen: Sequence[Toggle], markdown_file: str | None,
             suite: TogglesSuite) -> None:
    """Each toggle without and with it: as text here, as Markdown in the file."""
    console = table_console()
    sentences(console, [
        "Milliseconds an epoch; in brackets how many times faster than without, with the 95 % "
        "interval of that."])
    for toggle in chosen:
        console.print()
        sentences(console, [f"{toggle.name}: {toggle.claim}"])
        table, below = terminal_table(toggle, result, suite)
        console.print(table)
        sentences(console, [f"- {line}" for line in below])
    console.print()
    sentences(console, [result.provenance()])
    _keep("\n".join(f"## `{toggle.name}`: {toggle.claim}\n\n{markdown(toggle, [result], suite)}"
                    for toggle in chosen), markdown_file)


_WIDTHS = (0, 0, 17, 9, 7, 8, 6, 7, 7, 15, 13)
"""Of columns at least; what is longer, or the heading, makes one wider."""


class _Rows:
    """Rows that appear as they are measured, under their headings; without what a step moves, or
    on two lines each, where the terminal is narrow."""

    def __init__(self, sets: Iterable[WorkloadSet], found: Sequence[Measurement] = ()) -> None:
        """Of the sets; where all has been `found` already, without what nothing is known of."""
        known = [HEADINGS, *sets]
        cells = [measured.cells() for measured in found]
        empty = {*OPTIONAL} - {HEADINGS[n] for row in cells for n, text in enumerate(row)
                                       if text} if found else set()
        self._room = table_console().width
        every = [max(width, len(HEADINGS[place]), *(len(row[place]) for row in known
                                                    if place < len(row)))
                 for place, width in enumerate(_WIDTHS)]
        for left_out in (empty, {*empty, *WHY}):
            self._shown = [n for n, heading in enumerate(HEADINGS) if heading not in left_out]
            self._widths = [every[n] for n in self._shown]
            self._one_line = sum(self._widths) + 2 * len(self._widths) <= self._room
            if self._one_line:
                break
        self._print(*(HEADINGS[n] for n in self._shown))

    def add(self, measured: Measurement) -> None:
        """Print what was measured, or why it was not."""
        cells = measured.cells()
        name, opt, *figures = (cells[n] for n in self._shown)
        self._print(name, opt or "none", *([] if measured.reason else figures),
                    reason=measured.reason)

    def _print(self, name: str, opt: str, *figures: str, reason: str = "") -> None:
        first = name.ljust(self._widths[0]) + "  " + opt.ljust(self._widths[1])
        if self._one_line:
            text = reason or "  ".join(cell.rjust(width) for cell, width in
                                       zip(figures, self._widths[2:], strict=True))
            click.echo(f"{first}  {text}")
        else:
            click.echo(textwrap.fill(first.rstrip(), self._room, subsequent_indent="  "))
            click.echo(textwrap.fill(reason or " | ".join(f or "-" for f in figures), self._room,
                                     initial_indent="    ", subsequent_indent="    "))


def _measured(kind: Kind, sets: Sequence[WorkloadSet], markdown_file: str | None, kept: Kept, *,
              repeats: int, epochs: int | Mapping[str, int], dataset: str, device: str,
              json_file: str | None, budget: float | None, resume: str | None) -> SetsResult:
    json_file = json_file or resume
    earlier = earlier_sets(resume)
    check_output("--json", json_file)
    check_output("--markdown", markdown_file)
    rows, shown = _Rows(sets), set[tuple[str, str]]()
    with Screen(kind, repeats) as screen:

        def advance(progress: Progress) -> None:
            measured = progress.measurement
            kept.write(progress.result)
            if progress.complete:
                shown.add((measured.workload, measured.opt))
                with screen.aside():
                    rows.add(measured)
            screen.advance(progress.done, progress.total, f"{measured.workload} {measured.opt}")

        result = run_sets(kind, sets, repeats, epochs, device, dataset, notify=say,
                          on_progress=advance, stand_in=True, budget=budget or math.inf,
                          earlier=earlier)
    kept.write(result)
    if result.interrupted:  # what has some of its runs is no less true
        for measured in result.measurements:
            if measured.times_ms and (measured.workload, measured.opt) not in shown:
                rows.add(measured)
    return result


def earlier_sets(file: str | None) -> SetsResult | None:
    """What a file to be resumed has; None without one. Raises ConfigError for another kind."""
    return read_sets(file) if file and Path(file).exists() else None


def _keep(text: str, markdown_file: str | None) -> None:
    if markdown_file:
        write_atomically(markdown_file, text.encode())


def _finish(result: SetsResult, kept: Kept) -> None:
    if result.interrupted:
        raise click.Abort
    kept.check()
    if not any(m.accuracies for m in result.measurements):
        raise RawnnError("none of it can run here; the reasons stand above")
