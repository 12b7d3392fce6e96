"""`rawnn bench`: a command for every case, and commands that show, compare and merge results."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Sequence
from inspect import signature
from pathlib import Path
from time import monotonic
from typing import Any

import click
import msgspec

from rawnn.bench.case import Case, all_cases
from rawnn.bench.harness import Harness, resumed
from rawnn.bench.record import Results, read_directory, read_results
from rawnn.bench.regressions import (
    EFFECT,
    MEANING,
    Pair,
    measure_again,
    notes_of,
    overall,
    pairs_of,
)
from rawnn.bench.render.charts import require_matplotlib
from rawnn.bench.render.html_report import write_report
from rawnn.bench.render.suites import markdown, plot_ladder
from rawnn.bench.suites import read_suites, suite_name
from rawnn.cli import tables
from rawnn.cli.screen import Screen, say, table_console
from rawnn.cli.termination import as_by_ctrl_c
from rawnn.common.errors import ConfigError, RawnnError, nearest, unknown
from rawnn.common.files import check_output, write_atomically
from rawnn.common.jsontext import indented_json
from rawnn.engine.result import Environment

CASES = all_cases()
CHECK = click.option("--check", is_flag=True,
                     help="Exit with 1 where a time is none that a GPU can have.")

BENCH = click.option(
    "--bench", "bench_file", metavar="FILE.toml",
    help="What to measure, in place of the packaged bench.toml (docs/suites.md).")
RESUME = click.option("--resume", metavar="FILE",
                      help="Keep what this file has, measure what it lacks, and write it.")
JSON = click.option("--json", "json_file", metavar="FILE",
                    help="Keep everything as JSON; written while it is measured.")
MARKDOWN = click.option("--markdown", "markdown_file", metavar="FILE",
                        help="Write the tables as Markdown.")
PLOT = click.option("--plot", "plot_file", metavar="FILE.svg", help="Draw the ladder.")


class _Bench(click.Group):
    """A group whose default is the ladder, with its options: `rawnn bench --epochs 1`."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in ("--help", "-h"):
            args = ["ladder", *args]
        return super().parse_args(context, args)

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        args = today(args)
        if args[0] not in self.commands:
            raise click.UsageError(f"no such measurement '{args[0]}'" + (
                nearest(args[0], self.commands) or f"; there are {', '.join(self.commands)}"))
        return super().resolve_command(context, args)


def today(args: Sequence[str]) -> list[str]:
    """Arguments with the present name of a measurement that was renamed: `random` was two,
    distinguished by --peers."""
    name, *others = args
    if name == "random":
        is_timed = "--peers" in others
        return ["sample" if is_timed else "check", *(a for a in others if a != "--peers")]
    return [suite_name(name), *others]


@click.group(cls=_Bench, invoke_without_command=True)
@click.pass_context
def bench(context: click.Context) -> None:
    """Measure the speedup of each optimization on this machine; the ladder unless another
    measurement is named."""
    if context.invoked_subcommand is None:
        context.invoke(bench.commands["ladder"])


def command_of(case: Case) -> click.Command:
    """The command line of a case."""
    @as_by_ctrl_c()
    def measure(bench_file: str | None, json_file: str | None, markdown_file: str | None,
                resume: str | None = None, plot_file: str | None = None, check: bool = False,
                **options: Any) -> None:
        run_case(case, options, bench_file, json_file, markdown_file, resume, plot_file, check)

    measure.__doc__ = case.measure.__doc__
    shared = [BENCH, *([RESUME] if case.resumes else []), JSON, MARKDOWN,
              *([PLOT] if case.has_plot else []), *([CHECK] if case.doubts else [])]
    for option in reversed([*case.options, *shared]):
        measure = option(measure)
    return click.command(case.name)(measure)


