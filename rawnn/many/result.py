"""What training many networks found: tables, the best, each member's model, a checkpoint of all."""

from __future__ import annotations

import importlib
import logging
import math
import operator
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, overload

import msgspec
import numpy as np
from numpy.typing import NDArray

from rawnn.common.errors import ConfigError, MissingLibrary
from rawnn.common.files import check_path, write_atomically
from rawnn.common.jsontext import indented_json
from rawnn.data import Dataset
from rawnn.engine import many_checkpoint
from rawnn.engine.checkpoint import Checkpoint
from rawnn.engine.config import Config
from rawnn.engine.many_checkpoint import ManyCheckpoint
from rawnn.engine.model import Model
from rawnn.engine.result import Environment, Report
from rawnn.many.ensemble import Ensemble
from rawnn.many.progress import FIGURES, Progress, Status, member_numbers
from rawnn.many.tables import (
    configurations_of,
    cv_results_of,
    final_epochs,
    order_of,
    table_of,
    varied_columns,
)

SCHEMA_VERSION = 1


@dataclass(frozen=True, eq=False)
class Member:
    """A view of one network of many: its number among them, `index`, and what it is.

    fold: the number of its list of rows, 0 without lists.
    status: "finished", "stopped early", "halved", "diverged", "active" (interrupted) or "paused"
        (interrupted, and left out where `resume` named other members).
    sharding: of the kernel that trained it, which `train(config, sharding=...)` repeats bit for
        bit; "" where none did.
    """

    many: Many
    index: int

    @property
    def config(self) -> Config:
        """Its configuration, with the batch that was decided and the sharding that trained it."""
        return Config(**self.checkpoint.config)

    @property
    def fold(self) -> int:
        return int(self.many.stored.fold[self.index])

    @property
    def epochs(self) -> int:
        """The epochs that it has behind it."""
        return int(self.many.progress.epoch[self.index])

    @property
    def status(self) -> str:
        return Status(int(self.many.progress.status[self.index])).words

    @property
    def sharding(self) -> str:
        return self.many.stored.groups[int(self.many.stored.group[self.index])].sharding

    @property
    def history(self) -> list[Report]:
        """A report an epoch; `train_accuracy` and `epoch_ms` are not measured of many networks, and
        NaN."""
        rows = self.many.progress.history[self.index, : self.epochs]
        return [Report(epoch, float(row[0]), math.nan, float(row[1]), float(row[2]), math.nan)
                for epoch, row in enumerate(rows, 1)]

    @property
    def checkpoint(self) -> Checkpoint:
        """All that is needed to go on training it."""
        return self.many.stored.member(self.index)

    @property
    def model(self) -> Model:
        """The trained network, ready to predict: the best parameters after early stopping."""
        return Model.of(self.many.stored.member(self.index, best=True))

    @property
    def dataset(self) -> Dataset:
        """The data as it was trained and scored on, for `train(config, data=dataset)`. Raises
        ConfigError where `many` was read from a file, which holds no data."""
        if self.many.datasets is None:
            raise ConfigError("a checkpoint holds no data: this member was read from a file")
        return self.many.datasets(self.index)

    def __repr__(self) -> str:
        return f"rawnn.Member({self.index} of {len(self.many)}, " \
               f"{self.checkpoint.network}, {self.epochs} epochs, {self.status})"


