"""The file of --json while something is measured: written again and again, so that little is lost
whatever happens."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

import click

from rawnn.cli.screen import say
from rawnn.common.errors import RawnnError


class Writable(Protocol):
    """What was measured so far."""

    def write_json(self, path: str | os.PathLike[str], /) -> None:
        """Write it atomically. Raises RawnnError."""


class Kept:
    """A results file, or none. Where it cannot be written (a full disk) that is said once and the
    measurement goes on: what is not in the file can still be printed, and the next try may
    succeed."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._failed: RawnnError | None = None

    def write(self, found: Writable) -> None:
        """Write all that is known."""
        before = self._failed
        self._try(found)
        if self._failed is not None and before is None:
            say(f"{self._failed}; going on, to be tried again")

    def end(self, found: Writable, show: Callable[[], None]) -> None:
        """Write all that was found, show it whether or not that succeeds, and say how it ended.
        Raises click.Abort for what Ctrl-C ended, RawnnError where the file could not be written."""
        self._try(found)
        show()
        if getattr(found, "interrupted", False):
            if self._failed is not None:
                say(str(self._failed))
            raise click.Abort
        self.check()

    def _try(self, found: Writable) -> None:
        self._failed = None
        if self._path is not None:
            try:
                found.write_json(self._path)
            except RawnnError as error:
                self._failed = error

    def check(self) -> None:
        """Raise RawnnError if the last try failed: to be called when all has been printed."""
        if self._failed is not None:
            raise self._failed
