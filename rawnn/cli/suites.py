"""`rawnn bench ablation`, `sweep` and `curves`: measurements that bench.toml describes."""

from __future__ import annotations

import math
from pathlib import Path

import click

from rawnn.bench.ablation import HEADINGS as ABLATION_HEADINGS
from rawnn.bench.ablation import MEANING, ablated, ablated_in, ablation_sets
from rawnn.bench.ablation import markdown as ablation_markdown
from rawnn.bench.ablation import rows as ablation_rows
from rawnn.bench.curves import HEADINGS, CurvesResult, provenance, rows, run_curves
from rawnn.bench.curves import markdown as curves_markdown
from rawnn.bench.peers.arrange import (
    Arrangement,
    chosen,
    of_workloads,
    swept,
    swept_forms,
)
from rawnn.bench.peers.contest import Rules
from rawnn.bench.peers.records import read_contests
from rawnn.bench.peers.summary import network_line
from rawnn.bench.sets import Progress, SetsResult, run_sets
from rawnn.bench.suites import read_suites
from rawnn.cli.kept import Kept
from rawnn.cli.peers import bench_option, device_of, finish, hold, show_workloads
from rawnn.cli.screen import say
from rawnn.cli.sets import earlier_sets
from rawnn.cli.tables import print_table
from rawnn.cli.termination import as_by_ctrl_c
from rawnn.common.errors import ConfigError, RawnnError, unknown
from rawnn.common.files import check_output, write_atomically
from rawnn.engine.config import check_device
from rawnn.engine.machine import open_device


@click.command()
@bench_option
@click.option("--dataset", default="mnist", show_default=True, metavar="NAME",
              help="mnist or synthetic.")
@click.option("--device", default="auto", metavar="auto|gpu:N|host|sim", help="Where to run.")
@click.option("--repeats", type=click.IntRange(1), help="Runs of each set (3).")
@click.option("--budget", type=click.FloatRange(0, min_open=True), metavar="SECONDS",
              help="Run a set once more only where that is expected to end within this.")
@click.option("--resume", metavar="FILE",
              help="Keep the sets that this file has, measure the others, and write it.")
@click.option("--json", "json_file", metavar="FILE",
              help="Keep everything as JSON; written after every run.")
@click.option("--markdown", "markdown_file", metavar="FILE", help="Write the table as Markdown.")
def ablation(bench_file: str | None, dataset: str, device: str, repeats: int | None,
             budget: float | None, resume: str | None, json_file: str | None,
             markdown_file: str | None) -> None:
    """Measure what each toggle of the fastest set is worth, alone and beside the others.

    The fastest set is trained less one toggle at a time, and the base with one toggle at a time.
    """
    json_file, earlier = json_file or resume, earlier_sets(resume)
    check_output("--json", json_file)
    check_output("--markdown", markdown_file)
    check_device(device)
    suites = read_suites(bench_file).ablation
    opened = open_device(device, say)
    if opened.device is None:
        raise ConfigError(f"an ablation means something on a GPU only: {opened.machine.gpu}")
    toggles = [t for suite in suites for t in ablated(suite, opened.machine)]
    kept = Kept(json_file)

    def heard(progress: Progress) -> None:
        kept.write(progress.result)
        say(f"{progress.done} of {progress.total}: {progress.measurement.workload} "
            f"{progress.measurement.opt}")

    epochs = {s.workload: max(o.epochs for o in suites if o.workload == s.workload)
              for s in suites}
    runs = {s.repeats for s in suites}
    with opened:
        result: SetsResult = run_sets(
            "ablation", ablation_sets(toggles), repeats or max(runs), epochs, device, dataset,
            notify=say, on_progress=heard, opened=opened, budget=budget or math.inf,
            earlier=earlier)
    kept.end(result, lambda: show_ablation(result, markdown_file))


def show_ablation(result: SetsResult, markdown_file: str | None) -> None:
    """Print what each toggle is worth alone and beside the others."""
    toggles = ablated_in(result)
    print_table(ABLATION_HEADINGS, ablation_rows(toggles, result))
    click.echo(MEANING)
    click.echo(result.provenance())
    if markdown_file:
        write_atomically(markdown_file, ablation_markdown(result).encode())


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@bench_option
@click.option("--peer", "peers", multiple=True, metavar="NAME",
              help="torch, jax or numpy; several may be given (torch and jax).")
