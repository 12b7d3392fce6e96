"""The on-disk cache of compiled kernels: files named by the hash of their inputs.

An entry never changes once written: writers create a private temporary file and rename it, so that
a reader in another process sees a complete entry or none. A checksum in the entry detects a
truncated or damaged file, which counts as missing and is removed.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rawnn.common.files import PARTIAL, cache_directory, write_privately

_MAGIC = b"rawnn-cubin-1\n"
_SUFFIX = ".cubin"


class CacheInfo(NamedTuple):
    """The cache's directory, its number of entries and their bytes on disk."""

    directory: Path
    entries: int
    nbytes: int


def default_directory() -> Path:
    """The default directory of cubins."""
    return cache_directory() / "cubins"


def _log_warning(message: str) -> None:
    logging.getLogger("rawnn").warning(message)


class CubinCache:
    """A directory of entries by key, safe for concurrent threads and processes.

    `directory` defaults to `default_directory()`. The first `put` creates it with mode 0700, and
    entries have mode 0600. A cubin is code that runs, so a directory that another user owns, or
    that group or others may write, is not used. An unusable cache never stops a run: it misses
    every time, and `notify` (by default a logged warning) is called once with the reason.
    """

    def __init__(
        self, directory: Path | None = None, notify: Callable[[str], None] | None = None
    ) -> None:
        self.directory = directory if directory is not None else default_directory()
        self._notify = notify or _log_warning
        self._complained = False

    def get(self, key: str) -> bytes | None:
        """The payload stored under `key`, or None."""
        path = self._path(key)
        try:
            if not self._trusted():
                return None
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._complain(f"cannot be read ({error.strerror or error})")
            return None
        body = len(_MAGIC) + hashlib.sha256().digest_size
        payload = data[body:]
        if data[:body] == _MAGIC + hashlib.sha256(payload).digest():
            return payload
        self.discard(key)
        return None

    def put(self, key: str, payload: bytes) -> bool:
        """Store `payload` under `key`; False if the cache cannot be written."""
        path = self._path(key)
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._trusted():
                return False
            write_privately(path, _MAGIC + hashlib.sha256(payload).digest() + payload)
        except OSError as error:
            self._complain(f"cannot be written ({error.strerror or error})")
            return False
        return True

    def discard(self, key: str) -> None:
        """Remove the entry under `key`, if there is one and the cache may be written."""
        try:
            self._path(key).unlink(missing_ok=True)
        except OSError as error:
            self._complain(f"cannot be written ({error.strerror or error})")

    def info(self) -> CacheInfo:
        """The directory, its number of entries and their bytes."""
        entries = nbytes = 0
        for path in self._files(_SUFFIX):
            try:
                nbytes += path.stat().st_size
            except OSError:
                continue  # removed by another process since it was listed
            entries += 1
        return CacheInfo(self.directory, entries, nbytes)

    def clear(self) -> int:
        """Remove every entry and the files of interrupted writers; returns the entries removed.

        Raises OSError if an entry cannot be removed.
        """
        for path in self._files(PARTIAL):
            path.unlink(missing_ok=True)
        entries = self._files(_SUFFIX)
        for path in entries:
            path.unlink(missing_ok=True)
        return len(entries)

    def _files(self, suffix: str) -> list[Path]:
        try:
            return [path for path in self.directory.iterdir() if path.suffix == suffix]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _path(self, key: str) -> Path:
        if not key.isalnum():
            raise ValueError(f"a cache key is a hexadecimal digest, not {key!r}")
        return self.directory / (key + _SUFFIX)

    def _trusted(self) -> bool:
        """Whether no other user can have put code into the directory. OSError if it is missing."""
        status = self.directory.stat()
        if hasattr(os, "geteuid"):
            if status.st_uid != os.geteuid():
                self._complain(f"is owned by another user (uid {status.st_uid})")
                return False
            if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                self._complain(
                    f"may be written by other users (mode {stat.S_IMODE(status.st_mode):04o}); "
                    f"run: chmod 700 '{self.directory}'"
                )
                return False
        return True

    def _complain(self, reason: str) -> None:
        if not self._complained:
            self._complained = True
            self._notify(
                f"the kernel cache {self.directory} {reason}; kernels are compiled anew in every "
                f"run (RAWNN_CACHE chooses another directory)"
            )
