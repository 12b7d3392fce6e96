"""The command line: one file per command, with `train` as the default.

Commands are imported when they are asked for, so that start-up pays for only one of them.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import os
import sys
from collections.abc import Sequence
from types import ModuleType

import click
from click.shell_completion import CompletionItem

from rawnn.common.errors import RawnnError, nearest
from rawnn.version import __version__

COMMANDS = {
    "train": "Train a network (the default command).",
    "eval": "Measure a checkpoint on its test set, or on other data.",
    "predict": "Write a checkpoint's predictions for a file of examples.",
    "export": "Write a checkpoint as an ONNX model, for other runtimes.",
    "many": "Train many networks at once: options that vary, seeds, folds.",
    "toggles": "List every toggle, and whether this machine can run it.",
    "plan": "Show the plan of a step and the graph that it becomes; needs no GPU.",
    "bench": "Measure the speedup of each optimization on this machine.",
    "compare": "Time sets of toggles on one network, alternately: which is faster?",
    "profile": "Take a training step apart: every op with its time.",
    "tune": "Measure which toggles are fastest for a network here, for `best`.",
    "kernel": "Compile kernels of your own, see their resources, check and time them.",
    "doctor": "Say what of CUDA is found, where, and what each toggle lacks; needs no GPU.",
    "launch": "Start several ranks of a command on this host, one for each GPU.",
    "cache": "Show or clear the compiled kernels on disk.",
}


OWN_OPTIONS = ("--help", "-h", "--version")


def _with_command(args: Sequence[str]) -> list[str]:
    """The arguments with the default command, if they name none."""
    if args and args[0] == "help":  # as in other tools
        return [*args[1:], "--help"]
    if not args or (args[0] not in OWN_OPTIONS and args[0].startswith("-")):
        return ["train", *args]
    return list(args)


def _module(command: str) -> ModuleType:
    return importlib.import_module(f"rawnn.cli.{command}")


def load(arguments: Sequence[str]) -> None:
    """Import the command that is asked for, if there is one."""
    name = _with_command(arguments)[0]
    if name in COMMANDS:
        _module(name)


_TAKEN_BY = {".toml": "--config", ".csv": "--data", ".tsv": "--data", ".npz": "--data",
             ".cu": "kernel check", ".safetensors": "eval"}
"""Suffixes of files -> the option or command that takes such a file."""


class _Commands(click.Group):
    """A group whose commands are in modules of the same name, and whose default is `train`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and ctx.resilient_parsing:  # a shell asks for completions
            return super().parse_args(ctx, args)
        return super().parse_args(ctx, _with_command(args))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = super().shell_complete(ctx, incomplete)
        train = self.get_command(ctx, "train")
        if incomplete.startswith("-") and train is not None:  # the default command's options
            found += train.shell_complete(click.Context(train, parent=ctx), incomplete)
        return list({item.value: item for item in found}.values())

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = _module(cmd_name)
        name = "eval_" if cmd_name == "eval" else cmd_name  # does not shadow Python's eval
        command: click.Command = getattr(module, name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS:
            wanted = _TAKEN_BY.get(os.path.splitext(args[0])[1].lower())
            hint = f"; that file is taken by rawnn {wanted} {args[0]}" if wanted else \
                nearest(args[0], COMMANDS)
            raise click.UsageError(f"no such command '{args[0]}'" + hint)
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
    """Run the command line; returns the exit status. Expected errors are one sentence, and so are
    refusals of the machine: memory, files, a closed terminal."""
    _make_usable()
    try:
        status = cli.main(args=list(arguments), prog_name="rawnn", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        shown = _suggesting(error) if isinstance(error, click.NoSuchOption) else error
        with contextlib.suppress(OSError):
            shown.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        _say("interrupted")
        return 130
    except RawnnError as error:
        if error.speaks:
            _say(f"error: {error}")
        return error.exit_code
    except MemoryError as error:
        _say(f"error: the memory of the host does not suffice ({error or 'out of memory'})")
        return 1
    except OSError as error:
        _mute()
        if error.errno == errno.EPIPE:  # the reader has closed the pipe
            return 141
        what = f"{error.filename}: " if error.filename else "cannot write: "
        _say(f"error: {what}{error.strerror or error}")
        return 1
    return status if isinstance(status, int) else 0


def _suggesting(error: click.NoSuchOption) -> click.NoSuchOption:
    """The error with the option of the command that was probably meant."""
    options = error.ctx.command.get_params(error.ctx) if error.ctx else []
    known = [name for option in options for name in (*option.opts, *option.secondary_opts)
             if name.startswith("-")]
    name = error.option_name
    return click.NoSuchOption(name, f"no such option '{name}'{nearest(name, known)}", None,
                              error.ctx)


def _say(message: str) -> None:
    with contextlib.suppress(OSError):
        click.echo(f"rawnn: {message}", err=True)


def _make_usable() -> None:
    """Make the standard streams writable, whatever the process was started with."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed, as by >&-
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")  # the encoding may lack characters such as ±
    if os.environ.get("COLUMNS") == "0":  # rich prints nothing at this width
        del os.environ["COLUMNS"]


def _mute() -> None:
    """Discard the buffered rest of standard output, so that it does not fail again at exit."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