@dataclass(frozen=True, eq=False)
class Many:
    """What many networks reached. `many[17]` is a view of one, `many[:5]` a list of views,
    `len(many)` their number.

    stored: all of it, as a checkpoint has it.
    environment: where it was measured; None of one that was read from a file.
    network_steps_per_second: training steps of all members together, over the whole training with
        its validation.
    interrupted: whether a signal (Ctrl-C, SIGTERM, SIGHUP) ended it early; `signal` its number.
    notes: sentences on the data and on how members were trained.
    datasets, again: the data of a member by its number, and what `resume` calls; None of one that
        was read from a file.
    """

    stored: ManyCheckpoint
    environment: Environment | None = None
    interrupted: bool = False
    signal: int = 0
    notes: tuple[str, ...] = ()
    datasets: Callable[[int], Dataset] | None = field(default=None, repr=False)
    again: Callable[..., Many] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.stored)

    @overload
    def __getitem__(self, index: int) -> Member: ...

    @overload
    def __getitem__(self, index: slice) -> list[Member]: ...

    def __getitem__(self, index: int | slice) -> Member | list[Member]:
        if isinstance(index, slice):
            return [Member(self, i) for i in range(len(self))[index]]
        number = operator.index(index)
        if not -len(self) <= number < len(self):
            raise IndexError(f"there are {len(self):,} members, but no {number}")
        return Member(self, number % len(self))

    def __iter__(self) -> Iterator[Member]:
        return (Member(self, i) for i in range(len(self)))

    def __repr__(self) -> str:
        best = self.best(1)
        reached = self.progress.figure(self.monitor, final_epochs(self))
        said = f", best {self.monitor} {reached[best[0].index]:.4g} of member {best[0].index}" \
            if best and not np.isnan(reached[best[0].index]) else ""
        ended = ", interrupted" if self.interrupted else ""
        return f"rawnn.Many({len(self):,} members, {self.stored.epoch} epochs{said}{ended})"

    @cached_property
    def progress(self) -> Progress:
        """Arrays over the members: epochs, status, history [N, epochs, 3] of FIGURES."""
        return Progress.of(self.stored.run, self.stored.run["history"].shape[1])

    @property
    def monitor(self) -> str:
        """The figure by which members are compared."""
        return str(self.stored.settings["monitor"])

    @property
    def lists(self) -> int:
        """How many lists of rows there are, 1 without any."""
        return int(self.stored.fold.max()) + 1

    @property
    def network_steps_per_second(self) -> float:
        seconds = float(self.stored.settings["seconds"])
        return float(self.stored.settings["steps"]) / seconds if seconds else math.nan

    # -- tables ------------------------------------------------------------------------------------
    def table(self, pandas: bool = False) -> Any:
        """A structured NumPy array of a row a member: what varies, `fold`, `rung`, `status`,
        `epochs`, `best_epoch`, `train_loss`, `test_loss`, `test_accuracy` of the parameters that
        it ended with, and the best figure of all its epochs. With `pandas` a DataFrame."""
        return self.to_pandas() if pandas else table_of(self)

    def configurations(self) -> NDArray[Any]:
        """A structured NumPy array of a row a configuration, with mean and standard deviation of
        `train_loss`, `test_loss` and `test_accuracy` over its folds (or lists of rows)."""
        return configurations_of(self)

    def to_pandas(self) -> Any:
        """`table` as a pandas DataFrame, with the member's number as its index. Raises
        MissingLibrary without pandas."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError as error:
            raise MissingLibrary(f"to_pandas needs pandas, which cannot be imported ({error}): pip "
                                 f"install pandas; table() gives a NumPy array") from None
        found = table_of(self)
        return pandas.DataFrame({name: found[name] for name in found.dtype.names or ()}) \
            .set_index("member")

    def scores(self, figure: str = "test_loss") -> NDArray[np.float64]:
        """[N, epochs] of "train_loss", "test_loss" or "test_accuracy" behind each epoch, NaN where
        a member did not train. Raises ConfigError."""
        if figure not in FIGURES:
            raise ConfigError(f"figure = '{figure}': use one of {', '.join(FIGURES)}")
        found: NDArray[np.float64] = self.progress.history[:, :, FIGURES.index(figure)]
        return found

    def best(self, k: int = 1, by: str | None = None) -> list[Member]:
        """The `k` best members by "test_loss", "test_accuracy" or "train_loss" (None: the
        `monitor`), the best first. Members are compared one by one: with folds the first may owe
        its place to an easy fold, and `configurations` and `cv_results` have the means. Raises
        ConfigError."""
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
            raise ConfigError(f"k = {k!r}: it must be a whole number of at least 1")
        return [self[int(i)] for i in order_of(self, by)[:k]]

    def cv_results(self, return_train_score: bool = False) -> dict[str, Any]:
        """As `GridSearchCV.cv_results_` of scikit-learn: a row for each configuration, with the
        scores of its folds. The score is the accuracy, or the loss with a minus where a loss has no
        accuracy; train scores are losses with a minus. Members train at once: `mean_fit_time` is
        the whole training's divided by their number, and scoring is part of it."""
        return cv_results_of(self, return_train_score)

    # -- networks ----------------------------------------------------------------------------------
    def ensemble(self, members: Iterable[int] | int | None = None) -> Ensemble:
        """Members as one network, which answers with the mean of their probabilities or values:
        those of these numbers, the so many best, or all that did not diverge."""
        if members is None:
            chosen = np.flatnonzero(final_epochs(self)).tolist()
        elif isinstance(members, int | np.integer):
            chosen = [member.index for member in self.best(int(members))
                      if final_epochs(self)[member.index]]
        else:
            chosen = member_numbers(members)
        return Ensemble([self[i].model for i in chosen])

    def resume(self, epochs: int | None = None, members: Iterable[int] | None = None,
               **options: Any) -> Many:
        """Train on, up to `epochs` of each member (None: its own), those that finished their epochs
        or were interrupted, or these `members`, whatever ended them; others that were interrupted
        are then "paused" until a later `resume`. Bits are those of one training
        that never stopped, unless `epochs` changes a schedule. `options` are listener, save,
        save_every, keep and device. Raises ConfigError; use `train_many(resume=path, data=...)` for
        a file."""
        if self.again is None:
            raise ConfigError("a checkpoint holds no data: give them, as in "
                              "rawnn.train_many(resume=path, data=(X, y), epochs=...)")
        return self.again(self.stored, epochs, members, options)

    # -- keeping -----------------------------------------------------------------------------------
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all members into one file, atomically; `path#17` is one of them wherever a
        checkpoint is taken. Raises CheckpointError."""
        many_checkpoint.write(path, self.stored)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Many:
        """What a file holds, or the newest good one of a directory. Raises CheckpointError."""
        check_path("path", path)
        return cls(many_checkpoint.find(path, logging.getLogger("rawnn").info)[1])

    def to_dict(self) -> dict[str, Any]:
        """Plain values: settings, the table by columns, the history; no parameters."""
        found = table_of(self)
        history = {name: self.progress.history[:, :, i].tolist() for i, name in enumerate(FIGURES)}
        return {
            "schema_version": SCHEMA_VERSION, "members": len(self),
            "settings": self.stored.settings, "facts": self.stored.facts,
            "shardings": [group.sharding for group in self.stored.groups],
            "groups": self.stored.group.tolist(), "candidates": self.stored.candidate.tolist(),
            "varied": {k: v.tolist() for k, v in varied_columns(self).items()},
            "config": self.stored.configs[0],
            "table": {name: found[name].tolist() for name in found.dtype.names or ()},
            "history": history, "network_steps_per_second": self.network_steps_per_second,
            "interrupted": self.interrupted, "notes": list(self.notes),
            "environment": msgspec.to_builtins(self.environment)}

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """`to_dict` as JSON, where NaN is null; also written to a file, atomically, where a path is
        given. Raises RawnnError where it cannot be written."""
        content = indented_json(self.to_dict())
        if path is not None:
            write_atomically(path, content)
        return content.decode()
