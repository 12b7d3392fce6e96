"""`rawnn launch`: several ranks of a command on this host."""

from __future__ import annotations

import sys

import click

from rawnn.cli.screen import say
from rawnn.common.errors import ConfigError
from rawnn.distributed.launcher import run


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-n", "--ranks", type=click.IntRange(1, 4096), required=True,
              help="How many processes to start, one for each GPU.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def launch(ranks: int, arguments: tuple[str, ...]) -> None:
    """Start N processes of `python -m rawnn ARGUMENTS` on this host, which train one network
    together, or with `many` share the networks, each on a GPU of its own:

    python -m rawnn launch -n 4 --opt graphs=epoch,mma,fuse,bf16

    They get the variables that torchrun sets. When one fails the others end, too, and a sentence
    says which it was. Several hosts are for torchrun, mpirun and srun.
    """
    if arguments[:1] == ("launch",):
        raise ConfigError("launch starts ranks of another command, not of itself")
    status = run([sys.executable, "-m", "rawnn", *arguments], ranks, say)
    if status:
        click.get_current_context().exit(status)
