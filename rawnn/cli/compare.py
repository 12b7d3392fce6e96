"""`rawnn compare`: which of several configurations is faster for a network."""

from __future__ import annotations

from typing import Any

import click

from rawnn.bench.harness import Harness
from rawnn.bench.side_by_side import ROUNDS, SUITE, TIMER, compare_configurations
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
from rawnn.cli.screen import say
from rawnn.cli.tables import show
from rawnn.cli.termination import as_by_ctrl_c
from rawnn.engine.data_source import fitted
from rawnn.opts.select import check_text


@click.command(cls=Command)
@run_option(TOGGLES, "--opt", "A configuration; give two or more.", "", multiple=True,
            metavar="TOGGLES", required=True, values=toggle_names, many=True)
@config_options("opt", "sharding", "epochs", "partial", "patience", "min_delta", "monitor", "save",
                "save_every", "keep", "resume")
@click.option("--rounds", type=click.IntRange(2), default=ROUNDS, show_default=True,
              help="Turns of each configuration.")
@run_option(OUTPUT, "--json json_file", "Keep everything as JSON.", "not written",
            metavar="FILE", type=PATH)
@as_by_ctrl_c()
def compare(config_file: str | None, rounds: int, json_file: str | None, **options: Any) -> None:
    """Time two or more configurations on one network, alternately, and say which is faster.

    `--opt A --opt B`: the others are compared with the first. A difference within noise is reported
    as none.
    """
    opts = options.pop("opt")
    for opt in opts:
        check_text(opt)
    with Harness(SUITE, json_file, notify=say,
                 progress=lambda done, total, rounds, last: say(
                     f"turn {done} of {total}: {last.partition(' ')[2]}")
                 ) as harness:
        config = make_config(config_file, options)
        opened = harness.open(config.device, TIMER)  # reports a missing GPU before a download
        config, data = fitted(config, say)
        compare_configurations(harness, config, opts, data, opened, rounds)
    show(harness.results, SUITE)
    if harness.interrupted:
        raise click.Abort
    harness.check()
