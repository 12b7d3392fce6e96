"""`rawnn bench phases`: where a step on the chip spends its time."""

from __future__ import annotations

from typing import get_args

import click

from rawnn.bench.peers.problem import LEARNING_RATES, STEPS, Loss, Problem, Rule
from rawnn.bench.phases import HEADINGS, PhasesResult, measure
from rawnn.cli.kept import Kept
from rawnn.cli.screen import say
from rawnn.cli.tables import print_table
from rawnn.common.files import check_output, write_atomically
from rawnn.engine.config import check_device, parse_layers
from rawnn.engine.machine import open_device


@click.command()
@click.option("--layers", default="784-128-10", show_default=True, metavar="784-10",
              help="Sizes from the inputs to the outputs.")
@click.option("--batch", type=click.IntRange(1), default=32, show_default=True,
              help="Examples per step.")
@click.option("--loss", type=click.Choice(get_args(Loss)),
              default="cross_entropy", show_default=True, help="What is minimised.")
@click.option("--optimizer", type=click.Choice(get_args(Rule)), default="sgd",
              show_default=True, help="The rule of the updates.")
@click.option("--steps", type=click.IntRange(2), default=STEPS, show_default=True,
              help="Steps of an epoch, which is a launch.")
@click.option("--opt", default="persistent,graphs=epoch", show_default=True, metavar="TOGGLES",
              help="persistent, or how it is to share the work, with graphs=epoch; numbers.")
@click.option("--device", default="auto", metavar="auto|gpu:N|sim", help="Which GPU (auto).")
@click.option("--json", "json_file", metavar="FILE", help="Keep everything as JSON.")
@click.option("--markdown", "markdown_file", metavar="FILE", help="Write the table as Markdown.")
def phases(layers: str, batch: int, loss: Loss, optimizer: Rule, steps: int, opt: str, device: str,
           json_file: str | None, markdown_file: str | None) -> None:
    """Trace the kernel of `persistent`: the cycles of each phase of a step, beside what the cost
    model expects of it.

    Inputs are drawn at random. Stamps take some cycles themselves: the time without them stands
    above the table.
    """
    check_output("--json", json_file)
    check_output("--markdown", markdown_file)
    check_device(device)
    problem = Problem(name="phases", seed=0, layers=parse_layers(layers), batch=batch, loss=loss,
                      optimizer=optimizer, lr=LEARNING_RATES[optimizer], steps=steps)
    with open_device(device, say) as opened:
        result = measure(opened, problem, opt, say)
    Kept(json_file).end(result, lambda: show_phases(result, markdown_file))


def show_phases(result: PhasesResult, markdown_file: str | None = None) -> None:
    """Print the table, as it was printed when it was measured."""
    click.echo(result.head())
    print_table(HEADINGS, result.rows())
    click.echo(result.provenance())
    if markdown_file:
        write_atomically(markdown_file, result.markdown().encode())
