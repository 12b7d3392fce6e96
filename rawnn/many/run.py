"""One training of many networks, from opening the device to the result."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from typing import Any
from uuid import uuid4

import msgspec
import numpy as np

from rawnn.common.errors import (
    CheckpointError,
    ConfigError,
    DeviceError,
    RanksError,
    RawnnError,
)
from rawnn.common.jsontext import json_bytes
from rawnn.common.listener import Listener
from rawnn.common.locks import DirectoryLocks
from rawnn.data import Dataset
from rawnn.data.identity import identity_of
from rawnn.distributed import Team
from rawnn.engine import many_checkpoint, parallel
from rawnn.engine.callbacks import Listeners
from rawnn.engine.checkpoint import Lineage
from rawnn.engine.checkpoint_store import Store, how_to_continue, not_stored
from rawnn.engine.config import Config
from rawnn.engine.data_source import doubts
from rawnn.engine.machine import Opened, names_several, open_device, start_opening
from rawnn.engine.many_checkpoint import ManyCheckpoint, StoredGroup
from rawnn.engine.result import environment
from rawnn.engine.resumption import names_of, record_of, stored_options
from rawnn.many.folds import Folds
from rawnn.many.gpus import close_all, open_gpus
from rawnn.many.grouping import Members
from rawnn.many.loop import ManyLoop, Rules
from rawnn.many.members import Arrays, MemberTrainer, stacked
from rawnn.many.progress import Progress, Status
from rawnn.many.result import Many
from rawnn.many.trainers import trainers_of
from rawnn.plan.ops.epoch import count_after


@dataclass(frozen=True, eq=False)
class Source:
    """The data set; `normalise` as it was asked for; `exact` target values before they are
    normalised for each list of rows; `is_array` says that a Python program gave them."""

    data: Dataset
    normalise: Any
    exact: Any
    is_array: bool


class ManyRun:
    """Trains many networks. A listener's `started` is given it: `members` has their configurations
    and groups, `opened` is the device and `gpus` all where there are several, `stop(reason)` ends
    the run after the epochs in hand. Use as a context manager: `open` the device, `prepare` the
    members, `train`. The ranks of a `team`, which it leaves at the end, do all of it together; rank
    0 writes checkpoints."""

    def __init__(self, config: Config, listeners: Sequence[Listener],
                 team: Team | None = None) -> None:
        for each in listeners:
            if each.instead_for_many:
                raise ConfigError(f"{type(each).__name__} is for one network: where many train at "
                                  f"once, {each.instead_for_many}")
        self.config, self.team = config, team
        self._notes: list[str] = []
        self.listener = Listeners([*listeners, _Notes(self._notes)])
        self._closing = ExitStack()
        if team is not None:
            self._closing.callback(team.close)
        self._locks = self._closing.enter_context(DirectoryLocks())
        self._trainers: list[MemberTrainer] = []
        self._store: Store | None = None
        self.unsaved: CheckpointError | None = None
        self.best: dict[int, Arrays] = {}

    def __enter__(self) -> ManyRun:
        return self

    def __exit__(self, kind: object, error: BaseException | None, *more: object) -> None:
        if error is not None and self.team is not None:
            self.team.fail(error)
            if self.team.rank and isinstance(error, RawnnError) \
                    and not isinstance(error, RanksError):
                error.speaks = False
        self._closing.close()

    def notify(self, message: str) -> None:
        """One sentence to the listeners, and into the result's notes."""
        self.listener.notify(message)

    def start_opening(self) -> None:
        """Begin to open the device, or several, in threads; ranks open theirs in `open`."""
        if self.team is None:
            start_opening(self.config.device)

    def open(self, stacklevel: int) -> None:
        """Open the device, or several. A RuntimeWarning, of the caller so many frames up, says
        where the host trains in place of a GPU, and later where values became equal or an option
        is in doubt."""
        team, self._stacklevel = self.team, stacklevel
        if self.config.save is not None and not (team and team.rank):
            # Before anything is fetched or compiled.
            self._store = Store(self.config.save, self.config.keep)
            self._is_locked = self._locks.hold(self._store.directory, self.notify)
        if team is not None and names_several(self.config.device):
            raise ConfigError(f"device = '{self.config.device}': each rank takes one GPU; leave it "
                              f"out and start a rank for each, or name GPUs without a launcher")
        self.gpus = open_gpus(self.config.device, self.notify)
        if self.gpus:
            self._closing.callback(close_all, self.gpus)
            self.notify(f"members are spread over {len(self.gpus)} GPUs: "
                        f"{', '.join(gpu.name for gpu in self.gpus)}")
            self.opened: Opened = self.gpus[0].opened
        else:
            ordinal = 0 if team is None or self.config.device.startswith("sim") else \
                parallel.ordinal(self.config, team)
            self.opened = open_device(self.config.device, self.notify, ordinal)
            self._closing.callback(self.opened.close)
        device, is_auto = self.opened.device, self.config.device == "auto"
        if device is not None and is_auto and team is None and device.count > 1:
            self.notify(f"members train on one of {device.count} GPUs: device = 'gpu:all' "
                        f"(--device gpu:all) spreads them over all")
        if device is None and is_auto:
            self.notify(f"running on the host: {self.opened.machine.no_gpu}")
            warnings.warn(f"training on the host, not on a GPU: {self.opened.machine.no_gpu}",
                          RuntimeWarning, stacklevel=stacklevel)

    def prepare(self, members: Members, lists: Folds, source: Source, settings: dict[str, Any],
                rules: Rules, progress: Progress, before: ManyCheckpoint | None = None) -> None:
        """Make the trainers; with what they reached `before`, where that is given."""
        lineage = uuid4().hex[:16]
        if self.team is not None:
            self._compare(self.team, members, lists, source, before)
            lineage, every = self.team.exchange("the run", (lineage, rules.save_every),
                                                lambda values: values[0])
            rules = replace(rules, save_every=every)
        self.members, self.lists, self.source = members, lists, source
        for sentence in source.data.cautions:
            warnings.warn(sentence, RuntimeWarning, stacklevel=self._stacklevel)
        self.settings, self.rules, self.progress = settings, rules, progress
        self.settings["data"] = identity_of(source.data)
        self.settings["save_every"] = rules.save_every
        self.settings["save"] = self.config.save
        self.lineage: Lineage = ((lineage, 0),)
        if self._store is not None:
            self._store.expect(int(progress.epoch.max()), self._is_locked)
        distinct = {(config.schedule, config.epochs, group): config for config, group in
                    zip(members.configs, members.group.tolist(), strict=True)}
        for sentence in dict.fromkeys(
                sentence for (_, _, group), config in distinct.items()
                for sentence in doubts(config, members.groups[group].dataset)):
            self.notify(sentence)
            warnings.warn(sentence, RuntimeWarning, stacklevel=self._stacklevel)
        for trainer in trainers_of(members.groups, self.opened, self.notify, self.gpus, self.team,
                                   not (rules.patience or rules.halving)):
            self._closing.callback(trainer.close)
            self._trainers.append(trainer)
        if before is not None:
            self.lineage = (*before.lineage, (self.lineage[0][0], before.epoch))
            self._load(before)

    def _compare(self, team: Team, members: Members, lists: Folds, source: Source,
                 before: ManyCheckpoint | None) -> None:
        """Raise RanksError where ranks train other networks, or on other devices."""
        if team.place.is_open:
            self.notify(parallel.OPEN_JOB)
        device = self.opened.device
        rows = [list(map(int, each)) for each in (*lists.rows, *lists.held_out)]
        configs = [{**msgspec.to_builtins(config), **dict.fromkeys(parallel.OF_A_HOST)}
                   for config in members.configs]
        team.compare("the data", parallel.data_facts(source.data))
        team.compare("the networks", {
            "the device": device.info.name if device is not None else "the host",
            "the networks": f"checksum {zlib.crc32(json_bytes([configs, rows])):08x}",
            "the checkpoint": f"epoch {before.epoch} of {before.lineage[-1][0]}" if before
            else "none"})

    def _load(self, before: ManyCheckpoint) -> None:
        """Put members back to where they were; one that had not begun is new."""
        for number, trainer in enumerate(self._trainers):
            chosen = np.flatnonzero((self.members.group == number) & (self.progress.epoch > 0))
            if not chosen.size:
                continue
            states: list[Arrays] = []
            for member in chosen.tolist():
                stored = before.groups[int(before.group[member])]
                place = int(before.place[member])
                state = {name: array[place] for name, array in stored.states.items()}
                states.append(state)
                if self.progress.best_epoch[member] == self.progress.epoch[member]:
                    self.best[member] = state
            arrays = stacked(states)
            if "clock" not in arrays:  # runs that have no use for it keep none
                own = self.members.groups[number]
                arrays["clock"] = np.array([
                    [epoch, count_after(epoch * own.steps_of(place))] for epoch, place in
                    zip(self.progress.epoch[chosen].tolist(), self.members.place[chosen].tolist(),
                        strict=True)], np.int32)
            trainer.load(self.members.place[chosen],
                         {**arrays, "epoch": self.progress.epoch[chosen]})
        for number, group in enumerate(before.groups):
            of_group = np.flatnonzero(before.group == number)
            for row, place in enumerate(group.best_members):
                best = int(of_group[before.place[of_group] == place][0])
                self.best[best] = {name: array[row] for name, array in group.best.items()}

    def stop(self, reason: str) -> None:
        """End the run after the epochs in hand."""
        self._loop.stop(reason)

    def train(self) -> Many:
        """Train all epochs and return what was reached. Where a checkpoint cannot be written the
        run ends, and the CheckpointError carries the result as `result`. Where a GPU fails, the
        DeviceError says which checkpoint there is."""
        seconds, steps = float(self.settings["seconds"]), int(self.settings["steps"])
        self._loop = ManyLoop(self.members, self._trainers, self.progress, self.rules,
                              self.listener, self._save, self.best, self.team)
        self._before = seconds, steps
        self.listener.started(self)  # type: ignore[arg-type]
        try:
            number = self._loop.run()
        except (DeviceError, RanksError) as error:
            if self._store is not None:
                error.args = (f"{error}; {how_to_continue(self._store.directory, 'continue')}",)
            raise
        if self._loop.stopped and self.unsaved is None:
            self.notify(f"stopped: {self._loop.stopped}")
        many = Many(self.checkpoint(), self._environment(), self._loop.is_interrupted, number,
                    tuple(self._notes), self._dataset_of, self._again())
        if self.unsaved is not None:
            self.unsaved.result = many  # type: ignore[attr-defined]
            raise self.unsaved
        return many

    def _again(self) -> Any:
        from rawnn.many.training import resumed

        source = self.source
        return lambda stored, *asked: resumed(stored, source, *asked)

    def _dataset_of(self, member: int) -> Dataset:
        return self.members.groups[int(self.members.group[member])].dataset_of(
            int(self.members.groups[int(self.members.group[member])].fold[
                self.members.place[member]]))

    def _environment(self) -> Any:
        device = self.opened.device
        return environment(device.backend.name if device else "host",
                           asdict(device.info) if device else None, {})

    # -- checkpoints -------------------------------------------------------------------------------
    def _save(self) -> None:
        if self.rules.save_every is None:
            return
        many = self.checkpoint()  # all ranks take part in it
        if self._store is None:
            return
        try:
            self._store.save_by(many.epoch, lambda path: many_checkpoint.write(path, many))
        except CheckpointError as error:
            self.unsaved = not_stored(error, self._store.directory)
            self.stop("a checkpoint could not be written")

    def checkpoint(self) -> ManyCheckpoint:
        """All that members have reached."""
        members, lists, data = self.members, self.lists, self.source.data
        before = self._before
        settings = {**self.settings, "seconds": before[0] + self._loop.seconds,
                    "steps": before[1] + self._loop.steps}
        inputs, targets = self._normalisations
        return ManyCheckpoint(
            tuple(stored_options(config, self.source.is_array) for config in members.configs),
            members.candidate,
            members.fold, members.group, members.place,
            tuple(self._stored_group(number) for number in range(len(members.groups))),
            lists.rows, lists.held_out, inputs, targets, self.progress.arrays(), settings,
            names_of(data), self._records, data.label_names, data.label_dtype, data.autoencoder,
            self.lineage)

    def _stored_group(self, number: int) -> StoredGroup:
        members = self.members
        count = len(members.groups[number])
        trainer = self._trainers[number]
        states = trainer.state(np.arange(count, dtype=np.int32))
        states.pop("epoch")
        progress = self.progress
        apart = (progress.best_epoch != progress.epoch) | (progress.status == Status.DIVERGED)
        chosen = [m for m in np.flatnonzero((members.group == number) & apart).tolist()
                  if m in self.best]
        return StoredGroup(states, members.place[chosen], stacked([self.best[m] for m in chosen]),
                           trainer.sharding)

    @cached_property
    def _normalisations(self) -> tuple[Any, Any]:
        """Of each list of rows, whichever group has it."""
        inputs: dict[int, Any] = {}
        targets: dict[int, Any] = {}
        for member, fold in enumerate(self.members.fold.tolist()):
            if fold not in inputs:
                group = self.members.groups[int(self.members.group[member])]
                place = int(group.fold[self.members.place[member]])
                inputs[fold] = group.normalisations[place]
                targets[fold] = group.target_normalisations[place]
        order = sorted(inputs)
        return tuple(inputs[f] for f in order), tuple(targets[f] for f in order)

    @cached_property
    def _records(self) -> Sequence[dict[str, Any]]:
        """What a checkpoint of one member says of its data, for each list of rows."""
        _, first = np.unique(self.members.fold, return_index=True)
        return _Records(len(first), lambda fold: record_of(self._dataset_of(int(first[fold])),
                                                           self.source.is_array))


class _Records(Sequence[dict[str, Any]]):
    """So many records by `record`, each computed when it is asked for: that passes over all inputs
    of its rows."""

    def __init__(self, count: int, record: Callable[[int], dict[str, Any]]) -> None:
        self._count, self._record = count, cache(record)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: Any) -> Any:
        return self._record(range(self._count)[place])


class _Notes(Listener):
    """Collects the sentences to listeners."""

    reads = False

    def __init__(self, notes: list[str]) -> None:
        self._notes = notes

    def notify(self, message: str) -> None:
        with suppress(RuntimeError):
            self._notes.append(message)
