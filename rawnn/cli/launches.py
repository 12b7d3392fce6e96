"""`rawnn bench launches`: what a launch costs the host."""

from __future__ import annotations

import click

from rawnn.bench.launches import HEADINGS, MOST, OURS, LaunchesResult, measure, too_dear
from rawnn.bench.suites import read_suites
from rawnn.cli.kept import Kept
from rawnn.cli.peers import bench_option
from rawnn.cli.screen import Screen, say
from rawnn.cli.tables import print_table
from rawnn.cli.termination import as_by_ctrl_c
from rawnn.common.errors import RawnnError
from rawnn.common.files import check_output, write_atomically
from rawnn.engine.config import check_device
from rawnn.engine.machine import open_device


@click.command()
@click.option("--samples", type=click.IntRange(1, 10_000), help="Samples of each way (50).")
@click.option("--launches", "count", type=click.IntRange(1, MOST),
              help="Launches of a sample (200).")
@bench_option
@click.option("--device", default="auto", metavar="auto|gpu:N|sim", help="Which GPU (auto).")
@click.option("--json", "json_file", metavar="FILE", help="Keep everything as JSON.")
@click.option("--markdown", "markdown_file", metavar="FILE", help="Write the table as Markdown.")
@click.option("--check", is_flag=True,
              help="Exit with 1 where a launch of ours costs more than it may.")
@as_by_ctrl_c()
def launches(samples: int | None, count: int | None, bench_file: str | None, device: str,
             json_file: str | None, markdown_file: str | None, check: bool) -> None:
    """Measure what launching a small kernel costs the host, beside cuda.bindings, cuda.core, CuPy,
    PyTorch, Triton and Numba, as far as they are installed.

    Exits with 1 if a launch of ours could not be measured; what others say stands in the table.
    """
    check_output("--json", json_file)
    check_output("--markdown", markdown_file)
    check_device(device)
    suite = read_suites(bench_file).launches
    opened = open_device(device, say)
    with opened, Screen("launches", 1) as screen:
        result = measure(opened, samples or suite.samples, count or suite.launches,
                         lambda done, total: screen.advance(done, total, f"sample {done}"))
    Kept(json_file).end(result, lambda: show_launches(result, markdown_file))
    if failed := [way for way in result.ways if way.name in OURS and way.reason]:
        raise RawnnError(f"{failed[0].name}: {failed[0].reason}")
    if check and (dear := too_dear(result)):
        raise RawnnError("; ".join(dear))


def show_launches(result: LaunchesResult, markdown_file: str | None) -> None:
    """Print the table, as it was printed when it was measured."""
    print_table(HEADINGS, [result.cells(way) for way in result.ways])
    click.echo(result.provenance())
    if markdown_file:
        write_atomically(markdown_file, result.markdown().encode())
