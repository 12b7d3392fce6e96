"""`rawnn bench floors`: what limits this GPU."""

from __future__ import annotations

from dataclasses import replace

import click

from rawnn.bench.floors import HEADINGS, Floor, FloorsResult, implausible, keep
from rawnn.bench.limits import default_effort, measure
from rawnn.bench.suites import read_suites
from rawnn.cli.kept import Kept
from rawnn.cli.peers import bench_option
from rawnn.cli.screen import Screen, say
from rawnn.cli.tables import print_table
from rawnn.cli.termination import as_by_ctrl_c
from rawnn.common.errors import ConfigError, RawnnError
from rawnn.common.files import check_output, write_atomically
from rawnn.engine.config import check_device
from rawnn.engine.machine import open_device


@click.command()
@click.option("--samples", type=click.IntRange(1), help="Samples of each constant (15).")
@bench_option
@click.option("--device", default="auto", metavar="auto|gpu:N|sim", help="Which GPU (auto).")
@click.option("--json", "json_file", metavar="FILE", help="Keep everything as JSON, here as well.")
@click.option("--markdown", "markdown_file", metavar="FILE", help="Write the table as Markdown.")
@click.option("--check", is_flag=True,
              help="Exit with 1, and keep no limits, where a constant is none that a GPU can have.")
@as_by_ctrl_c()
def floors(samples: int | None, bench_file: str | None, device: str, json_file: str | None,
           markdown_file: str | None, check: bool) -> None:
    """Measure what limits this GPU: launches, barriers, exchanges, memory, arithmetic.

    What is found is kept beside the kernels' cache, by GPU and driver. The column "x floor" of the
    other tables and `rawnn plan --cost` go by it.
    """
    check_output("--json", json_file)
    check_output("--markdown", markdown_file)
    check_device(device)
    if check and device == "sim":
        raise ConfigError("--check judges the constants of a GPU: those of --device sim say "
                          "nothing of one")
    suite = read_suites(bench_file).floors
    opened = open_device(device, say)
    if opened.device is None:
        raise ConfigError(f"limits can be measured on a GPU only: {opened.machine.gpu}")
    effort = default_effort(opened)
    if samples or effort.least_ms:
        effort = replace(effort, samples=samples or suite.samples)
    with opened, Screen("floors", 1) as screen:

        def advance(floor: Floor, done: int, total: int) -> None:
            screen.advance(done, total, floor.what)

        result = measure(opened, effort, advance)
    Kept(json_file).end(result, lambda: show_floors(result, markdown_file))
    if not any(floor.value for floor in result.floors):
        raise RawnnError("none of it could be measured; the reasons stand above")
    if check and (doubts := implausible(result)):
        raise RawnnError(f"not such as a GPU can have: {'; '.join(doubts)}")
    if result.environment.device != "sim":
        say(f"kept in {keep(result)}")


def show_floors(result: FloorsResult, markdown_file: str | None) -> None:
    """Print the constants, as they were printed when they were measured."""
    print_table(HEADINGS, [floor.cells() for floor in result.floors])
    click.echo(result.provenance())
    if markdown_file:
        write_atomically(markdown_file, result.markdown().encode())