def run_case(case: Case, options: dict[str, Any], bench_file: str | None = None,
             json_file: str | None = None, markdown_file: str | None = None,
             resume: str | None = None, plot_file: str | None = None,
             check: bool = False) -> None:
    """Measure a case, print its table, and write the requested files. Raises RawnnError if
    something of rawnn's failed, click.Abort if Ctrl-C ended it."""
    check_output("--markdown", markdown_file)
    check_output("--plot", plot_file)
    if plot_file:
        require_matplotlib(plot_file)
    suites = read_suites(bench_file)
    earlier = read_results(str(resume)) if resumed(resume) else None
    screen = Screen(case.name, 1)

    def progress(done: int, total: int, rounds: int, last: str) -> None:
        screen.rounds(rounds)
        screen.advance(done, total, last)

    def echo(text: str) -> None:
        with screen.aside():
            click.echo(text)

    with Harness(case.name, json_file or resume, earlier,
                 options.pop("budget", None) or math.inf, say, progress,
                 echo if case.has_bar else click.echo) as harness:
        try:
            if case.has_bar:
                with screen:
                    case.measure(harness, suites, **options)
            else:
                case.measure(harness, suites, **options)
        except KeyboardInterrupt:
            harness.interrupted = True
            harness.end()
    if any(record.samples for record in harness.results.where(case.name)) \
            or not harness.interrupted:
        tables.show(harness.results, case.name)
        if markdown_file:
            write_atomically(markdown_file, markdown(harness.results, case.name).encode())
        if plot_file:
            plot_ladder(harness.results, plot_file)
    try:
        harness.check()
    except KeyboardInterrupt:
        raise click.Abort from None
    if failures := case.failures(harness.results):
        raise RawnnError(failures)
    if check and case.doubts and (doubts := case.doubts(harness.results)):
        raise RawnnError(doubts)


for each in CASES.values():
    bench.add_command(command_of(each))


# -- files -----------------------------------------------------------------------------------------


def _show_all(results: Results, markdown_file: str | None) -> None:
    """Print the tables of every suite, and write them as Markdown."""
    for suite in results.suites:
        tables.show(results, suite)
    if markdown_file:
        text = "\n".join(markdown(results, suite) for suite in results.suites)
        write_atomically(markdown_file, text.encode())


@bench.command()
@click.argument("file", metavar="FILE.json")
@MARKDOWN
@PLOT
def show(file: str, markdown_file: str | None, plot_file: str | None) -> None:
    """Print the tables of a results file again, of any case, or of `rawnn compare`."""
    results = read_results(file)
    if plot_file and "ladder" not in results.suites:
        raise ConfigError(f"--plot draws a ladder, and {file} holds {', '.join(results.suites)}")
    _show_all(results, markdown_file)
    if plot_file:
        plot_ladder(results, plot_file)


@bench.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE.json...")
@click.option("--json", "json_file", required=True, metavar="FILE", help="The one file.")
@MARKDOWN
def merge(files: tuple[str, ...], json_file: str, markdown_file: str | None) -> None:
    """Merge several files into one: parts of a sample (--part), or samples from other seeds.

    They must be of the same commit, kind of GPU, driver and libraries. Needs no GPU.
    """
    check_output("--json", json_file)
    check_output("--markdown", markdown_file)
    first, *others = files
    whole = read_results(first)
    for file in others:
        found = read_results(file)
        if reason := _unlike(whole, found):
            raise ConfigError(f"{first} and {file} do not belong together: {reason}")
        whole.merge(found, file)
    whole.write(json_file)
    _show_all(whole, markdown_file)
    failures = [said for suite in whole.suites if suite in CASES
                if (said := CASES[suite].failures(whole))]
    if failures:
        raise RawnnError("; ".join(failures))


ALIKE: dict[str, Callable[[Environment], str]] = {
    "commit": lambda e: e.commit or "unknown", "GPU": lambda e: e.machine,
    "driver": lambda e: str((e.gpu or {}).get("driver", "none"))}
"""Properties that must be the same in files that are merged."""


def _unlike(a: Results, b: Results) -> str:
    """Why the figures of two files are not comparable; "" if they are. Of libraries those are
    compared that both name: a file of another suite, or of a part without a peer, names fewer."""
    for mine in a.environments.values():
        for other in b.environments.values():
            for what, of in ALIKE.items():
                if of(mine) != of(other):
                    return f"the {what} of the one is {of(mine)}, of the other {of(other)}"
            both = sorted(mine.libraries.keys() & other.libraries.keys())
            if differing := [n for n in both if mine.libraries[n] != other.libraries[n]]:
                one, two = (", ".join(f"{n} {e.libraries[n]}" for n in differing)
                            for e in (mine, other))
                return f"the libraries of the one are {one}, of the other {two}"
    return ""


@bench.command()
@click.argument("results", nargs=-1, metavar="[FILE|DIRECTORY]...")
@click.option("--out", "out", default="report.html", show_default=True, metavar="FILE.html",
              help="The page.")
