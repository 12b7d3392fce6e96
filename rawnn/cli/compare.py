"""`rawnn compare`: which of several sets of toggles is faster for one's own network."""

from __future__ import annotations

from typing import Any

import click

from rawnn.bench.columns import TRAFFIC
from rawnn.bench.duel import ROUNDS, Duel, duel
from rawnn.bench.footprint import traffic, x_floor
from rawnn.cli.kept import Kept
from rawnn.cli.option_groups import Command
from rawnn.cli.options import (
    OUTPUT,
    PATH,
    TOGGLES,
    config_options,
    make_config,
    run_option,
    toggle_names,
)
from rawnn.cli.screen import say, table_console
from rawnn.cli.tables import print_table
from rawnn.cli.termination import as_by_ctrl_c
from rawnn.common.errors import ConfigError
from rawnn.common.files import check_output
from rawnn.engine.data_source import fitted
from rawnn.engine.machine import open_device

HEADINGS = ("toggles", "us/step", "min-max", "x first", "x floor", *TRAFFIC, "loss of epoch 1")


@click.command(cls=Command)
@run_option(TOGGLES, "--opt", "A set of toggles; give two or more.", "", multiple=True,
            metavar="TOGGLES", required=True, values=toggle_names, many=True)
@config_options("opt", "epochs", "partial", "patience", "min_delta", "monitor", "save",
                "save_every", "keep", "resume")
@click.option("--rounds", type=click.IntRange(2), default=ROUNDS, show_default=True,
              help="Turns of each set.")
@run_option(OUTPUT, "--json json_file", "Keep everything as JSON.", "not written",
            metavar="FILE", type=PATH)
@as_by_ctrl_c()
def compare(config_file: str | None, rounds: int, json_file: str | None, **options: Any) -> None:
    """Time two or more sets of toggles on one network, in turns, and say which is faster.

    `--opt A --opt B`: the others are compared with the first. A difference that noise explains is
    said to be none.
    """
    check_output("--json", json_file)
    opts = options.pop("opt")
    config, data = fitted(make_config(config_file, options), say)
    opened = open_device(config.device, say)
    with opened:
        found = duel(config, opts, data, opened, rounds,
                     lambda number, opt: say(f"turn {number + 1} of {rounds}: {opt}"))
    Kept(json_file).end(found, lambda: show_duel(found))


def show_duel(found: Duel, markdown_file: str | None = None) -> None:
    """Print the table and the verdicts, as they were printed when they were measured."""
    if markdown_file:
        raise ConfigError("a comparison of `rawnn compare` is not written as Markdown")
    console = table_console()
    first = found.sides[0].us.median
    print_table(HEADINGS, [
        (side.opt, f"{side.us.median:.2f}", f"{side.us.min:.2f}-{side.us.max:.2f}",
         f"{first / side.us.median:.2f}", x_floor(side.us.median, side.footprint),
         *traffic(side.footprint), f"{side.loss:.5f}") for side in found.sides])
    for side in found.sides[1:]:
        console.print(found.verdict(side), markup=False)
    for side in found.sides:
        if not side.steady:
            console.print(f"- {side.opt} never became steady", markup=False)
        if side.conditions and side.conditions.throttled:
            console.print(f"- the GPU was slowed down under {side.opt}: "
                          f"{', '.join(side.conditions.throttled)}", markup=False)
        for note in side.notes:
            console.print(f"- {side.opt}: {note}", markup=False)
    if found.environment.device == "sim":
        console.print("the GPU is SIMULATED: the times say nothing about a real one")
