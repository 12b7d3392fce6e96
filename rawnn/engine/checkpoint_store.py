"""The directory that a run writes its checkpoints to."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from rawnn.common.errors import CheckpointError, ConfigError
from rawnn.common.files import check_path
from rawnn.engine.checkpoint import Checkpoint, listed, name_of, read, write

PARTIALS = ".*.safetensors*.partial"
"""Temporary files of checkpoints that were being written."""


class Store:
    """A directory of checkpoints, of which the newest `keep` are kept (None keeps all)."""

    def __init__(self, directory: str | os.PathLike[str], keep: int | None = None) -> None:
        """Makes the directory. Raises CheckpointError where it cannot be used."""
        check_path("directory", directory)
        if not os.fspath(directory):
            raise ConfigError("directory = '' names no directory: give one")
        self.directory = Path(directory)
        self._keep = keep
        if keep is not None and keep < 1:
            raise ConfigError(f"keep = {keep}: at least one checkpoint must be kept")
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise CheckpointError(f"cannot make the directory {directory}: it is a file; name "
                                  f"another for checkpoints"
                                  ) from None
        except OSError as error:
            raise CheckpointError(f"cannot make the directory {directory}: "
                                  f"{error.strerror or error}") from None
        if not os.access(self.directory, os.W_OK | os.X_OK):
            raise CheckpointError(f"the directory {directory} cannot be written")

    def expect(self, epoch: int, is_locked: bool = True) -> None:
        """Refuse a directory that holds valid checkpoints of epochs after `epoch`, where this run
        begins: resuming would take them for its own. Invalid ones stay until this run overwrites
        them. Temporary files of a killed process are removed, but only under the lock: without it
        they may belong to a live process."""
        later = [path for number, path in listed(self.directory)
                 if number > epoch and _is_valid(path)]
        if later:
            fix = "continue from it with --resume" if epoch == 0 else \
                f"continue from the newest with --resume {self.directory}"
            raise ConfigError(f"{later[-1]} is of a later epoch than this run begins with: {fix}, "
                              f"or save to another directory with --save")
        for left in self.directory.glob(PARTIALS) if is_locked else ():
            with contextlib.suppress(OSError):
                left.unlink()

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint under its epoch's name, then delete the oldest beyond `keep`, never
        the one just written. Raises CheckpointError."""
        return self.save_by(checkpoint.epoch, lambda path: write(path, checkpoint))

    def save_by(self, epoch: int, write_to: Callable[[Path], None]) -> Path:
        """As `save`, of whatever `write_to` writes to the path that it is given."""
        path = self.directory / name_of(epoch)
        write_to(path)
        if self._keep is not None:
            self._delete(p for _, p in listed(self.directory)[: -self._keep] if p != path)
        return path

    def _delete(self, old: Iterable[Path]) -> None:
        for path in old:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise CheckpointError(f"cannot delete {path}: {error.strerror or error}") from None


def how_to_continue(directory: str | os.PathLike[str],
                    what: str = "free some space, and continue") -> str:
    """How to continue after a run ended early, by default as a checkpoint could not be written:
    from the newest readable one of the directory."""
    valid = None
    with contextlib.suppress(CheckpointError):
        valid = next((path for _, path in reversed(listed(directory)) if _is_valid(path)), None)
    return f"{valid} is valid: {what} with --resume {directory}" if valid \
        else f"{directory} holds no valid checkpoint"


def not_stored(error: CheckpointError, directory: str | os.PathLike[str]) -> CheckpointError:
    """The error of a run that ends as a checkpoint could not be written."""
    return CheckpointError(f"{error}; {how_to_continue(directory)}")


def _is_valid(path: Path) -> bool:
    from rawnn.engine import many_checkpoint

    for reader in (read, many_checkpoint.read):
        with contextlib.suppress(CheckpointError):
            reader(path)
            return True
    return False
