"""The file of --json while something is measured: written again and again, so that little is lost
whatever happens."""

from __future__ import annotations

import os
from typing import Protocol

from rawnn.cli.screen import say
from rawnn.errors import RawnnError


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
        if self._path is None:
            return
        try:
            found.write_json(self._path)
        except RawnnError as error:
            if self._failed is None:
                say(f"{error}; going on, to be tried again")
            self._failed = error
        else:
            self._failed = None

    def check(self) -> None:
        """Raise RawnnError if the last try failed: to be called when all has been printed."""
        if self._failed is not None:
            raise self._failed
