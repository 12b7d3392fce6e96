"""Output files: written so that nothing the user has is lost, and checked before the work whose
result they hold.

The code is rawnn's own: `atomicwrites` is no longer maintained, and handles neither links nor files
that a container mounts.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Protocol

from rawnn.common.errors import ConfigError, RawnnError, check_type

PathLike = str | os.PathLike[str]


def check_path(name: str, path: object) -> None:
    """Raise ConfigError for what is no path."""
    check_type(name, path, (str, os.PathLike), "a path, as text or a pathlib.Path")


def cache_directory() -> Path:
    """The folder for caches between runs: `RAWNN_CACHE`, else rawnn's folder in the user's cache
    directory."""
    given = os.environ.get("RAWNN_CACHE")
    if given:
        return Path(given).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("rawnn", appauthor=False))


def write_atomically(path: PathLike, content: bytes, *, durable: bool = False) -> None:
    """Write a file so that it holds either its old content or all of the new. `durable` waits for
    the disk, so that this holds after a power failure, too.

    The target of a link is replaced. A file that is not regular (a device, a FIFO), and the file
    that this process prints to (/dev/stdout), is written into. Raises RawnnError.
    """
    check_path("the file to be written", path)
    try:
        if _is_replaced(path):
            _replace(Path(os.path.realpath(path)), content, durable)
        else:
            with open_output(path) as file:
                file.buffer.write(content)  # type: ignore[attr-defined]
    except OSError as error:
        raise RawnnError(f"cannot write {os.fspath(path)}: {error.strerror or error}") from None


PARTIAL = ".partial"
"""Suffix of files that are being written; an interrupted writer leaves one."""


def write_privately(path: Path, content: bytes | memoryview) -> None:
    """Replace a file of a cache atomically, readable only by its owner. Raises OSError."""
    with _replacing(path) as (file, name):
        file.write(content)
        file.close()
        os.replace(name, path)


@contextlib.contextmanager
def _replacing(target: Path) -> Iterator[tuple[IO[bytes], str]]:
    """A temporary file next to `target`, open for writing, and its name; removed on failure."""
    handle, name = tempfile.mkstemp(PARTIAL, f".{target.name[:80]}.", target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file, name
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _replace(target: Path, content: bytes, durable: bool) -> None:
    with _replacing(target) as (file, name):
        file.write(content)
        if durable:
            file.flush()
            os.fsync(file.fileno())
        file.close()
        os.chmod(name, _mode(target))
        try:
            os.replace(name, target)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            target.write_bytes(content)  # a mount point, as containers make of single files
            os.unlink(name)
    if durable:
        _sync_directory(target.parent)


def _mode(target: Path) -> int:
    """The permissions of the existing file, or those of a new one."""
    with contextlib.suppress(OSError):
        return stat.S_IMODE(os.stat(target).st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _sync_directory(directory: Path) -> None:
    """Flush the rename to the disk, if the system can open directories."""
    with contextlib.suppress(OSError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def open_output(path: PathLike) -> IO[str]:
    """Open a file for text that is written incrementally; a regular file is emptied. Raises
    OSError."""
    number = _stream(path)
    if number is None:
        return open(path, "w", encoding="utf-8", newline="")
    for printed in (sys.stdout, sys.stderr):
        with contextlib.suppress(ValueError):  # it may be closed
            printed.flush()
    return open(os.dup(number), "w", encoding="utf-8", newline="")


class TextSink(Protocol):
    """A destination of text: an open file, or a SideOutput."""

    def write(self, text: str, /) -> object:
        """Write some text."""

    def flush(self) -> None:
        """Flush it to its destination."""


class SideOutput:
    """Additional text output of a run, which continues if writing fails: `notify` then gets the
    reason, once. The first write opens the file."""

    def __init__(self, path: PathLike, notify: Callable[[str], None]) -> None:
        self._path, self._notify = path, notify
        self._file: IO[str] | None = None
        self._lost = False

    def __enter__(self) -> SideOutput:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def write(self, text: str, /) -> None:
        self._unless_lost(lambda: self._opened().write(text))

    def flush(self) -> None:
        if self._file is not None:
            self._unless_lost(self._file.flush)

    def close(self) -> None:
        if self._file is not None:
            self._unless_lost(self._file.close)
            self._file = None

    def _opened(self) -> IO[str]:
        if self._file is None:
            self._file = open_output(self._path)
        return self._file

    def _unless_lost(self, action: Callable[[], object]) -> None:
        if self._lost:
            return
        try:
            action()
        except OSError as error:
            self._lost = True
            self._notify(f"cannot write {os.fspath(self._path)}: {error.strerror or error}; going "
                         f"on without it")


def check_output(option: str, path: PathLike | None, *reads: PathLike | None) -> None:
    """Before the work, find reasons why its result could not be written, or should not: it would
    replace one of the files that the work `reads`. Raises ConfigError."""
    if path is None:
        return
    check_path(option, path)
    name = os.fspath(path)
    if not name:
        raise ConfigError(f"{option} names no file: it is empty")
    if name == "-":
        raise ConfigError(f"{option} -: name a file; /dev/stdout is the standard output, and ./- a "
                          f"file of that name")
    try:
        reason = _obstacle(name) or _replaced(name, reads)
    except (OSError, ValueError) as error:
        reason = f"it cannot be written ({getattr(error, 'strerror', None) or error})"
    if reason:
        raise ConfigError(f"{option} {name}: {reason}")


def _replaced(name: str, reads: Iterable[PathLike | None]) -> str:
    """Why a file that is read would be lost, or ""."""
    written = os.path.realpath(name)
    if os.path.isfile(written):
        for each in reads:
            path = os.path.expanduser(each or "")
            if os.path.isfile(path) and os.path.samefile(written, path):
                return f"that would replace {path}, which is read: name another file"
    return ""


def _obstacle(name: str) -> str:
    """Why nothing can be written there, or "". Raises OSError and ValueError."""
    try:
        mode = os.stat(name).st_mode
    except FileNotFoundError:
        mode = 0
    if stat.S_ISDIR(mode) or name.endswith(os.sep):
        return "that is a directory"
    if mode and not os.access(name, os.W_OK):
        return "the file cannot be written"
    if stat.S_ISSOCK(mode):
        return "that is a socket"
    if not _is_replaced(name):
        return ""
    folder = os.path.dirname(os.path.realpath(name))
    shown = os.path.dirname(name) or "." if not os.path.islink(name) else folder
    if not os.path.isdir(folder):
        return f"there is no directory {shown}"
    try:
        with tempfile.TemporaryFile(dir=folder):  # permissions alone do not decide: /proc
            return ""
    except OSError as error:
        return f"the directory {shown} cannot be written ({error.strerror or error})"


def _is_replaced(path: PathLike) -> bool:
    """Whether the path is a regular file, or none yet, that this process does not print to."""
    try:
        regular = stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return True
    return regular and _stream(path) is None


def _stream(path: PathLike) -> int | None:
    """The open file descriptor that a path refers to: /dev/fd/N, or standard output and error for a
    path to the same file (/dev/stdout)."""
    if named := re.fullmatch(r"/(?:dev|proc/self)/fd/([0-9]{1,6})", os.fspath(path)):
        return int(named[1])
    for number in (1, 2):
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(path), os.fstat(number)):
                return number
    return None
