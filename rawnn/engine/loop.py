"""The epochs of a run: trained one by one, measured when a report is due, aborted by a signal, and
timed without what is not training."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rawnn.common.errors import TrainingDiverged
from rawnn.common.interrupts import LONG_SECONDS, EpochAborted, Signals
from rawnn.data import Dataset
from rawnn.engine.parallel import metrics
from rawnn.engine.result import Report
from rawnn.engine.runners.prepared_run import Evaluation, State
from rawnn.engine.units import LossUnits
from rawnn.model.layers import Network

if TYPE_CHECKING:
    from rawnn.distributed import Team
    from rawnn.engine.session import Session


LARGE_INPUTS = 100
"""Inputs that are not standardised are named beyond it where a loss becomes NaN or infinite."""
LARGE_TARGETS = 10.0
"""Targets beyond this make the first errors so large that common learning rates diverge."""


class _Stopwatch:
    """Milliseconds of training: in `total`, and since the last `lap`."""

    def __init__(self) -> None:
        self.total = self._lap = 0.0
        self._since: float | None = None

    def start(self) -> None:
        self._since = perf_counter()

    def stop(self) -> None:
        if self._since is not None:
            elapsed = (perf_counter() - self._since) * 1e3
            self.total += elapsed
            self._lap += elapsed
            self._since = None

    def lap(self) -> float:
        elapsed, self._lap = self._lap, 0.0
        return elapsed


class Loop:
    """Trains the epochs of a session and makes the reports that are due."""

    def __init__(self, session: Session) -> None:
        self._session, self._runner = session, session.runner
        self._config, self._listener = session.config, session.listener
        self._interval = session.prepared.policy.report
        self._units = LossUnits(session.prepared.network, session.data)
        self.history: list[Report] = []
        self.reached = Evaluation(math.nan, math.nan)
        self.evaluation_ms = 0.0
        self._watch = _Stopwatch()
        self._is_complete = True  # whether no epoch was aborted
        self._last_snapshot: tuple[int, State] = (0, {})  # an epoch, and the state after it
        self._long = False  # whether epochs are long enough to snapshot the state after each
        self.stale = False  # whether parameters were replaced since they were last measured
        self.broken_epoch = 0  # the epoch in which training was aborted

    @property
    def training_ms(self) -> float:
        return self._watch.total

    @property
    def epochs(self) -> int:
        """How many epochs of this run the parameters have been trained for."""
        return self._epoch - self._session.resumed

    def run(self) -> int:
        """Train; returns the number of the signal that ended it, 0 for none. After an abort the
        test set is not measured: the run ends at once."""
        with Signals(self._listener.notify) as self._signals:
            broken = self._epochs()
            at_once = broken and bool(self._signals.number or not self._is_complete)
            with self.paused():
                if broken:
                    self._runner.keep_sharded()
                if broken and not self._is_complete:
                    self._restore_snapshot()
                self._runner.assemble()
                if self._is_complete:
                    self._listener.ended(self._epoch)
                measured = self._reached == self._epoch and self._is_complete and not self.stale
                if not measured:
                    self.reached = Evaluation(math.nan, math.nan) if at_once else \
                        self._units.evaluation(self._runner)
            return self._signals.number or (signal.SIGINT if broken else 0)

    def _epochs(self) -> bool:
        """Train epoch by epoch; returns whether one was aborted."""
        session, signals, total = self._session, self._signals, self._config.epochs
        self._epoch = self._reported = session.resumed
        self._reached = -1  # the epoch after which the test set was measured
        if session.resumed and signals.installed:
            self._snapshot()
        parted = session.team if session.prepared.assemble.ops else None
        read = bool(parted and parted.any("what is read", self._listener.reads * "state"))
        self._watch.start()
        try:
            while self._epoch < total and not self._should_stop():
                due = (self._epoch + 1) % self._interval == 0 or self._epoch + 1 == total
                self._is_complete = False
                signals.inside = True
                begun = perf_counter()
                self._runner.epoch(due)
                seconds = perf_counter() - begun
                signals.inside = False
                self._epoch += 1
                self._is_complete = True
                if read:
                    self._runner.assemble()
                self._listener.epoch_done(self._epoch)
                if due:
                    self._report(self._epoch, self._epoch - self._reported)
                    self._reported = self._epoch
                self._listener.settled(self._epoch)
                if signals.kept or self._long or self._epoch == session.resumed + 1 \
                        or (seconds > LONG_SECONDS and not parted):
                    self._snapshot_if_long(parted, seconds)
        except (EpochAborted, KeyboardInterrupt):
            return True
        finally:
            signals.inside = False
        return False

    def _should_stop(self) -> bool:
        """Whether training ends here; all ranks stop if one does."""
        session, number = self._session, self._signals.number
        if session.team is None:
            return bool(session.stopped or number)
        session.team.doing = f"training epoch {self._epoch + 1}"
        why = session.stopped or (f"a signal ({number}) asked rank {session.team.rank} to end"
                                  if number else "")
        reason = session.team.any(f"epoch {self._epoch}", why)
        if reason and not number and not session.stopped:
            session.stop(reason)
        return bool(reason)

    def _snapshot_if_long(self, parted: Team | None, seconds: float) -> None:
        """Snapshot the state after an epoch if epochs are so long that one may have to be aborted;
        this one took the host so many `seconds`. Ranks whose state is sharded (`parted`) do so
        together.

        This waits for the first epoch, which costs some 20 us once, and for every long one: without
        the wait up to ten of them would be enqueued where reports are rare.
        """
        if self._epoch == self._config.epochs or not (self._signals.installed or parted):
            return
        with self.paused():
            self._long = max(seconds, self._runner.epoch_milliseconds()[-1] / 1e3) > LONG_SECONDS
            if parted:
                self._long = bool(parted.any("how long epochs are", self._long * "long"))
            if self._long:
                self._runner.assemble()
            self._signals.kept = self._long and self._signals.installed
            if self._signals.kept:
                self._snapshot()

    def _snapshot(self) -> None:
        self._last_snapshot = self._epoch, self._runner.state()
        self._signals.kept = True

    def _restore_snapshot(self) -> None:
        """Return to the end of the last epoch if there is a snapshot. Otherwise, as in the first
        epoch, parameters stay as the abort left them, and `broken_epoch` says so."""
        if self._signals.kept:
            self._epoch, state = self._last_snapshot
            self._runner.load(state)
            self._is_complete = True
        else:
            self.broken_epoch = self._epoch + 1
            self._listener.notify(f"epoch {self.broken_epoch} was aborted: the parameters are "
                                  f"those in the middle of it, and their test loss was not "
                                  f"measured")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude what runs within from the training time."""
        self._runner.epoch_milliseconds()  # waits for what was enqueued
        self._watch.stop()
        try:
            yield
        finally:
            self._watch.start()

    def _report(self, epoch: int, epochs: int) -> None:
        losses, correct = self._runner.metrics()
        team, ranks = self._session.team, list[int]()
        if team is not None:
            losses, correct, ranks = metrics(team, self._session.prepared, losses, correct)
        self._watch.stop()
        elapsed = self._watch.lap()
        self._check_losses(losses, epoch, ranks)
        prepared = self._session.prepared
        examples = np.array([prepared.examples_of(s) for s in range(prepared.updates)])
        begun = perf_counter()
        mean = float(np.average(losses.astype(np.float64), weights=examples))
        self.reached = test = self._units.evaluation(self._runner)
        self._reached = epoch
        train_loss = self._units.train_loss(mean, self._runner)
        self.evaluation_ms += (perf_counter() - begun) * 1e3
        answers = int(examples.sum()) * prepared.targets_per_example
        report = Report(
            epoch=epoch,
            train_loss=train_loss,
            train_accuracy=float(correct.sum() / answers) if answers else math.nan,
            test_loss=test.loss,
            test_accuracy=test.accuracy,
            epoch_ms=elapsed / epochs,
        )
        self.history.append(report)
        self._listener.reported(report)
        self._watch.start()

    def _check_losses(self, losses: NDArray[np.float32], epoch: int,
                      ranks: list[int]) -> None:
        bad = np.flatnonzero(~np.isfinite(losses))
        if not bad.size:
            return
        step, prepared = int(bad[0]), self._session.prepared
        last = self.history[-1] if self.history else None
        progress = f"the last good report is of epoch {last.epoch} (test accuracy " \
                   f"{last.test_accuracy:.4f})" if last else "no report was reached before"
        earlier = "" if self._interval == 1 or epoch == 1 else \
            " or in an epoch before it that was not measured"
        where = f", first on rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}" \
            if ranks else ""
        raise TrainingDiverged(
            f"the loss became {losses[step]} at step {step} of epoch {epoch}{earlier}{where}: "
            f"{large_values(self._session.data, prepared.network)}use a smaller learning rate "
            f"than {self._config.lr:g}; {progress}"
        )


def large_values(data: Dataset, network: Network) -> str:
    """The advice for a loss that diverged over targets or inputs that are large and not
    standardised, else ""."""
    return _large_targets(data, network) or _large_inputs(data)


def _large_inputs(data: Dataset) -> str:
    if data.normalisation.mean is not None:
        return ""
    low, high = (float(each) * data.normalisation.scale for each in
                 (data.train_images.min(), data.train_images.max()))
    if max(abs(low), abs(high)) <= LARGE_INPUTS:
        return ""
    return f"the inputs reach from {low:,.6g} to {high:,.6g}, which normalise = learned " \
           f"(--normalise learned) standardises; else "


def _large_targets(data: Dataset, network: Network) -> str:
    """Targets far from the initial outputs of networks."""
    if data.train_targets is None or data.target_normalisation is not None \
            or not network.loss_spec.unit_power:
        return ""
    low, high = float(data.train_targets.min()), float(data.train_targets.max())
    if max(abs(low), abs(high)) <= LARGE_TARGETS:
        return ""
    return f"the targets reach from {low:,.6g} to {high:,.6g}, which normalise_targets = " \
           f"learned (--normalise-targets learned) standardises; else "
