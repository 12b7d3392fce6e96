"""Compiler options that the commands about user kernels share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

OPTIONS = (
    click.option("-D", "defines", multiple=True, metavar="NAME[=VALUE]",
                 help="Define a macro, as 1 where no value stands."),
    click.option("-I", "include", multiple=True, metavar="FOLDER", help="A folder with headers."),
    click.option("--option", "options", multiple=True, metavar="OPTION",
                 help="Another option of NVRTC, such as --option=--use_fast_math."),
)
LEFT_OUT = click.option("--left-out", is_flag=True,
                        help="List what FILE has for the host, which is not compiled.")


def list_left_out(file: object, left_out: Sequence[object], listed: bool) -> None:
    """Report what was left out of a file: each part, or the number of them."""
    from rawnn.cli.screen import say

    if listed:
        click.echo("\n".join(map(str, left_out)) or f"nothing is left out of {file}")
    elif left_out:
        say(f"the device's part of {file} was compiled; --left-out lists the "
            f"{len(left_out)} declarations and headers of the host's")


def macros(defines: Iterable[str]) -> dict[str, object]:
    """The macros of -D, as `rawnn.Kernel` takes them: 1 without a value, as in compilers."""
    parts = (define.partition("=") for define in defines)
    return {name.strip(): value if equals else 1 for name, equals, value in parts}
