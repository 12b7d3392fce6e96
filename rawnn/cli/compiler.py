"""What the commands about kernels of one's own tell the compiler."""

from __future__ import annotations

from collections.abc import Iterable

import click

OPTIONS = (
    click.option("-D", "defines", multiple=True, metavar="NAME[=VALUE]",
                 help="Define a macro, as 1 where no value stands."),
    click.option("-I", "include", multiple=True, metavar="FOLDER", help="A folder with headers."),
    click.option("--option", "options", multiple=True, metavar="OPTION",
                 help="Another option of NVRTC, such as --option=--use_fast_math."),
)


def macros(defines: Iterable[str]) -> dict[str, object]:
    """What -D said, as `rawnn.Kernel` takes it: 1 where no value stands, as compilers have it."""
    parts = (define.partition("=") for define in defines)
    return {name.strip(): value if equals else 1 for name, equals, value in parts}