@click.option("--title", show_default="by what the files hold", help="Of the page.")
def report(results: tuple[str, ...], out: str, title: str | None) -> None:
    """Make one HTML page of results files, or of all in a directory (default: results).

    It needs no network: figures are embedded, and there are no scripts.
    """
    check_output("--out", out, *results)
    made = write_report(results or ("results",), out, title)
    say(f"{out}: {', '.join(made)}")


# -- comparing -------------------------------------------------------------------------------------

HEADINGS = ("case", "variant", "B / A", "interval or range", "measured again", "samples", "verdict")


@bench.command()
@click.argument("a", metavar="A.json|DIRECTORY")
@click.argument("b", metavar="B.json|DIRECTORY")
@click.option("--effect", type=click.FloatRange(0, 1), default=EFFECT, show_default=True,
              help="The smallest difference that counts, as a share of the time.")
@click.option("--all", "everything", is_flag=True, help="Show variants that did not change, too.")
@click.option("--again/--no-again", "again", default=True, show_default=True,
              help="Measure what is slower once more, where this is B's machine and commit.")
@click.option("--device", default="auto", metavar="auto|gpu:N|host|sim",
              help="Where to measure again (auto).")
@click.option("--json", "json_file", metavar="FILE", help="Keep the comparison as JSON.")
@click.option("--level", hidden=True, expose_value=False)
@as_by_ctrl_c()
def compare(a: str, b: str, effect: float, everything: bool, again: bool, device: str,
            json_file: str | None) -> None:
    """Compare two results files of `bench`, variant by variant: is B slower than A? Or all files of
    two directories, as `bench all` writes them.

    A variant that is slower by at least the smallest difference that counts is measured again, and
    reported as slower only if it is slower again. Exits with 1 if a variant of rawnn's is slower,
    can no longer run, or is slower and could not be measured again. Peers are compared separately.
    """
    check_output("--json", json_file, a, b)
    before, now = read_directory(a), read_directory(b)
    pairs, notes = pairs_of(before, now, effect), notes_of(before, now)
    if again:
        with Screen("again", 1) as screen, Harness(
                "again", notify=say, progress=lambda done, total, rounds, last: screen.advance(
                    done, total, last)) as harness:
            pairs = measure_again(harness, pairs, now, effect, device)
    if json_file:
        found = {"a": a, "b": b, "effect": effect, "notes": notes,
                 "pairs": [{k: v for k, v in msgspec.to_builtins(
                     _plain(pair)).items() if v not in (None, "")} for pair in pairs]}
        write_atomically(json_file, indented_json(found) + b"\n")
    _show(pairs, notes, everything, a, b, effect)
    bad = [p for p in pairs if p.is_ours and p.verdict in ("slower", "flagged", "lost")]
    if bad:
        ours = sum(p.is_ours for p in pairs)
        named = "; ".join(p.name for p in bad[:3]) + (f" and {len(bad) - 3} more"
                                                      if len(bad) > 3 else "")
        raise RawnnError(f"{len(bad)} of {ours} variants are worse in {b} than in {a}: {named}")


def _plain(pair: Pair) -> dict[str, Any]:
    """A pair as stored in the file of a comparison."""
    return {"case": pair.case, "variant": pair.variant, "precision": pair.precision,
            "verdict": pair.verdict, "ours": pair.is_ours, "ratio": pair.ratio,
            "again": pair.again, "reason": pair.reason}


def _show(pairs: Sequence[Pair], notes: Sequence[str], everything: bool, a: str, b: str,
          effect: float) -> None:
    console = table_console()
    for ours, title, what in ((True, f"A = {a}, B = {b}", "all variants together"),
                              (False, "The peers, judged by themselves: no regression of ours",
                               "all of the peers' variants together")):
        mine = [p for p in pairs if p.is_ours is ours]
        shown = [p for p in mine if everything or p.verdict not in ("same", "not measured")]
        if shown:
            tables.print_table(HEADINGS, [cells(pair) for pair in shown], title)
        for verdict, meaning in MEANING.items():
            if count := sum(p.verdict == verdict for p in mine):
                console.print(f"{count} {verdict}: {meaning}", markup=False)
        if mean := overall(mine):
            console.print("{}: B / A = {:.3f} [{:.3f}, {:.3f}] (geometric mean; interval over the "
                          "variants)".format(what, *mean), markup=False)
    console.print(f"the smallest difference that counts is {effect:.0%}", markup=False)
    for note in notes:
        console.print(f"- {note}", markup=False)


