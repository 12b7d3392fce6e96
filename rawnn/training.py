"""Training: from a Config to a Result."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import asdict
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.config import Config
from rawnn.data import Dataset, load_dataset
from rawnn.errors import ConfigError, TrainingDiverged
from rawnn.machine import Opened, open_device, process_start
from rawnn.opts import Selection, select
from rawnn.result import Report, Result, Times, environment
from rawnn.runners.base import Evaluation, Runner, Work, prepare
from rawnn.runners.host import HostRunner


class Listener:
    """What a caller may hear of a run while it goes on; every method may be overridden."""

    def notify(self, message: str) -> None:
        """One sentence that the user should read."""

    def started(self, session: Session) -> None:
        """Everything is ready; the clock starts after this."""

    def reported(self, report: Report) -> None:
        """A report is due."""

    def epoch_done(self, epoch: int) -> None:
        """An epoch was enqueued (on a GPU it may still run)."""


def train(config: Config | None = None, *, listener: Listener | None = None,
          **options: Any) -> Result:
    """Train the network of `config` (or of Config(**options)) and return what was found.

    Raises ConfigError, DataError, DeviceError and their kin with one clear sentence;
    TrainingDiverged carries the reports reached so far as `history`. Ctrl-C ends the run after
    the epoch in hand and returns what was reached, marked `interrupted`.
    """
    if config is not None and options:
        raise ConfigError("give either a Config or its options, not both")
    with Session(config or Config(**options), listener or Listener()) as session:
        return session.run()


class Session:
    """One run, from opening the device to the result. Use as a context manager."""

    def __init__(self, config: Config, listener: Listener, imports_ms: float = 0.0,
                 data: Dataset | None = None, opened: Opened | None = None) -> None:
        """`imports_ms` is what the process took to get here. `data` and `opened` may be given
        where several runs share them; an opened device is then left open."""
        self.config, self.listener = config, listener
        self._imports_ms = imports_ms
        self._closing = ExitStack()
        try:
            self._prepare(data, opened)
        except BaseException:
            self._closing.close()
            raise

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self._closing.close()

    def _prepare(self, data: Dataset | None, opened: Opened | None) -> None:
        config, notify = self.config, self.listener.notify
        started = perf_counter()
        self.data = data or load_dataset(config.dataset, config.data, notify=notify)
        check_fit(config, self.data)
        self._data_ms = (perf_counter() - started) * 1e3
        if opened is None:
            opened = open_device(config.device, notify)
            if opened.device:
                self._closing.callback(opened.device.close)
        self.device, self._driver_ms = opened.device, opened.milliseconds
        started = perf_counter()
        network, recipe = config.network(), config.recipe()
        steps = recipe.steps(len(self.data.train_images))
        lenient = config.device == "auto"
        self.selection: Selection = select(config.opt, network, steps, opened.machine,
                                           lenient=lenient)
        self.work: Work = prepare(network, self.data, self.selection, recipe)
        if opened.device is None:
            if lenient:
                notify(f"running on the host: {opened.machine.gpu}")
            self.runner: Runner = HostRunner(self.work)
        else:
            from rawnn.runners.gpu import GpuRunner

            self.runner = GpuRunner(opened.device, self.work)
        self._closing.callback(self.runner.close)
        self._setup_ms = (perf_counter() - started) * 1e3

    def run(self) -> Result:
        """Train all epochs and return the result."""
        loop = _Loop(self)
        self.listener.started(self)
        try:
            interrupted = loop.run()
        except TrainingDiverged as error:
            error.history = loop.history  # type: ignore[attr-defined]
            raise
        return self._result(loop, interrupted)

    def _result(self, loop: _Loop, interrupted: bool) -> Result:
        facts = self.runner.describe()
        epochs = self.runner.epoch_milliseconds()
        later = epochs[len(epochs) // 2 :]
        half = len(epochs) / 2
        wall = [r.epoch_ms for r in loop.history if r.epoch > half]
        compile_ms = float(facts.pop("compile_ms", 0.0))
        reached = loop.reached
        return Result(
            config=self.config,
            toggles=self.selection.values,
            implied=sorted(self.selection.implied),
            notes=list(self.selection.notes),
            dataset=self.data.name,
            data_source=self.data.source,
            synthetic=self.data.synthetic,
            history=loop.history,
            epoch_ms=epochs,
            average_epoch_ms=float(np.mean(later)) if later else math.nan,
            average_epoch_wall_ms=float(np.mean(wall)) if wall else math.nan,
            times=Times(
                imports=self._imports_ms, data=self._data_ms, driver=self._driver_ms,
                compile=compile_ms, setup=self._setup_ms - compile_ms, training=loop.training_ms,
                training_device=float(sum(epochs)), evaluation=loop.evaluation_ms,
                process=process_start() * 1e3,
            ),
            peak_memory_bytes=self.runner.peak_memory(),
            environment=environment(
                self.device.backend.name if self.device else "host",
                asdict(self.device.info) if self.device else None,
                facts.pop("libraries", {}),
            ),
            facts=facts,
            interrupted=interrupted,
            test_accuracy=reached.accuracy,
            test_loss=reached.loss,
            parameters=self.runner.parameters(),
        )


class _Loop:
    """The epochs of a run, and the reports that fall due."""

    def __init__(self, session: Session) -> None:
        self._session, self._runner = session, session.runner
        self._config, self._listener = session.config, session.listener
        self._interval = session.work.policy.report
        self.history: list[Report] = []
        self.reached = Evaluation(math.nan, math.nan)
        self.training_ms = self.evaluation_ms = 0.0
        self._since: float | None = None  # since when training time is not yet counted

    def run(self) -> bool:
        """Train; returns whether Ctrl-C cut it short."""
        epoch = reported = 0
        started = self._since = perf_counter()
        try:
            for epoch in range(1, self._config.epochs + 1):
                due = epoch % self._interval == 0 or epoch == self._config.epochs
                self._runner.epoch(measured=due)
                self._listener.epoch_done(epoch)
                if due:
                    self._report(epoch, epoch - reported, started)
                    reported = epoch
                    started = self._since = perf_counter()
        except KeyboardInterrupt:
            self._runner.epoch_milliseconds()  # waits for what was enqueued
            if self._since is not None:
                self.training_ms += (perf_counter() - self._since) * 1e3
            self.reached = self._runner.evaluate()
            return True
        return False

    def _report(self, epoch: int, epochs: int, started: float) -> None:
        losses, correct = self._runner.metrics()
        elapsed = (perf_counter() - started) * 1e3
        self.training_ms += elapsed
        self._since = None
        self._check_losses(losses, epoch)
        begun = perf_counter()
        self.reached = test = self._runner.evaluate()
        self.evaluation_ms += (perf_counter() - begun) * 1e3
        work = self._session.work
        examples = np.array([work.examples_of(s) for s in range(work.updates)])
        answers = int(examples.sum()) * work.answers
        report = Report(
            epoch=epoch,
            train_loss=float(np.average(losses.astype(np.float64), weights=examples)),
            train_accuracy=float(correct.sum() / answers) if answers else math.nan,
            test_loss=test.loss,
            test_accuracy=test.accuracy,
            epoch_ms=elapsed / epochs,
        )
        self.history.append(report)
        self._listener.reported(report)

    def _check_losses(self, losses: NDArray[np.float32], epoch: int) -> None:
        bad = np.flatnonzero(~np.isfinite(losses))
        if not bad.size:
            return
        step = int(bad[0])
        last = self.history[-1] if self.history else None
        kept = f"the last good report is of epoch {last.epoch} (test accuracy " \
               f"{last.test_accuracy:.4f})" if last else "no report was reached before"
        earlier = "" if self._interval == 1 or epoch == 1 else \
            " or in an epoch before it that was not measured"
        raise TrainingDiverged(
            f"the loss became {losses[step]} at step {step} of epoch {epoch}{earlier}: use a "
            f"smaller learning rate than {self._config.lr:g}; {kept}"
        )


def check_fit(config: Config, data: Dataset) -> None:
    """Raise ConfigError unless network, batch and data fit each other."""
    features, outputs = config.layers[0], config.layers[-1]
    if features != data.features:
        raise ConfigError(f"the network takes {features} features, but {data.name} has "
                          f"{data.features}: use --layers {data.features}-...-{data.outputs}")
    labelled = config.network().answers.answers == "labels"
    if labelled and data.train_labels is None:
        raise ConfigError(f"the loss {config.loss} compares with class labels, but {data.name} has "
                          f"target values: use --loss mse or --loss bce")
    if not labelled and data.train_targets is None and not data.autoencoder:
        raise ConfigError(f"the loss {config.loss} compares with target values, but {data.name} "
                          f"has class labels: use --loss cross_entropy, or give targets")
    if outputs < data.outputs or (not labelled and outputs != data.outputs):
        raise ConfigError(f"the network ends in {outputs} outputs, but {data.name} has "
                          f"{data.outputs}: use --layers {features}-...-{data.outputs}")
    if config.batch > len(data.train_images):
        raise ConfigError(f"batch = {config.batch} is larger than the training set "
                          f"({len(data.train_images)} examples)")
