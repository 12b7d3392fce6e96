"""`rawnn bench peers` and `rawnn bench random --peers`: the same work in other systems."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from rawnn.bench.peers.arrange import (
    Arrangement,
    chosen,
    drawn,
    drawn_forms,
    of_workloads,
    workload_forms,
)
from rawnn.bench.peers.contest import Rules
from rawnn.bench.peers.merging import merged_contests
from rawnn.bench.peers.records import OURS, Contest, ContestsResult, read_contests
from rawnn.bench.peers.summary import (
    HEADINGS,
    cells,
    draws_line,
    markdown,
    network_line,
    provenance,
    setups,
    summary,
    tensor_bound_line,
)
from rawnn.bench.peers.workload_table import HEADINGS as WORKLOAD_HEADINGS
from rawnn.bench.peers.workload_table import markdown as workload_markdown
from rawnn.bench.peers.workload_table import remarks, table_rows
from rawnn.bench.suites import read_suites
from rawnn.cli.kept import Kept
from rawnn.cli.screen import say
from rawnn.cli.tables import print_table
from rawnn.common.errors import RawnnError
from rawnn.common.files import check_output, write_atomically
from rawnn.engine.config import check_device

bench_option = click.option(
    "--bench", "bench_file", metavar="FILE.toml",
    help="What to measure, in place of the packaged bench.toml (docs/suites.md).")


class Part(click.ParamType):  # type: ignore[type-arg]
    """One of several equal parts: "2/3" is (2, 3)."""

    name = "K/N"

    def convert(self, value: str | tuple[int, int], param: click.Parameter | None,
                context: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        number, _, count = value.partition("/")
        if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
            self.fail(f"'{value}' is no part: 2/3 is the second of three", param, context)
        return int(number), int(count)


def random_contests(count: int | None, seeds: tuple[int, ...], device: str, peers: tuple[str, ...],
                    budget: float | None, resume: str | None, json_file: str | None,
                    markdown_file: str | None, bench_file: str | None = None,
                    part: tuple[int, int] = (1, 1)) -> None:
    """Draw networks and time them beside the peers; a file to be resumed says how many and from
    which seeds, unless that is asked for."""
    json_file = json_file or resume
    earlier = read_contests(resume) if resume and Path(resume).exists() else None
    device, suite = device_of(device), read_suites(bench_file).random
    if earlier and count is None and not seeds:
        asked = earlier.asked
    else:
        asked = drawn(seeds or (suite.seed,), count or suite.n, device)
    systems, absent = chosen(peers, suite.systems)
    rules = Rules(systems, device, drawn_forms(asked))
    arranged = Arrangement("random-peers", asked, rules, absent, earlier, part=part)
    kept = Kept(json_file)
    result = hold(arranged, budget, kept, json_file, markdown_file)
    _say_draws(result, markdown_file, kept)


def show_contests(result: ContestsResult, markdown_file: str | None) -> None:
    """Print what `random --peers`, `peers` or `sweep` measured, as it was printed then."""
    (_show_draws if result.kind == "random-peers" else show_workloads)(result, markdown_file)
    click.echo(provenance(result))


def show_workloads(result: ContestsResult, markdown_file: str | None) -> None:
    """The table of workloads or of a sweep, what is to be said of it, and both as Markdown."""
    print_table(WORKLOAD_HEADINGS, table_rows(result))
    for text in remarks(result):
        click.echo(f"- {text}")
    if markdown_file:
        write_atomically(markdown_file, workload_markdown(result).encode())


def _say_draws(result: ContestsResult, markdown_file: str | None, kept: Kept) -> None:
    """The summary of drawn networks, and whether they went well."""
    _show_draws(result, markdown_file)
    finish(result, kept)


def _show_draws(result: ContestsResult, markdown_file: str | None) -> None:
    """The summary of drawn networks, and their tables as Markdown."""
    if result.contests:
        print_table(HEADINGS, [cells(line) for line in summary(result)])
        click.echo("Ratios are their time over ours: above 1 we are faster.")
        for each in filter(None, (tensor_bound_line(result), draws_line(result))):
            click.echo(each)
        click.echo(setups(result))
    if markdown_file:
        write_atomically(markdown_file, markdown(result).encode())


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE.json...")
@click.option("--json", "json_file", required=True, metavar="FILE", help="The one file.")
@click.option("--markdown", "markdown_file", metavar="FILE", help="Write the tables as Markdown.")
def merge(files: tuple[str, ...], json_file: str, markdown_file: str | None) -> None:
    """Make one file of several that `bench random --peers` wrote: parts (--part), or draws.

    They must be of the same commit, kind of GPU, driver and libraries. Needs no GPU.
    """
    check_output("--json", json_file)
    check_output("--markdown", markdown_file)
    result = merged_contests([(name, read_contests(name)) for name in files])
    if result.kind != "random-peers":
        raise RawnnError(f"these are files of {result.kind}: those of bench random --peers are "
                         f"merged")
    result.write_json(json_file)
    _say_draws(result, markdown_file, Kept(None))


@click.command()
@click.option("--workload", "names", multiple=True, metavar="NAME",
              help="A built-in workload; several may be given (those of bench.toml).")
@click.option("--peer", "peers", multiple=True, metavar="NAME",
              help="numpy, torch or jax; several may be given (all that are installed).")
@bench_option
@click.option("--steps", type=click.IntRange(1),
              help="Steps of an epoch, at most as many as the data have (256).")
@click.option("--dataset", type=click.Choice(["mnist", "synthetic"]), default="mnist",
              show_default=True, help="The data set.")
@click.option("--device", default="auto", metavar="auto|gpu:N|host|sim", help="Where to run.")
@click.option("--budget", type=click.FloatRange(0, min_open=True), metavar="SECONDS",
              help="End with what was measured before this is exceeded.")
@click.option("--resume", metavar="FILE", help="Go on where this file ends, and write it.")
@click.option("--json", "json_file", metavar="FILE",
              help="Keep everything as JSON; written after every workload.")
@click.option("--markdown", "markdown_file", metavar="FILE", help="Write the table as Markdown.")
def peers(names: tuple[str, ...], peers: tuple[str, ...], bench_file: str | None,
          steps: int | None, dataset: str, device: str,
          budget: float | None, resume: str | None, json_file: str | None,
          markdown_file: str | None) -> None:
    """Train the built-in workloads in NumPy, PyTorch and JAX beside ours, in turns.

    Every system starts from the same weights and sees the same batches, and its losses are checked
    against the others'. A system that is not installed is left out by name.
    """
    json_file = json_file or resume
    earlier = read_contests(resume) if resume and Path(resume).exists() else None
    suite = read_suites(bench_file).peers
    systems, absent = chosen(peers, suite.systems)
    asked = of_workloads(names or suite.names, dataset, steps or suite.steps)
    rules = Rules(systems, device_of(device), workload_forms)
    arranged = Arrangement("peers", asked, rules, absent, earlier)
    kept = Kept(json_file)
    result = hold(arranged, budget, kept, json_file, markdown_file)
    show_workloads(result, markdown_file)
    finish(result, kept)


def device_of(device: str) -> str:
    """The device of ours, which other systems have as their first."""
    check_device(device)
    name, _, ordinal = device.partition(":")
    if ordinal and ordinal != "0":
        raise RawnnError(f"--device {device}: other systems run on the first GPU; choose it with "
                         f"CUDA_VISIBLE_DEVICES={ordinal}")
    return name


def hold(arranged: Arrangement, budget: float | None, kept: Kept, json_file: str | None,
         markdown_file: str | None,
         line: Callable[[Contest], str] = network_line) -> ContestsResult:
    """Hold the contests of an arrangement, and say each as soon as it is over."""
    check_output("--json", json_file)
    check_output("--markdown", markdown_file)
    for reason in arranged.left_out.values():
        say(f"{reason}; it is left out")

    def over(contest: Contest) -> None:
        click.echo(line(contest))
        kept.write(arranged.result())

    result = arranged.hold(budget or float("inf"), over, say)
    kept.write(result)
    return result


def finish(result: ContestsResult, kept: Kept) -> None:
    """Say where it was measured. Raises RawnnError where its file could not be written, and where
    ours failed or was wrong."""
    click.echo(provenance(result))
    if result.environment.device == "sim":
        click.echo("the GPU is SIMULATED: the times say nothing about a real one")
    if result.interrupted:
        raise click.Abort
    kept.check()
    bad = [c.problem.name for c in result.contests
           if any(e.system == OURS and e.status != "measured" for e in c.entries)]
    if bad:
        raise RawnnError(f"rawnn was refused, failed or was wrong in {len(bad)} of "
                         f"{len(result.contests)} contests ({', '.join(bad)})")
