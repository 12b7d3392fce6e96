"""What the commands about kernels of one's own tell the compiler."""

from __future__ import annotations

from collections.abc import Iterable

import click

OPTIONS = (
    click.option("-D", "defines", multiple=True, metavar="NAME[=VALUE]", help="Define a macro."),
    click.option("-I", "include", multiple=True, metavar="FOLDER", help="A folder with headers."),
    click.option("--option", "options", multiple=True, metavar="OPTION",
                 help="Another option of NVRTC, such as --option=--use_fast_math."),
)


def macros(defines: Iterable[str]) -> dict[str, object]:
    """What -D said, as `rawnn.Kernel` takes it: True where no value stands."""
    parts = (define.partition("=") for define in defines)
    return {name: value if equals else True for name, equals, value in parts}
