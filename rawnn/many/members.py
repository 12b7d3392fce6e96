"""Members: the networks that are trained at once, and the interface of what trains them.

A member means exactly `rawnn.train(config, data=(x[rows], y[rows]), validation=(x[held_out],
y[held_out]))`, whoever trains it: initial weights from its seed, the order of an epoch from (seed,
epoch, number of its rows), the normalisation learned from its training rows alone, the learning
rate of a step as the single run computes it, the last partial batch as the single run does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rawnn.data import Dataset
from rawnn.data.normalise import Normalisation, TargetNormalisation
from rawnn.engine.config import Config
from rawnn.model.schedules import parse

Rows = NDArray[np.int32]
Arrays = dict[str, NDArray[Any]]

PER_MEMBER = ("seed", "lr", "weight_decay", "momentum", "beta1", "beta2", "epochs", "schedule")
"""Fields of Config in which the members of a group may differ; all others are equal in a group."""

BEYOND_TRAINING = ("save", "save_every", "keep", "resume", "patience", "min_delta", "monitor",
                   "validation")
"""Fields of Config that say nothing about how one member is trained."""


def stacked(states: Sequence[Arrays]) -> Arrays:
    """[n, ...] of the names that all n states have. A `clock` may be missing: a run whose order and
    learning rate need none has none, and `ManyRun` computes it from the epoch."""
    names = [name for name in states[0] if all(name in state for state in states)] if states else []
    return {name: np.stack([state[name] for state in states]) for name in names}


def as_slice(places: NDArray[Any]) -> slice | NDArray[Any]:
    """Places as a slice where each follows the one before, with which NumPy copies less."""
    is_dense = places.size and bool((np.diff(places) == 1).all())
    return slice(int(places[0]), int(places[-1]) + 1) if is_dense else places


def columns_from(blocks: Sequence[NDArray[Any]], first: int) -> NDArray[Any]:
    """The columns from number `first` on of one or more blocks [n, columns, ...] that stand one
    behind the other; a view where they are of one block."""
    end, found = sum(block.shape[1] for block in blocks), []
    for block in reversed(blocks):
        begin = end - block.shape[1]
        found.append(block[:, max(first - begin, 0):])
        end = begin
        if begin <= first:
            break
    return found[0] if len(found) == 1 else np.concatenate(found[::-1], axis=1)


_OF_GROUP = attrgetter(*(name for name in Config.known()
                         if name not in (*PER_MEMBER, *BEYOND_TRAINING, "normalise")))


def group_key(config: Config) -> tuple[object, ...]:
    """Configs with equal keys compile alike, so that one trainer has them: all fields but
    PER_MEMBER, the kind of the optimizer's step (SGD with a momentum of 0 stores no velocity), and
    the schedule's name, whether it has a warm-up and whether the learning rate is constant."""
    schedule = parse(config.schedule)
    return (*_OF_GROUP(config), str(config.normalise), config.optimizer_settings().kind,
            schedule.spec.name, bool(schedule.warmup))


