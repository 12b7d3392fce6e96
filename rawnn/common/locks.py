"""A lock that allows one writer to a directory, and that the operating system frees however the
process ends.

The lock is `flock` on a small file in the directory, not the file's existence; the file names the
holder. The code is rawnn's own, because packages for file locks empty the file before they have the
lock, so that it cannot name the holder.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from rawnn.common.errors import ConfigError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

NAME = ".rawnn.lock"
"""The file in the directory; it is deleted when the lock is released."""
ATTEMPTS = 16
"""How often a lock file that its holder has just deleted is opened again."""


class DirectoryLock:
    """The exclusive right to write to a directory, until `release` or the end of the process.

    Raises ConfigError, naming the holder, if there is another writer. If the directory's file
    system has no locks, `notify` is called and `is_held` is false.
    """

    def __init__(self, directory: str | os.PathLike[str], notify: Callable[[str], None],
                 name: str = NAME,
                 busy: tuple[str, str] = ("another run writes to {}",
                                          "save to another directory with --save")) -> None:
        self._path, self._file = Path(directory, name), -1
        try:
            self._file = self._locked()
        except BlockingIOError:
            raise ConfigError(
                f"{busy[0].format(os.fspath(directory))} ({self._holder()}): wait until it has "
                f"ended, or {busy[1]}") from None
        except OSError as error:
            notify(f"{os.fspath(directory)} cannot be locked ({error.strerror or error}): start no "
                   f"other run that saves there")
            return
        self._describe()

    @property
    def is_held(self) -> bool:
        return self._file >= 0

    def release(self) -> None:
        """Release the directory and delete the file; a second call has no effect."""
        if not self.is_held:
            return
        with contextlib.suppress(OSError):
            self._path.unlink()
        os.close(self._file)
        self._file = -1

    def _locked(self) -> int:
        """The open file, locked. Raises BlockingIOError if another holds the lock, and OSError."""
        if fcntl is None:
            raise OSError(errno.ENOTSUP, "this system has no flock")
        for _ in range(ATTEMPTS):
            try:
                file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            except PermissionError:  # another user's
                file = os.open(self._path, os.O_RDONLY)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The previous holder may have deleted the file between the two calls: a lock on a
                # file without a name excludes nobody.
                if os.path.samestat(os.fstat(file), os.stat(self._path)):
                    return file
            except FileNotFoundError:
                pass
            except BaseException:
                os.close(file)
                raise
            os.close(file)
        raise OSError(errno.ESTALE, "its files change their identity")

    def _describe(self) -> None:
        """Write who holds it; a full disk does not prevent the lock."""
        holder = {"pid": os.getpid(), "host": socket.gethostname(),
                  "since": datetime.now().astimezone().isoformat(" ", "seconds")}
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, json.dumps(holder).encode(), 0)

    def _holder(self) -> str:
        """The holder named in the file, which is empty for a moment at first."""
        try:
            found = json.loads(self._path.read_bytes())
            return f"pid {found['pid']} on {found['host']}, since {found['since']}"
        except (OSError, ValueError, KeyError, TypeError):
            return "it does not say which"


class DirectoryLocks:
    """The locks of one run on all directories that it writes to; released together at the end of a
    `with` block."""

    def __init__(self) -> None:
        self._by_path: dict[str, DirectoryLock] = {}

    def hold(self, directory: str | os.PathLike[str], notify: Callable[[str], None]) -> bool:
        """Lock a directory, unless this run has it; returns whether it is locked. Raises
        ConfigError as DirectoryLock does."""
        name = os.path.realpath(directory)
        if name not in self._by_path:
            self._by_path[name] = DirectoryLock(directory, notify)
        return self._by_path[name].is_held

    def __enter__(self) -> DirectoryLocks:
        return self

    def __exit__(self, *error: object) -> None:
        for lock in self._by_path.values():
            lock.release()


@contextlib.contextmanager
def file_lock(path: str | os.PathLike[str], notify: Callable[[str], None]) -> Iterator[None]:
    """Lock one results file, by a lock file next to it. A file that is not regular (/dev/stdout)
    has none. Raises ConfigError if another process holds it."""
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        yield
        return
    lock = DirectoryLock(target.parent, notify, f".{target.name}.lock", (
        f"another measurement writes {os.fspath(path)}", "name another file with --json"))
    try:
        yield
    finally:
        lock.release()