@click.option("--device", default="auto", metavar="auto|gpu:N|host|sim", help="Where to run.")
@click.option("--budget", type=click.FloatRange(0, min_open=True), metavar="SECONDS",
              help="End with what was measured before this is exceeded.")
@click.option("--resume", metavar="FILE", help="Go on where this file ends, and write it.")
@click.option("--json", "json_file", metavar="FILE",
              help="Keep everything as JSON; written after every network.")
@click.option("--markdown", "markdown_file", metavar="FILE", help="Write the table as Markdown.")
def sweep(names: tuple[str, ...], bench_file: str | None, peers: tuple[str, ...], device: str,
          budget: float | None, resume: str | None, json_file: str | None,
          markdown_file: str | None) -> None:
    """Time networks of growing width, or with growing batches, beside the peers.

    NAMEs are those of the sweeps in bench.toml (width and batch); all of them unless some are
    given.
    """
    suites = read_suites(bench_file).sweep
    known = [s.name for s in suites]
    for name in names:
        if name not in known:
            raise unknown("sweep", name, known)
    suites = [s for s in suites if not names or s.name in names]
    usual = dict.fromkeys(name for s in suites for name in s.systems)
    systems, absent = chosen(peers, tuple(usual))
    json_file = json_file or resume
    earlier = read_contests(resume) if resume and Path(resume).exists() else None
    asked = [p for s in suites for p in swept(s)]
    rules = Rules(systems, device_of(device), swept_forms(suites))
    kept = Kept(json_file)
    result = hold(Arrangement("sweep", asked, rules, absent, earlier), budget, kept, json_file,
                  markdown_file, network_line)
    show_workloads(result, markdown_file)
    finish(result, kept)


@click.command()
@click.option("--workload", "names", multiple=True, metavar="NAME",
              help="A built-in workload; several may be given (those of bench.toml).")
@bench_option
@click.option("--peer", "peers", multiple=True, metavar="NAME",
              help="torch, jax or numpy; several may be given (torch).")
@click.option("--steps", type=click.IntRange(2), help="Steps of each curve (1000).")
@click.option("--dataset", type=click.Choice(["mnist", "synthetic"]), default="mnist",
              show_default=True, help="The data set.")
@click.option("--device", default="auto", metavar="auto|gpu:N|host|sim", help="Where to run.")
@click.option("--json", "json_file", metavar="FILE", help="Keep all losses as JSON.")
@click.option("--markdown", "markdown_file", metavar="FILE", help="Write the table as Markdown.")
@as_by_ctrl_c()
def curves(names: tuple[str, ...], bench_file: str | None, peers: tuple[str, ...],
           steps: int | None, dataset: str, device: str, json_file: str | None,
           markdown_file: str | None) -> None:
    """Draw the losses of ours and of the peers over the first steps, from the same weights on the
    same batches.

    Exits with 1 if a curve leaves the stated tolerance.
    """
    check_output("--json", json_file)
    check_output("--markdown", markdown_file)
    suite = read_suites(bench_file).curves
    systems, absent = chosen(peers, suite.systems)
    for reason in absent.values():
        say(f"{reason}; it is left out")
    half = -(-(steps or suite.steps) // 2)
    asked = of_workloads(names or suite.names, dataset, half)
    result = run_curves(asked, Rules(systems, device_of(device)), absent, say)
    Kept(json_file).end(result, lambda: show_curves(result, markdown_file))
    wrong = [c for c in result.curves if c.reason or (c.error is not None and c.error > 1)]
    if wrong:
        raise RawnnError(f"{len(wrong)} of {len(result.curves)} curves failed or are not those of "
                         f"the others")


def show_curves(result: CurvesResult, markdown_file: str | None) -> None:
    """Print where each curve begins and ends, and both as Markdown."""
    print_table(HEADINGS, rows(result))
    click.echo(provenance(result))
    if markdown_file:
        write_atomically(markdown_file, curves_markdown(result).encode())
