"""`rawnn bench scaling`: what more GPUs are worth."""

from __future__ import annotations

import click
import msgspec

from rawnn.bench.peers.process import missing
from rawnn.bench.scaling import HEADINGS, ScalingResult, alone, measure, points
from rawnn.cli.kept import Kept
from rawnn.cli.screen import Screen, say
from rawnn.cli.tables import print_table
from rawnn.common.errors import ConfigError, DeviceError, RawnnError
from rawnn.common.files import check_output, write_atomically
from rawnn.engine.config import check_device
from rawnn.engine.machine import open_gpu


@click.command()
@click.option("--ranks", type=click.IntRange(1, 1024), default=2, show_default=True,
              help="Measure up to so many processes on this host, one for each GPU.")
@click.option("--workload", "names", multiple=True, metavar="NAME",
              help="A built-in workload; several may be given (mlp4, wide1024, wide4096, "
                   "wide8192).")
@click.option("--batch", type=click.IntRange(1), default=4096, show_default=True,
              help="The global batch; in weak scaling that of the most ranks.")
@click.option("--opt", metavar="TOGGLES", help="Toggles (each workload's own).")
@click.option("--peer", "peers", multiple=True, type=click.Choice(["torch"]),
              help="Measure PyTorch's DDP beside it.")
@click.option("--epochs", type=click.IntRange(2), default=10, show_default=True,
              help="Epochs of a run, the first half of which are not counted.")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True,
              help="Runs of each, in turns, with a seed of its own each time.")
@click.option("--dataset", default="mnist", show_default=True, metavar="NAME",
              help="mnist or synthetic.")
@click.option("--device", default="gpu", show_default=True, metavar="gpu|host",
              help="Where ranks run.")
@click.option("--json", "json_file", metavar="FILE",
              help="Keep everything as JSON; written after every run.")
@click.option("--markdown", "markdown_file", metavar="FILE", help="Write the table as Markdown.")
def scaling(ranks: int, names: tuple[str, ...], batch: int, opt: str | None,
            peers: tuple[str, ...], epochs: int, repeats: int, dataset: str, device: str,
            json_file: str | None, markdown_file: str | None) -> None:
    """Measure how training scales over ranks: strong (the batch stays) and weak (each rank's part
    stays), with the loss of every epoch.

    Exits with 1 where a run failed; the table says which.
    """
    alone()
    check_output("--json", json_file)
    check_output("--markdown", markdown_file)
    check_device(device)
    wanted = points(names or ("mlp4", "wide1024", "wide4096", "wide8192"),
                    ("rawnn", *dict.fromkeys(peers)), batch, ranks)
    _check_place(device, peers)
    result: ScalingResult | None = None
    kept, total = Kept(json_file), len(wanted) * repeats
    interrupted = False
    with Screen("scaling", total) as screen:
        try:
            for done, result in enumerate(
                    measure(wanted, opt, epochs, repeats, device, dataset, say), 1):
                kept.write(result)
                last = wanted[(done - 1) % len(wanted)]
                screen.advance(done, total, f"{last.workload}, {last.system}, {last.ranks} ranks")
        except KeyboardInterrupt:
            interrupted = True
    if result is None:
        raise click.Abort
    if interrupted:
        result = msgspec.structs.replace(result, interrupted=True)
    found = result
    kept.end(found, lambda: show_scaling(found, markdown_file))
    if failed := [p for p in found.points if p.reason]:
        raise RawnnError(f"{len(failed)} of {len(wanted)} measurements failed; what they said "
                         f"stands above")


def _check_place(device: str, peers: tuple[str, ...]) -> None:
    """Find out ahead of all runs what each of them would fail for. Raises ConfigError."""
    for reason in filter(None, map(missing, peers)):
        raise ConfigError(f"--peer: {reason}")
    if device != "host":
        try:
            open_gpu(0, say).close()
        except DeviceError as error:
            raise ConfigError(f"ranks run on a GPU each: {error}; --device host measures them on "
                              f"the host") from None


def show_scaling(result: ScalingResult, markdown_file: str | None) -> None:
    """Print the table, as it was printed when it was measured."""
    print_table(HEADINGS, [result.cells(point) for point in result.points])
    click.echo(result.provenance())
    if markdown_file:
        write_atomically(markdown_file, result.markdown().encode())
