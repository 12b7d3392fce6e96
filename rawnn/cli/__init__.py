"""The command line: one file a command, `train` being the default.

Commands are imported when they are asked for, so that start-up pays for one of them only.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import click

from rawnn.errors import RawnnError, nearest
from rawnn.version import __version__

COMMANDS = {
    "train": "Train a network (the default command).",
    "eval": "Measure a checkpoint on its test set, or on other data.",
    "predict": "Write what a checkpoint says of a file of examples.",
    "toggles": "List every toggle, and whether this machine can run it.",
    "plan": "Show the plan of a step and the graph that it becomes; needs no GPU.",
    "bench": "Measure what each optimization is worth on this machine.",
    "compare": "Time sets of toggles beside each other on one network: which is faster?",
    "tune": "Measure which toggles are fastest for a network here, for `best`.",
    "cache": "Show or clear the compiled kernels kept on disk.",
}


class _Commands(click.Group):
    """A group whose commands live in modules of the same name, and whose default is `train`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {"--help", "-h", "--version"}
        if not args or (args[0] not in own and args[0].startswith("-")):
            args = ["train", *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"rawnn.cli.{cmd_name}")
        name = "eval_" if cmd_name == "eval" else cmd_name  # not to hide Python's own
        command: click.Command = getattr(module, name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS:
            raise click.UsageError(f"no such command '{args[0]}'" + nearest(args[0], COMMANDS))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rawnn")
def cli() -> None:
    """Neural-network training on the raw CUDA driver, every optimization a toggle.

    `python -m rawnn --opt graphs,cublas,cudnn` trains; `python -m rawnn train --help` lists the
    options of a run.
    """


def run(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit status. Errors on purpose are one sentence."""
    try:
        status = cli.main(args=list(arguments), prog_name="rawnn", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("rawnn: interrupted", err=True)
        return 130
    except RawnnError as error:
        click.echo(f"rawnn: error: {error}", err=True)
        return error.exit_code
    except BrokenPipeError:
        sys.stderr.close()
        return 141
    return status if isinstance(status, int) else 0
