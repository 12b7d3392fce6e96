"""`rawnn bench workloads` and `rawnn bench toggles`: built-in workloads with sets of toggles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from rawnn.bench.sets import Kind, Progress, SetsResult, WorkloadSet, run_sets
from rawnn.bench.workloads import workload_sets
from rawnn.bench.worth import comparison_sets, markdown, toggles_named
from rawnn.cli.screen import Screen, say
from rawnn.errors import RawnnError
from rawnn.files import check_output, write_atomically
from rawnn.workloads import WORKLOADS

_OPTIONS = [
    click.option("--repeats", type=click.IntRange(1), default=3, show_default=True,
                 help="Runs of each set, with a seed of its own each time."),
    click.option("--epochs", type=click.IntRange(1),
                 help="Passes over the data (the workload's own)."),
    click.option("--dataset", default="mnist", show_default=True, metavar="NAME",
                 help="mnist or synthetic."),
    click.option("--device", default="auto", metavar="auto|gpu:N|host|sim", help="Where to run."),
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
              help="A built-in workload; several may be given (all of them).")
@click.option("--opt", "opts", multiple=True, metavar="TOGGLES",
              help="A set of toggles to measure each with; several may be given (best, the "
                   "workload's own, and best,sr where its weights are in 16 bits).")
@_measuring
def workloads(names: tuple[str, ...], opts: tuple[str, ...], markdown_file: str | None,
              **options: Any) -> None:
    """Measure the built-in workloads: time a step, accuracy and device memory."""
    result = _measured("workloads", workload_sets(names or tuple(WORKLOADS), opts),
                       markdown_file, **options)
    click.echo(result.provenance())
    _finish(result, result.markdown(), markdown_file)


@click.command()
@click.argument("names", nargs=-1, metavar="[TOGGLE]...")
@_measuring
def toggles(names: tuple[str, ...], markdown_file: str | None, **options: Any) -> None:
    """Measure what each toggle is worth: the workloads that show it, without it and with it.

    All toggles are measured unless some are named.
    """
    chosen = toggles_named(names)
    result = _measured("toggles", comparison_sets(chosen), markdown_file, **options)
    text = "\n".join(f"## `{toggle.name}`: {toggle.claim}\n\n{markdown(toggle, [result])}"
                     for toggle in chosen)
    click.echo(f"\nMilliseconds an epoch; in brackets how many times faster than without.\n\n"
               f"{text}")
    _finish(result, text, markdown_file)


def _measured(kind: Kind, sets: Sequence[WorkloadSet], markdown_file: str | None, *, repeats: int,
              epochs: int | None, dataset: str, device: str, json_file: str | None) -> SetsResult:
    check_output("--json", json_file)
    check_output("--markdown", markdown_file)
    with Screen(kind, repeats) as screen:

        def advance(progress: Progress) -> None:
            measured = progress.measurement
            if json_file:
                progress.result.write_json(json_file)
            if progress.complete:
                click.echo("  ".join(measured.cells()))
            screen.advance(progress.done, progress.total, f"{measured.workload} {measured.opt}")

        result = run_sets(kind, sets, repeats, epochs, device, dataset, notify=say,
                          on_progress=advance, stand_in=True)
    if json_file:
        result.write_json(json_file)
    return result


def _finish(result: SetsResult, text: str, markdown_file: str | None) -> None:
    if markdown_file:
        write_atomically(markdown_file, text.encode())
    if result.interrupted:
        raise click.Abort
    if not any(m.accuracies for m in result.measurements):
        raise RawnnError("none of it can run here; the reasons stand above")
