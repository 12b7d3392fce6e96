"""`rawnn toggles`: every toggle, and whether this machine can run it."""

from __future__ import annotations

import textwrap

import click

from rawnn.cli.screen import sentences, table_console
from rawnn.engine.config import Config
from rawnn.engine.machine import open_device
from rawnn.opts import TOGGLES
from rawnn.opts.presets import PRESETS
from rawnn.opts.registry import Machine, Toggle

WIDTH = 96
"""Longest lines: longer ones are hard to read."""


@click.command()
@click.option("--device", default="auto", metavar="auto|gpu:N|host|sim",
              help="The machine to judge by (auto).")
def toggles(device: str) -> None:
    """List every toggle: name, parameters, claim, needs, implies, conflicts, and whether this
    machine can run it and if not, why."""
    opened = open_device(Config(device=device).device,
                         lambda message: click.echo(f"rawnn: {message}", err=True))
    try:
        machine = opened.machine
        here = "a GPU" if machine.has_gpu else f"the host ({machine.no_gpu})"
        console = table_console()
        width = min(console.width, WIDTH)
        sentences(console, [f"Toggles, in the order in which they are applied; judged for {here}."])
        click.echo()
        for toggle in TOGGLES.values():
            click.echo(_entry(toggle, machine, width))
        click.echo(f"\nPresets: {', '.join(PRESETS)}. Each toggle has a page in docs/toggles.")
    finally:
        if opened.device:
            opened.device.close()


def _entry(toggle: Toggle, machine: Machine, width: int) -> str:
    name = toggle.name + (f"={toggle.parameter.syntax}" if toggle.parameter else "")
    default = f" (alone: {toggle.parameter.default})" \
        if toggle.parameter and toggle.parameter.default not in (None, "") else ""
    facts = [f"needs {toggle.needs_text}" if toggle.needs_text else "",
             f"implies {', '.join(toggle.implies)}" if toggle.implies else "",
             f"conflicts with {', '.join(toggle.conflicts)}" if toggle.conflicts else "",
             f"runs here: {_verdict(toggle, machine)}"]
    lines = [f"{toggle.claim}{default}", "; ".join(filter(None, facts))]
    wrapped = [textwrap.fill(line, width, initial_indent="    ", subsequent_indent="    ")
               for line in lines]
    return "\n".join([name, *wrapped])


def _verdict(toggle: Toggle, machine: Machine) -> str:
    if not machine.has_gpu:
        return "yes, on the host" if toggle.host else "no: only for a GPU"
    return f"no: it {reason}" if (reason := toggle.needs(machine)) else "yes"
