"""`rawnn kernel`: compiles, shows, checks and times a user's kernels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from rawnn.cli import compiler
from rawnn.cli.attempt import try_
from rawnn.cli.screen import say
from rawnn.cli.tables import print_table
from rawnn.cli.trials import check, sweep, time
from rawnn.common.errors import ConfigError, DeviceError

_ASSUMED = "sm_90"


@click.group()
def kernel() -> None:
    """Compile kernels of your own, see their resources, check and time them."""


def _of_a_source(command: Callable[..., Any]) -> Callable[..., Any]:
    """The arguments and options for compiling a source."""
    for decorate in reversed((
        click.argument("file", type=click.Path(path_type=Path)),
        click.argument("names", nargs=-1, metavar="[NAME]..."),
        click.option("--arch", metavar="sm_90a", help=f"Architecture. [default: this GPU's, else "
                                                      f"{_ASSUMED}]"),
        *compiler.OPTIONS,
    )):
        command = decorate(command)
    return command


def _source(file: Path, defines: tuple[str, ...], include: tuple[str, ...],
            options: tuple[str, ...], arch: str | None) -> tuple[Any, str]:
    """(the source, the architecture)."""
    from rawnn.lab.kernel_source import Source

    macros = compiler.macros(defines)
    source = Source.of(file, macros, options, include, arch)
    source.check_macros(macros, source.text)  # a header's grid may be all that mentions one
    return source, arch or _gpu_architecture()


def _gpu_architecture() -> str:
    """The architecture of the first GPU, if there is one."""
    from rawnn.engine.machine import open_gpu

    try:
        device = open_gpu(0, lambda message: None)
    except DeviceError:
        return _ASSUMED
    try:
        return device.arch
    finally:
        device.close()


@kernel.command("compile")
@_of_a_source
@click.option("--block", type=click.IntRange(1, 1024), metavar="THREADS",
              help="Threads of a block, to show the occupancy for.")
@compiler.LEFT_OUT
def compile_(file: Path, names: tuple[str, ...], arch: str | None, defines: tuple[str, ...],
             include: tuple[str, ...], options: tuple[str, ...], block: int | None,
             left_out: bool) -> None:
    """Compile kernels of FILE (all, or instances by name: 'scale<float>') and show the resources of
    each: registers, shared memory, stack and spills. Of a file with host code only the device part
    is compiled."""
    from rawnn.lab import inspection

    source, arch = _source(file, defines, include, options, arch)
    if names:
        wanted = inspection.instances(source, names)
        built = inspection.compile_instances(source, wanted, arch)
    else:
        listed, others = inspection.list_instances(source)
        for sentence in others:
            say(sentence)
        built, wanted, absent = inspection.compile_listed(source, listed, arch)
        for sentence in absent:
            say(sentence)
    found = inspection.read_resources(built, wanted, arch, block)
    headings = ["kernel", "registers", "shared B", "stack B", "spill stores B", "spill loads B"]
    headings += ["blocks/SM", "occupancy", "limited by"] if block else []
    rows = []
    for each in found:
        fits = each.occupancy
        cells: list[object] = [each.usage.registers, each.usage.shared, each.usage.stack,
                               *each.spilled]
        if block:
            cells += [fits.blocks, f"{fits.fraction:.0%}", fits.limit] if fits else ["", "", ""]
        rows.append((each.expression, *map(str, cells)))
    print_table(headings, rows, f"{file} for {arch}")
    compiler.list_left_out(file, built.left_out, left_out)


@kernel.command()
@_of_a_source
@click.option("--ptx", "what", flag_value="ptx", default=True, help="Show PTX (the default).")
@click.option("--sass", "what", flag_value="sass", help="Show machine code; needs nvdisasm.")
def show(file: Path, names: tuple[str, ...], arch: str | None, defines: tuple[str, ...],
         include: tuple[str, ...], options: tuple[str, ...], what: str) -> None:
    """Show the PTX or the machine code of kernels of FILE."""
    from rawnn.lab import inspection

    source, arch = _source(file, defines, include, options, arch)
    wanted = inspection.instances(source, names)
    text = (inspection.sass if what == "sass" else inspection.ptx)(source, wanted, arch)
    if not text:
        raise ConfigError(f"there is no {what} of {file}")
    click.echo(text)


for _command in (check, time, sweep, try_):
    kernel.add_command(_command)
