"""The user's cache of raw IDX content: one file per content, named by its SHA-256.

A file's checksum is computed once. A stamp then records it with the file's size, modification time
and inode, so that later starts neither hash nor unzip. Everything is written atomically into a
private directory, and nothing is ever rewritten in place. A cache that cannot be written is not
used, with one message.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from rawnn.common.files import cache_directory, write_privately
from rawnn.data.catalog import is_pinned
from rawnn.data.idx import Bytes

Notify = Callable[[str], None]


def default_directory() -> Path:
    """`data` in rawnn's cache directory."""
    return cache_directory() / "data"


class RawStore:
    """Verified raw content under `directory`; `notify` gets a message if it cannot be used."""

    def __init__(self, directory: Path, notify: Notify) -> None:
        self.directory = directory
        self._notify = notify
        self._warned = False

    def find(self, sha256: str) -> Path | None:
        """The verified file with this checksum, or None."""
        path = self._raw(sha256)
        known = self.known(path)
        if known is None:
            try:
                info = os.stat(path)
                with open(path, "rb") as file:
                    known = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError:
                return None
            if known == sha256:
                self.remember(path, known, info)
        if known == sha256:
            return path
        self._notify(f"the cached file {path} is corrupt and will be replaced")
        return None

    def put(self, content: Bytes, sha256: str) -> Path | None:
        """Write `content`, whose checksum the caller computed; None if it cannot be written."""
        path = self._raw(sha256)
        try:
            self._write(path, content.data)
            self.remember(path, sha256, os.stat(path))
        except OSError as error:
            self.warn(error)
            return None
        return path

    def known(self, path: Path) -> str | None:
        """The checksum recorded for `path`, or None if it changed since or has no record."""
        try:
            info = os.stat(path)
            *seen, sha256 = self._stamp(path).read_text(encoding="ascii").split()
        except (OSError, ValueError):
            return None
        return sha256 if seen == _identity(info) else None

    def remember(self, path: Path, sha256: str, info: os.stat_result) -> None:
        """Record the checksum of `path` (for a gzip file: of its content), which had the status
        `info` before it was read. The content of an older version of the file is deleted."""
        stamp = self._stamp(path)
        try:
            with contextlib.suppress(OSError, ValueError):
                older = stamp.read_text(encoding="ascii").split()[-1:]
                if older and older[0] != sha256 and not is_pinned(older[0]):
                    self._raw(older[0]).unlink(missing_ok=True)
            self._write(stamp, " ".join([*_identity(info), sha256]).encode("ascii"))
        except OSError as error:
            self.warn(error)

    @contextlib.contextmanager
    def downloads(self) -> Iterator[Path]:
        """A directory for unfinished downloads: persistent if the cache can be written, and locked
        against other processes that fetch the same; a temporary one otherwise."""
        directory = self.directory / "partial"
        try:
            self._private(directory)
            lock = open(directory / "lock", "ab")  # noqa: SIM115 (closed below)
        except OSError as error:
            self.warn(error)
            temporary = Path(tempfile.mkdtemp(prefix="rawnn-"))
            try:
                yield temporary
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
            return
        with lock:
            self._lock(lock)
            yield directory

    def warn(self, error: OSError) -> None:
        """Report, the first time, that the cache cannot be written."""
        if not self._warned:
            self._warned = True
            self._notify(
                f"the cache {self.directory} cannot be written ({error.strerror or error}); "
                "going on without it, so each start reads the data anew"
            )

    def _lock(self, file: IO[bytes]) -> None:
        if sys.platform == "win32":
            return  # two processes may then fetch; each verifies its result
        import fcntl

        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._notify("waiting for another process that is fetching data")
                fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            return  # a file system without locks: as above

    def _raw(self, sha256: str) -> Path:
        return self.directory / "raw" / f"{sha256}.idx"

    def _stamp(self, path: Path) -> Path:
        key = hashlib.sha256(os.fsencode(os.path.abspath(path))).hexdigest()[:32]
        return self.directory / "stamps" / key

    def _private(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def _write(self, path: Path, content: bytes | memoryview) -> None:
        self._private(path.parent)
        write_privately(path, content)


def _identity(info: os.stat_result) -> list[str]:
    return [str(info.st_size), str(info.st_mtime_ns), str(info.st_ino)]
