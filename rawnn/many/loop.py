"""The epochs of many networks: as many at once as need no decision, then early stopping, successive
halving, a report, a checkpoint."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.common.errors import RanksError
from rawnn.common.interrupts import EpochAborted, Signals
from rawnn.common.listener import Listener
from rawnn.distributed import Team
from rawnn.many.grouping import Members
from rawnn.many.halving import survivors
from rawnn.many.members import Arrays, MemberTrainer, as_slice
from rawnn.many.progress import (
    FIGURES,
    HIGHER_IS_BETTER,
    ManyReport,
    Progress,
    Status,
    best_of,
)

CHUNK_SECONDS = 0.5
"""About how long epochs that need no decision run before they are reported: short enough for Ctrl-C
and for a line on the screen."""
CHUNK_EPOCHS = 256
"""Epochs of a chunk at most, however short they are. A stream holds about 1,024 launches; with more
the host would wait for one group before the next has its epochs."""


@dataclass(frozen=True)
class Rules:
    """When members stop, and when the run is stored. `rungs` are epochs of successive halving."""

    patience: int | None = None
    min_delta: float = 0.0
    monitor: str = "test_loss"
    halving: float | None = None
    rungs: tuple[int, ...] = ()
    save_every: int | None = None


@dataclass(frozen=True)
class _Call:
    """What a trainer was given to run: places of `members` (numbers among all) in its group, and
    the columns of scores that it makes."""

    group: int
    members: NDArray[np.int64]
    first: int
    epochs: int


class ManyLoop:
    """Trains `members` by one trainer a group, from what `progress` says to the end. `best` holds
    the state of each member behind its best report, where early stopping asks for it. The ranks of
    a `team` go through the same epochs, and come to the same decisions."""

    def __init__(self, members: Members, trainers: Sequence[MemberTrainer], progress: Progress,
                 rules: Rules, listener: Listener, save: Callable[[], None],
                 best: dict[int, Arrays], team: Team | None = None) -> None:
        self._members, self._trainers, self.progress = members, trainers, progress
        self._rules, self._listener, self._save = rules, listener, save
        self.best, self._team = best, team
        self._columns = [0] * len(trainers)
        self._own = np.array([config.epochs for config in members.configs])
        self._steps = np.array([members.groups[group].steps_of(place) for group, place in
                                zip(members.group.tolist(), members.place.tolist(), strict=True)])
        self._chunk, self._rate = 1, 0.0
        self.seconds, self.steps = 0.0, 0
        self._saved = -1
        self.stopped = ""
        self.is_interrupted = False

    def run(self) -> int:
        """Train; returns the number of the signal that cut it short, 0 for none."""
        progress = self.progress
        with Signals(self._listener.notify) as signals:
            signals.kept = True  # trainers keep the state behind the last whole epochs
            self._finish_due()
            broken = False
            while progress.active.size and not self._should_stop(signals.number):
                reached = int(progress.epoch[progress.active].min())
                target = self._next(reached)
                if self._team is not None:
                    self._team.doing = f"training epoch {target}"
                calls: list[_Call] = []
                begun = perf_counter()
                try:
                    signals.inside = True
                    self._enqueue(target, calls)
                    found = self._collect(calls)
                except (EpochAborted, KeyboardInterrupt):
                    broken = True
                finally:
                    signals.inside = False
                if broken and self._team is not None:
                    raise RanksError(f"rank {self._team.rank} was ended by a second signal",
                                     self._team.rank == 0)
                if broken:
                    found = self._collect(calls)
                seconds = perf_counter() - begun
                if self._team is not None:
                    seconds = self._team.exchange("the time of epochs", seconds, max)
                self._settle(calls, found, seconds, target, broken)
                if broken:
                    break
                self._report(reached, target, seconds)
            self.is_interrupted |= broken or bool(signals.number)
            self._listener.ended(int(progress.epoch.max()))
            if self._rules.save_every and self._saved != int(progress.epoch.sum()):
                self._store()
            return signals.number or (signal.SIGINT if broken else 0)

    def stop(self, reason: str) -> None:
        """End the run after these epochs."""
        self.stopped = reason

    def _should_stop(self, number: int) -> bool:
        """Whether training ends here, as a signal's `number` says or `stop`; all ranks stop if one
        does."""
        if self._team is None:
            return bool(number or self.stopped)
        reasons, numbers = zip(*self._team.gather("whether to go on", (self.stopped, number)),
                               strict=True)
        self.stopped = next(filter(None, reasons), "")
        self.is_interrupted = any(numbers)
        return bool(self.stopped or self.is_interrupted)

    # -- which epochs ------------------------------------------------------------------------------
    def _next(self, reached: int) -> int:
        """The epoch up to which members run before anything is decided."""
        rules = self._rules
        target = reached + (1 if rules.patience else self._chunk)
        target = min([target, int(self._own.max()), *(r for r in rules.rungs if r > reached)])
        if rules.save_every:
            target = min(target, (reached // rules.save_every + 1) * rules.save_every)
        return target

    def _enqueue(self, target: int, calls: list[_Call]) -> None:
        """Give every trainer its active members, those with equally many epochs to go together."""
        progress, members = self.progress, self._members
        active = progress.active
        todo = np.minimum(target, self._own[active]) - progress.epoch[active]
        for number, trainer in enumerate(self._trainers):
            of_group = members.group[active] == number
            for epochs in np.unique(todo[of_group & (todo > 0)]):
                chosen = active[of_group & (todo == epochs)]
                calls.append(_Call(number, chosen, self._columns[number], int(epochs)))
                self._columns[number] += int(epochs)
                trainer.run(members.place[chosen], int(epochs))

    def _collect(self, calls: list[_Call]) -> list[NDArray[np.float64]]:
        """What members reached, [members, epochs, 3] for each call; waits for it."""
        begun: dict[int, int] = {}
        for call in calls:
            begun[call.group] = min(begun.get(call.group, call.first), call.first)
        found = {group: self._trainers[group].scores(first).figures
                 for group, first in begun.items()}
        parts = []
        for call in calls:
            first = call.first - begun[call.group]
            parts.append(found[call.group][as_slice(self._members.place[call.members]),
                                           first : first + call.epochs])
        return parts

    # -- what is decided ---------------------------------------------------------------------------
    def _settle(self, calls: list[_Call], found: list[NDArray[np.float64]], seconds: float,
                target: int, broken: bool) -> None:
        progress, steps = self.progress, 0
        for call, figures in zip(calls, found, strict=True):
            fine = np.isfinite(figures[:, :, 0])
            ran = np.where(fine.all(axis=1), figures.shape[1], fine.argmin(axis=1)) \
                if figures.shape[1] else np.zeros(len(call.members), int)
            bad = (ran < call.epochs) & (not broken)
            self._record(call.members, figures, ran)
            progress.epoch[call.members] += ran
            progress.status[call.members[bad]] = Status.DIVERGED
            steps += int((ran * self._steps[call.members]).sum())
        self.seconds, self.steps = self.seconds + seconds, self.steps + steps
        self._rate = steps / seconds if seconds > 0 else 0.0
        epochs = max((call.epochs for call in calls), default=1)
        self._chunk = min(max(1, int(epochs * CHUNK_SECONDS / max(seconds, 1e-6))), CHUNK_EPOCHS)
        if broken:
            return
        if self._rules.patience and calls:
            self._stop_early(np.concatenate([call.members for call in calls]))
        if target in self._rules.rungs:
            self._halve(target)
        self._finish_due()

    def _record(self, members: NDArray[np.int64], figures: NDArray[np.float64],
                ran: NDArray[np.int64]) -> None:
        """Add the figures [members, epochs, 3] of the epochs that each of them `ran` to the
        history."""
        progress, epochs = self.progress, figures.shape[1]
        begun = progress.epoch[members]
        if (ran == epochs).all() and (begun == begun[0]).all():
            progress.history[as_slice(members), begun[0]:begun[0] + epochs] = figures
            return
        rows, places = np.nonzero(np.arange(epochs) < ran[:, None])
        progress.history[members[rows], begun[rows] + places] = figures[rows, places]

    def _finish_due(self) -> None:
        """Members that have all their epochs behind them are finished."""
        progress = self.progress
        done = (progress.status == Status.ACTIVE) & (progress.epoch >= self._own)
        progress.status[done] = Status.FINISHED

    def _stop_early(self, trained: NDArray[np.int64]) -> None:
        """As early stopping of a single run (rawnn/engine/callbacks.py), for the active members
        among those that trained."""
        progress, rules = self.progress, self._rules
        active = np.intersect1d(progress.active, trained)
        value = progress.figure(rules.monitor, progress.epoch)[active]
        gain = value - progress.best[active] if rules.monitor in HIGHER_IS_BETTER else \
            progress.best[active] - value
        better = np.isnan(progress.best[active]) | (gain > rules.min_delta)
        improved, others = active[better], active[~better]
        progress.best[improved] = value[better]
        progress.best_epoch[improved] = progress.epoch[improved]
        progress.waited[improved] = 0
        progress.waited[others] += 1
        progress.status[others[progress.waited[others] >= (rules.patience or 0)]] = Status.STOPPED
        for number, trainer in enumerate(self._trainers):
            chosen = improved[self._members.group[improved] == number]
            if chosen.size:
                state = trainer.state(self._members.place[chosen])
                state.pop("epoch")
                for row, member in enumerate(chosen):
                    self.best[int(member)] = {k: array[row].copy() for k, array in state.items()}

    def _halve(self, rung: int) -> None:
        """Leave the best part of the candidates; members that stopped by themselves compete."""
        progress, rules = self.progress, self._rules
        active = progress.active
        if rules.halving is None or not active.size:
            return
        reached = rules.rungs.index(rung)
        competing = np.flatnonzero((progress.rung == reached) & (progress.status != Status.HALVED))
        values = progress.figure(rules.monitor, rung)
        values[progress.status == Status.DIVERGED] = np.nan
        continues = survivors(self._members.candidate[competing], values[competing], rules.halving,
                              rules.monitor in HIGHER_IS_BETTER)
        progress.rung[competing[continues]] += 1
        ended = competing[~continues]
        progress.status[ended[progress.status[ended] == Status.ACTIVE]] = Status.HALVED

    # -- what is said ------------------------------------------------------------------------------
    def _report(self, reached: int, target: int, seconds: float) -> None:
        """Each of these epochs to the listener, then a checkpoint where one is due."""
        progress, monitor = self.progress, self._rules.monitor
        values = progress.history[:, reached:target, FIGURES.index(monitor)]
        trained = np.isfinite(progress.history[:, reached:target, 0]).sum(axis=0)
        left = self._seconds_left(np.arange(reached + 1, target + 1))
        for column, best in enumerate(best_of(values, monitor).tolist()):
            epoch = reached + 1 + column
            self._listener.epoch_done(epoch)
            report: Any = ManyReport(epoch, int(trained[column]), len(progress.epoch), best,
                                     monitor, float(values[best, column]) if best >= 0 else np.nan,
                                     self._rate, float(left[column]))
            self._listener.reported(report)
        if self._rules.save_every and (target % self._rules.save_every == 0):
            self._store()
        self._listener.settled(target)

    def _seconds_left(self, epochs: NDArray[np.int64]) -> NDArray[np.float64]:
        """About, behind each of these epochs, between which nothing is decided; successive halving
        leaves fewer members for later ones."""
        if not self._rate:
            return np.full(len(epochs), np.nan)
        active = self.progress.active
        own, where = np.unique(self._own[active], return_inverse=True)
        weights = np.bincount(where, self._steps[active], len(own))
        left, part, begin = np.zeros(len(epochs)), 1.0, epochs
        last = int(epochs[-1])
        for end in (*(r for r in self._rules.rungs if r > last), int(self._own.max())):
            run = np.clip(own[:, None], begin, end) - begin
            left += part * (weights @ run)
            part, begin = part / (self._rules.halving or 1.0), np.full(len(epochs), end)
        return left / self._rate

    def _store(self) -> None:
        self._save()
        self._saved = int(self.progress.epoch.sum())