@dataclass(frozen=True, eq=False)
class Group:
    """N members that one trainer has: what they share, and for each what differs.

    config: of the first member, but `epochs` is the largest of all. `batch` and `partial` are
        decided (neither is None).
    dataset: as `Session` gets it. Its training part has all rows that any member trains on, its
        test part the shared validation rows. With lists of `rows` its normalisation is that of all
        rows: take `normalisations` instead.
    members: N configs that differ in PER_MEMBER alone, each with `batch` and `partial` decided;
        `group_key` is equal.
    rows: L distinct lists of training rows, int32, indices into `dataset.train_images`, in the
        order in which the member sees them (order[i] of an epoch means rows[order[i]]); () where
        every member trains on all rows. They may differ in length.
    held_out: L lists of rows, indices into `dataset.train_images`, on which the members of the list
        of that place are scored; () where all are scored on the data set's test part. They may
        differ in length, too.
    fold: int32 [N], the list of each member; zeros without lists.
    normalisations: of the inputs of each list, learned from its rows where it is learned; one where
        there are no lists.
    target_normalisations: of the target values of each list (None: as they are); one where there
        are no lists.
    exact_targets: float64 [rows, outputs], the target values before any normalisation, where
        `target_normalisations` differ; else None, and `dataset.train_targets` are what is trained
        on.
    is_lenient: whether members on the host leave out toggles for a GPU alone, as of a run that was
        begun on one.
    """

    config: Config
    dataset: Dataset
    members: tuple[Config, ...]
    rows: tuple[Rows, ...]
    held_out: tuple[Rows, ...]
    fold: Rows
    normalisations: tuple[Normalisation, ...]
    target_normalisations: tuple[TargetNormalisation | None, ...]
    exact_targets: NDArray[np.float64] | None = None
    is_lenient: bool = False

    def __len__(self) -> int:
        return len(self.members)

    @property
    def examples(self) -> int:
        """Training rows of each member, of the longest list."""
        return max(map(len, self.rows)) if self.rows else len(self.dataset.train_images)

    @property
    def scored(self) -> int:
        """Rows that each member is scored on, of the longest list."""
        return max(map(len, self.held_out)) if self.held_out else len(self.dataset.test_images)

    @cached_property
    def counts(self) -> NDArray[np.int32]:
        """Training rows and scored rows of each list, int32 [L, 2]."""
        lists = range(max(len(self.rows), len(self.held_out), 1))
        return np.array([[len(self.rows[i]) if self.rows else self.examples,
                          len(self.held_out[i]) if self.held_out else self.scored]
                         for i in lists], np.int32)

    @cached_property
    def steps(self) -> int:
        """Training steps of an epoch of each member, of the longest list."""
        return self.config.recipe().updates(self.examples)

    def steps_of(self, member: int) -> int:
        """Training steps of an epoch of a member."""
        return self.config.recipe().updates(int(self.counts[self.fold[member], 0]))

    @cached_property
    def is_foldless(self) -> bool:
        """Whether all members train on all rows and are scored on the data set's test part."""
        return not self.rows and not self.held_out

    def part(self, places: Rows) -> Group:
        """The group of the members at these places alone, with their lists of rows."""
        used = np.unique(self.fold[places])

        def chosen(lists: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(lists[i] for i in used) if len(lists) > 1 else lists

        members = tuple(self.members[i] for i in places)
        config = replace(self.config, epochs=max(config.epochs for config in members))
        return Group(config, self.dataset, members, chosen(self.rows), chosen(self.held_out),
                     np.searchsorted(used, self.fold[places]).astype(np.int32),
                     chosen(self.normalisations), chosen(self.target_normalisations),
                     self.exact_targets)

    def loss_factor(self, fold: int) -> float | None:
        """What turns a loss of normalised target values into the units of the values, as a Report
        has it; None where the columns' deviations differ, so that no factor does it."""
        found = self.target_normalisations[fold]
        if found is None:
            return 1.0
        if not np.allclose(found.std, found.std[0], rtol=1e-9, atol=0):
            return None
        return float(found.std[0]) ** self.config.network().loss_spec.unit_power

    def dataset_of(self, fold: int) -> Dataset:
        """The Dataset of list `fold`, as a single run of one of its members gets it: its training
        rows, the rows that it is scored on, and its normalisation. Copies the rows."""
        if self.is_foldless:
            return self.dataset
        data = self.dataset
        train = self.rows[fold] if self.rows else slice(None)
        changed: dict[str, Any] = {"train_images": data.train_images[train]}
        if data.train_labels is not None:
            changed["train_labels"] = data.train_labels[train]
        if (values := self.targets_of("train", fold, train)) is not None:
            changed["train_targets"] = values
        if self.held_out:
            held = self.held_out[fold]
            changed["test_images"] = data.train_images[held]
            if data.train_labels is not None:
                changed["test_labels"] = data.train_labels[held]
            if (values := self.targets_of("train", fold, held)) is not None:
                changed["test_targets"] = values
        elif (values := self.targets_of("test", fold, slice(None))) is not None:
            changed["test_targets"] = values
        return replace(data, **changed, normalisation=self.normalisations[fold],
                       target_normalisation=self.target_normalisations[fold], resident={},
                       split=None, notes=())

    def targets_of(self, part: str, fold: int, rows: Rows | slice) -> NDArray[Any] | None:
        """The target values of these rows of a part of the data set ("train" or "test"), [rows,
        outputs], as the members of list `fold` have them; None where there are none."""
        data, own = self.dataset, self.target_normalisations[fold]
        if part == "train":
            if self.exact_targets is not None and own is not None:
                return own.apply(self.exact_targets[rows])
            return None if data.train_targets is None else data.train_targets[rows]
        if data.test_targets is None:
            return None
        values, before = data.test_targets[rows], data.target_normalisation
        if own is before:
            return values
        exact = values if before is None else before.undo(values)
        return exact if own is None else own.apply(exact)


@dataclass(frozen=True, eq=False)
class Scores:
    """What members reached: float64 [N, E]. Every call of `run` adds `epochs` columns; NaN where a
    member was not active.

    The figures are those of a Report: losses are means over examples, in the units of the target
    values where these are normalised (`Group.loss_factor`).

    train_loss: mean over the steps of the epoch, weighted by their examples, bit for bit that of a
        single run.
    validation_loss: over `held_out`, or over the data set's test part. It may be summed in another
        order than by a single run.
    validation_score: the part of correct answers, 0 to 1; NaN for losses without classes.
    """

    train_loss: NDArray[np.float64]
    validation_loss: NDArray[np.float64]
    validation_score: NDArray[np.float64]

    @classmethod
    def of(cls, figures: NDArray[np.float64]) -> Scores:
        """Of [N, E, 3], in this order."""
        found = cls(*np.moveaxis(figures, 2, 0))
        vars(found)["figures"] = figures
        return found

    @cached_property
    def figures(self) -> NDArray[np.float64]:
        """[N, E, 3]."""
        return np.stack([self.train_loss, self.validation_loss, self.validation_score], axis=2)


class MemberTrainer(Protocol):
    """Trains the members of a group, epochs at a time. Members begin with the initial weights of
    their seeds at epoch 0, unless `load` gives them a state. Made as
    `HostMembers(group, ...)` or `GpuMembers(group, opened, notify=..., sharding="")`."""

    @property
    def sharding(self) -> str:
        """What `train(..., sharding=...)` repeats: of a kernel, such as "1x1:128:FFFF", or
        "launches"; "" where ordinary runs train."""

    def run(self, active: Rows, epochs: int) -> None:
        """Train `epochs` more epochs of the members `active` (int32 indices into the group, in
        ascending order). It is enqueued and need not be waited for. No member runs past its own
        `epochs`: the caller asks for no more."""

    def scores(self, first: int = 0) -> Scores:
        """The columns from number `first` on of all epochs so far; waits for them."""

    def state(self, members: Rows) -> Arrays:
        """Arrays [len(members), ...] of what a single run's checkpoint holds, by its names
        (`fc1.weight`, ..., optimizer state, `clock`), in their storage types; and "epoch", int64,
        the epochs that each has behind it. Waits. `load` of it continues bit for bit."""

    def load(self, members: Rows, state: Mapping[str, NDArray[Any]]) -> None:
        """Replace the state of members by what `state` gave, of this trainer or of another."""

    def close(self) -> None:
        """Free what it holds. A second call does nothing."""
