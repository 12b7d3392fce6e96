"""Listeners that come with rawnn: checkpoints, early stopping, a log as CSV."""

from __future__ import annotations

import contextlib
import csv
import logging
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rawnn.common.errors import CheckpointError, ConfigError, RawnnError
from rawnn.common.files import SideOutput, check_output, check_path
from rawnn.common.listener import Listener
from rawnn.engine.checkpoint import BEST, EARLY_STOPPING, Checkpoint, is_of_run, read, write
from rawnn.engine.checkpoint_store import Store
from rawnn.engine.result import Report

if TYPE_CHECKING:
    from rawnn.engine.config import Config
    from rawnn.engine.session import Session


class Listeners(Listener):
    """Several listeners as one: each receives every call, in order. Messages also go to the logger
    "rawnn", as information."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = list(listeners)
        self.reads = any(listener.reads for listener in self._listeners)

    def notify(self, message: str) -> None:
        logging.getLogger("rawnn").info(message)
        for listener in self._listeners:
            listener.notify(message)

    def started(self, session: Session) -> None:
        for listener in self._listeners:
            listener.started(session)

    def reported(self, report: Report) -> None:
        for listener in self._listeners:
            listener.reported(report)

    def epoch_done(self, epoch: int) -> None:
        for listener in self._listeners:
            listener.epoch_done(epoch)

    def settled(self, epoch: int) -> None:
        for listener in self._listeners:
            listener.settled(epoch)

    def ended(self, epoch: int) -> None:
        for listener in self._listeners:
            listener.ended(epoch)


def requested_listeners(config: Config, lock: Callable[[Path], bool]) -> list[Listener]:
    """The listeners that a configuration asks for.

    Checkpoints come first: they store what training reached, before early stopping restores the
    best parameters at the end. `lock` gets the directory to save in and returns whether it could
    lock it. Raises ConfigError, before any data are fetched, for a directory that another run
    writes to or that holds another run's checkpoints.
    """
    listeners: list[Listener] = []
    if config.save is not None:
        stored = Checkpoints(config.save, config.save_every, config.keep)
        is_locked = lock(stored.directory)
        if config.resume is None:
            stored.expect(0, is_locked)
        listeners.append(stored)
    if config.patience is not None:
        listeners.append(EarlyStopping(config.patience, config.min_delta, config.monitor,
                                       directory=config.save))
    return listeners


def without_file_writers(given: Sequence[Listener], config: Config) -> list[Listener]:
    """The listeners of a rank other than 0. Only rank 0 writes files."""
    remaining = [each for each in given if not isinstance(each, Checkpoints | CsvLog)]
    if config.patience is not None:
        remaining.append(EarlyStopping(config.patience, config.min_delta, config.monitor,
                                       directory=config.save, writes=False))
    return remaining


def _check_whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ConfigError(f"{name} = {value!r}: it must be a whole number of at least 1")


class Checkpoints(Listener):
    """Writes a checkpoint after every `every` epochs and at the end, and keeps the newest `keep`.

    Raises CheckpointError for a directory that cannot be used, ConfigError (when training starts)
    for one that another run writes to, or that holds checkpoints of later epochs. Where one cannot
    be written the run ends after the epoch, with its result.

    Parameters
    ----------
    directory
        where they are written; made if it does not exist
    every
        epochs from one to the next
    keep
        how many are kept; None keeps all
    """

    instead_for_many = "save=DIRECTORY, save_every and keep write checkpoints of all"

    def __init__(self, directory: str | os.PathLike[str], every: int = 1,
                 keep: int | None = None) -> None:
        _check_whole("save_every", every)
        if every < 1:
            raise ConfigError(f"save_every = {every}: it must be at least 1")
        if keep is not None:
            _check_whole("keep", keep)
        self._store, self._every = Store(directory, keep), every
        self._last = -1

    @property
    def directory(self) -> Path:
        return self._store.directory

    def expect(self, epoch: int, is_locked: bool) -> None:
        """Refuse a directory that holds checkpoints of later epochs. Raises ConfigError."""
        self._store.expect(epoch, is_locked)

    def started(self, session: Session) -> None:
        self._session, self._last = session, session.resumed
        self.expect(session.resumed, session.lock(self.directory))

    def settled(self, epoch: int) -> None:
        if epoch % self._every == 0:
            with self._session.paused():
                self._save(epoch)

    def ended(self, epoch: int) -> None:
        if epoch != self._last:
            self._save(epoch)

    def _save(self, epoch: int) -> None:
        checkpoint = self._session.checkpoint(epoch)
        try:
            self._store.save(checkpoint)
        except CheckpointError as error:
            self._session.stop_unsaved(error, self._store.directory)
        self._last = epoch


_HIGHER_IS_BETTER = ("test_accuracy", "train_accuracy")


class EarlyStopping(Listener):
    """Ends training after `patience` reports in a row whose figure `monitor` is not better than the
    best so far by more than `min_delta`; with `restore_best` the parameters of the best report
    come back at the end, however training ends. With a `directory` they are kept there, too, as
    `best.safetensors`, so that a resumed run still has them; one that does not write, of a rank
    other than the first, only takes them from there.

    Parameters
    ----------
    patience
        reports without improvement after which training ends
    min_delta
        how much `monitor` must improve to count
    monitor
        "test_loss", "test_accuracy" or "train_loss"
    restore_best
        whether the parameters of the best report come back at the end
    directory
        where the best parameters are kept, as `best.safetensors`; None keeps them in memory
    writes
        whether this process writes them: of several ranks, the first
    """

    instead_for_many = "patience, min_delta and monitor stop each by itself"

    def __init__(self, patience: int = 5, min_delta: float = 0.0, monitor: str = "test_loss",
                 restore_best: bool = True, directory: str | os.PathLike[str] | None = None,
                 writes: bool = True) -> None:
        names = [field.name for field in fields(Report) if field.name not in ("epoch", "epoch_ms")]
        if monitor not in names:
            raise ConfigError(f"monitor = '{monitor}': use one of {', '.join(names)}")
        _check_whole("patience", patience)
        if patience < 1:
            raise ConfigError(f"patience = {patience}: it must be at least 1")
        if not isinstance(min_delta, int | float | np.number) or not 0 <= min_delta < math.inf:
            raise ConfigError(f"min_delta = {min_delta!r}: it must be a finite number >= 0")
        self._patience, self._min_delta = patience, min_delta
        self._monitor, self._restore = monitor, restore_best
        self._file = None if directory is None else Path(directory) / BEST
        self._writes = writes

    def started(self, session: Session) -> None:
        self._session = session
        if self._file is not None:
            session.lock(self._file.parent)
        self.best, self.best_epoch, self._waited = math.nan, 0, 0
        self._state: dict[str, Any] | None = None
        before = session.facts.pop(EARLY_STOPPING, None)
        if before and before["monitor"] == self._monitor:
            self.best, self.best_epoch = float(before["best"]), int(before["epoch"])
            self._waited = int(before["waited"])
            self._state = self._stored_best()
            self._note()

    def _stored_best(self) -> dict[str, Any] | None:
        """The best state of the run that is resumed; None if it is lost."""
        if not self._restore:
            return None
        reason = "it stored none"
        if self._file is not None:
            try:
                stored = read(self._file)
                its = is_of_run(stored, self._session.lineage)
                if its and stored.epoch == self.best_epoch:
                    return {**stored.parameters, **stored.state}
                reason = f"{self._file} is of " + (f"epoch {stored.epoch}" if its
                                                   else "another run")
            except CheckpointError as error:
                reason = str(error)
        self._session.listener.notify(f"the best parameters of the resumed run, of epoch "
                                      f"{self.best_epoch}, are lost: {reason}")
        return None

    def reported(self, report: Report) -> None:
        self._judge(report)
        self._note()

    def _note(self) -> None:
        """Record what checkpoints store of early stopping."""
        self._session.facts[EARLY_STOPPING] = {
            "monitor": self._monitor, "best": self.best, "epoch": self.best_epoch,
            "waited": self._waited,
            "saved": self._file is not None and self._state is not None}

    def _judge(self, report: Report) -> None:
        value = float(getattr(report, self._monitor))
        if math.isnan(value):
            raise ConfigError(f"monitor = '{self._monitor}': the loss "
                              f"{self._session.config.loss} gives no such figure")
        gain = value - self.best if self._monitor in _HIGHER_IS_BETTER else self.best - value
        if math.isnan(self.best) or gain > self._min_delta:
            self.best, self.best_epoch, self._waited = value, report.epoch, 0
            if self._restore:
                self._state = self._session.runner.state()
                if self._file is not None and self._writes:
                    self._note()
                    self._write(self._session.checkpoint(report.epoch), self._file)
            return
        self._waited += 1
        if self._waited >= self._patience:
            self._session.stop(
                f"{self._monitor} has not been better than {self.best:.4g} of epoch "
                f"{self.best_epoch} for {self._waited} reports")

    def _write(self, best: Checkpoint, file: Path) -> None:
        try:
            write(file, best)
        except CheckpointError as error:
            self._session.stop_unsaved(error, file.parent)

    def ended(self, epoch: int) -> None:
        if self._state is not None and self.best_epoch != epoch:
            self._session.restore(self._state)
            self._session.listener.notify(f"restored the parameters of epoch {self.best_epoch}, "
                                          f"the best by {self._monitor} ({self.best:.4g})")


class CsvLog(Listener):
    """Writes every report as a row of a CSV file, as soon as it is there. Continues a file where a
    resumed run continues training.

    Parameters
    ----------
    path
        of the file; one row a report, with a header
    """

    reads = False
    instead_for_many = "the table() and to_json(path) of the result have the scores of all"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        check_path("CsvLog", path)
        self._path = path

    def started(self, session: Session) -> None:
        names = [field.name for field in fields(Report)]
        check_output("CsvLog", self._path)
        try:
            stored = self._previous_rows(session.resumed) if session.resumed else []
        except OSError as error:
            raise RawnnError(f"cannot read {self._path}: {error.strerror or error}") from None
        self._file = SideOutput(self._path, session.listener.notify)
        self._rows = csv.writer(self._file)
        self._rows.writerows([names, *stored])
        self._file.flush()

    def _previous_rows(self, epochs: int) -> list[list[str]]:
        """The rows of the resumed run, up to the epoch from which it continues."""
        with contextlib.suppress(FileNotFoundError), \
                open(self._path, newline="", encoding="utf-8") as file:
            return [row for row in csv.reader(file)
                    if row and row[0].isdecimal() and int(row[0]) <= epochs]
        return []

    def reported(self, report: Report) -> None:
        self._rows.writerow([getattr(report, field.name) for field in fields(Report)])
        self._file.flush()

    def ended(self, epoch: int) -> None:
        self._file.close()
