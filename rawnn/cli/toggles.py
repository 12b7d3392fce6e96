"""`rawnn toggles`: every toggle, and whether this machine can run it."""

from __future__ import annotations

import click
from rich.console import Console
from rich.table import Table

from rawnn.config import Config
from rawnn.machine import open_device
from rawnn.opts import TOGGLES
from rawnn.opts.presets import PRESETS
from rawnn.opts.registry import Machine, Toggle


@click.command()
@click.option("--device", default="auto", metavar="auto|gpu:N|host|sim",
              help="The machine to judge by (auto).")
def toggles(device: str) -> None:
    """List every toggle: name, parameters, claim, needs, implies, conflicts, and whether this
    machine can run it and if not, why."""
    opened = open_device(Config(device=device).device,
                         lambda message: click.echo(f"rawnn: {message}", err=True))
    try:
        table = Table(title="toggles, in the order in which they are applied", title_justify="left")
        for heading in ("name", "claim", "needs", "implies", "conflicts", "here"):
            table.add_column(heading, overflow="fold")
        for toggle in TOGGLES.values():
            name = toggle.name + (f"={toggle.parameter.form}" if toggle.parameter else "")
            table.add_row(name, toggle.claim, toggle.needs_text or "-",
                          ", ".join(toggle.implies) or "-", ", ".join(toggle.conflicts) or "-",
                          _verdict(toggle, opened.machine))
        console = Console()
        console.print(table)
        console.print(f"presets: {', '.join(PRESETS)}")
    finally:
        if opened.device:
            opened.device.close()


def _verdict(toggle: Toggle, machine: Machine) -> str:
    if machine.gpu is not None:
        return "yes, on the host" if toggle.host else f"no: {machine.gpu}"
    return f"no: it {reason}" if (reason := toggle.needs(machine)) else "yes"
