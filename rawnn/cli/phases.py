"""`rawnn bench phases`: where a step on the chip spends its time."""

from __future__ import annotations

import click

from rawnn.bench.peers.problem import LEARNING_RATES, STEPS, Problem
from rawnn.bench.phases import HEADINGS, PhasesResult, measure
from rawnn.cli.screen import say
from rawnn.cli.tables import print_table
from rawnn.common.files import check_output, write_atomically
from rawnn.errors import ConfigError
from rawnn.run.config import check_device
from rawnn.run.machine import open_device


@click.command()
@click.option("--layers", default="784-128-10", show_default=True, metavar="784-10",
              help="Sizes from the inputs to the outputs.")
@click.option("--batch", type=click.IntRange(1), default=32, show_default=True,
              help="Examples per step.")
@click.option("--loss", type=click.Choice(["cross_entropy", "mse", "bce"]),
              default="cross_entropy", show_default=True, help="What is minimised.")
@click.option("--optimizer", type=click.Choice(sorted(LEARNING_RATES)), default="sgd",
              show_default=True, help="The rule of the updates.")
@click.option("--steps", type=click.IntRange(2), default=STEPS, show_default=True,
              help="Steps of an epoch, which is a launch.")
@click.option("--opt", default="persistent,graphs=epoch", show_default=True, metavar="TOGGLES",
              help="persistent, or how it is to share the work, with graphs=epoch; numbers.")
@click.option("--device", default="auto", metavar="auto|gpu:N|sim", help="Which GPU (auto).")
@click.option("--json", "json_file", metavar="FILE", help="Keep everything as JSON.")
@click.option("--markdown", "markdown_file", metavar="FILE", help="Write the table as Markdown.")
def phases(layers: str, batch: int, loss: str, optimizer: str, steps: int, opt: str, device: str,
           json_file: str | None, markdown_file: str | None) -> None:
    """Trace the kernel of `persistent`: the cycles of each phase of a step, beside what the cost
    model expects of it.

    Inputs are drawn at random. Stamps take some cycles themselves: the time without them stands
    above the table.
    """
    check_output("--json", json_file)
    check_output("--markdown", markdown_file)
    check_device(device)
    words = layers.split("-")
    sizes = tuple(int(word) for word in words if word.isdecimal())
    if len(sizes) < max(len(words), 2) or min(sizes) < 1:
        raise ConfigError(f"--layers {layers}: give sizes, as in 784-128-10")
    problem = Problem(name="phases", seed=0, layers=sizes, batch=batch, loss=loss,  # type: ignore[arg-type]
                      optimizer=optimizer, lr=LEARNING_RATES[optimizer],  # type: ignore[arg-type]
                      steps=steps)
    with open_device(device, say) as opened:
        result = measure(opened, problem, opt, say)
    if json_file:
        result.write_json(json_file)
    show_phases(result, markdown_file)


def show_phases(result: PhasesResult, markdown_file: str | None = None) -> None:
    """Print the table, as it was printed when it was measured."""
    click.echo(result.head())
    print_table(HEADINGS, result.rows())
    click.echo(result.provenance())
    if markdown_file:
        write_atomically(markdown_file, result.markdown().encode())