def cells(pair: Pair) -> tuple[str, ...]:
    """The texts of the columns HEADINGS."""
    name = f"{pair.variant} ({pair.precision})" if not pair.is_ours else pair.variant
    verdict = f"{pair.verdict}: {pair.reason}" if pair.reason else pair.verdict
    if pair.ratio is None:
        return (pair.case, name, "", "", "", "", verdict)
    r, again = pair.ratio, "" if pair.again is None else f"{pair.again.value:.3f}"
    return (pair.case, name, f"{r.value:.3f}", f"{r.low:.3f} - {r.high:.3f}"
            + ("" if r.is_interval else " (range)"), again, f"{r.samples[1]} | {r.samples[0]}",
            verdict)


# -- everything ------------------------------------------------------------------------------------


@bench.command("all")
@click.argument("names", nargs=-1, metavar="[SUITE]...")
@BENCH
@click.option("--out", "out", default="results", show_default=True, metavar="DIRECTORY",
              help="Where the results files are written, and those that are whole are kept.")
@click.option("--budget", type=click.FloatRange(0, min_open=True), metavar="SECONDS",
              help="For all that are left: each has its share, and none is begun after this (720).")
@click.option("--device", default="auto", metavar="auto|gpu:N|host|sim", help="Where to run.")
@click.option("--dataset", type=click.Choice(["mnist", "synthetic"]), default="mnist",
              show_default=True, help="The data set.")
@as_by_ctrl_c()
def everything(names: tuple[str, ...], bench_file: str | None, out: str, budget: float | None,
               device: str, dataset: str) -> None:
    """Measure the suites of [all] in bench.toml, one after the other, each into a file of its own.

    A suite whose file is complete is not measured again, so that after Ctrl-C the same command
    continues. A suite that fails does not stop the others.
    """
    suite = read_suites(bench_file).all
    wanted = [suite_name(name) for name in names or suite.suites]
    budget = budget or suite.budget
    for name in (*wanted, *suite.shares):
        if name not in CASES:
            raise unknown("suite", name, CASES)
    folder, begun = Path(out), monotonic()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror}") from None
    files = {name: folder / f"{name}.json" for name in wanted}
    shares = {name: suite.shares.get(name, 0.0) for name in wanted if not _is_whole(files[name],
                                                                                    name)}
    until, all_shares = 0.0, sum(shares.values())
    failed: list[str] = []
    for name, file in files.items():
        if name not in shares:
            say(f"{name}: {file} is whole; remove it to measure again")
            continue
        spent = monotonic() - begun
        if spent >= budget:
            raise RawnnError(f"the budget of {budget:.0f} s is spent before {name}; the same "
                             f"command goes on there")
        share = shares[name] * budget / all_shares if shares[name] else budget
        until += share
        left = min(max(until - spent, share), budget - spent)
        say(f"{name}: into {file}, for {left:.0f} of the {budget - spent:.0f} s that are left")
        try:
            _measure(CASES[name], file, left, bench_file, device, dataset)
        except RawnnError as error:
            failed.append(name)
            say(f"{name}: {error}")
        except (click.Abort, click.exceptions.Exit):
            raise
        except Exception as error:  # a failure of one suite does not stop the others
            failed.append(name)
            traceback.print_exc()
            say(f"{name}: {type(error).__name__}: {error}")
    if failed:
        raise RawnnError(f"{len(failed)} of {len(wanted)} suites failed ({', '.join(failed)})")


def _is_whole(file: Path, suite: str) -> bool:
    """Whether a file has all results of its suite."""
    try:
        return read_results(file).is_whole(suite)
    except ConfigError:
        return False


def _measure(case: Case, file: Path, left: float, bench_file: str | None, device: str,
             dataset: str) -> None:
    """Run a case, and write its table as Markdown next to the results."""
    options = bench.commands[case.name].make_context(case.name, []).params
    options |= {name: value for name, value in (("device", device), ("dataset", dataset),
                                                ("budget", left)) if name in options}
    for name in signature(run_case).parameters:
        options.pop(name, None)
    run_case(case, options, bench_file, str(file), str(file.with_suffix(".md")),
             str(file) if case.resumes and file.exists() else None)
