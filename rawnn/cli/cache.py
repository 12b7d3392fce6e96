"""`rawnn cache`: the compiled kernels on disk."""

from __future__ import annotations

import click

from rawnn.common.errors import RawnnError
from rawnn.cuda.compiling.cache import CubinCache


@click.group()
def cache() -> None:
    """Show or clear the compiled kernels on disk."""


@cache.command()
def info() -> None:
    """Say where compiled kernels are stored, how many and how large."""
    found = CubinCache().info()
    click.echo(f"{found.directory}: {found.entries} compiled kernel files, "
               f"{found.nbytes / 1024:.0f} KiB")


@cache.command()
def clear() -> None:
    """Delete all compiled kernels; they are compiled again when they are next needed."""
    kept = CubinCache()
    try:
        count = kept.clear()
    except OSError as error:
        raise RawnnError(f"{error.filename or kept.directory} cannot be deleted: "
                         f"{error.strerror or error}") from None
    click.echo(f"{kept.info().directory}: {count} compiled kernel files deleted")
