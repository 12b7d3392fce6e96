"""The session of a run: opens the device, reads the data, prepares the runner, and trains."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any
from uuid import uuid4

import numpy as np

from rawnn.common.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    RanksError,
    RawnnError,
    TrainingDiverged,
)
from rawnn.common.files import TextSink
from rawnn.common.listener import Listener
from rawnn.common.locks import DirectoryLocks
from rawnn.data import Dataset
from rawnn.data.input_scale import InputScale
from rawnn.distributed import Team
from rawnn.engine import parallel
from rawnn.engine.callbacks import Listeners, requested_listeners, without_file_writers
from rawnn.engine.checkpoint import EARLY_STOPPING, Checkpoint, Lineage
from rawnn.engine.checkpoint_store import not_stored
from rawnn.engine.config import Config
from rawnn.engine.data_source import (
    ReadAhead,
    check_fit,
    check_validation,
    doubts,
    left_out,
    named,
    outline_of,
    settled,
    with_targets_of,
)
from rawnn.engine.loop import Loop
from rawnn.engine.machine import Opened, open_device, since_import
from rawnn.engine.resolved_options import resolve_options
from rawnn.engine.result import Result, Times, environment
from rawnn.engine.resumption import (
    Resumption,
    at_its_epoch,
    names_of,
    record_of,
    resumption_of,
    state_of,
    stored_options,
    what_continues,
)
from rawnn.engine.run_planner import RunPlanner, check_unread
from rawnn.engine.runners.host import HostRunner
from rawnn.engine.runners.prepared_run import PreparedRun, Runner, State
from rawnn.engine.units import LossUnits
from rawnn.opts.user_kernel_toggles import is_op

OF_ALL_RANKS = (CheckpointError, ConfigError, DataError, RanksError, TrainingDiverged)
"""Errors of a run rather than of a call: every rank finds them by itself."""


class Session:
    """One run, from opening the device to the result. Use as a context manager."""

    def __init__(self, config: Config, *listeners: Listener, imports_ms: float = 0.0,
                 data: Dataset | None = None, opened: Opened | None = None,
                 log_allocations: TextSink | None = None, stand_in: bool = False,
                 team: Team | None = None, resumption: Resumption | None = None,
                 new_data: bool = False, is_lenient: bool = False) -> None:
        """Opens the device, reads the data and prepares the runner.

        imports_ms: time that the process took to get here.
        data, opened: given if several runs share them; an opened device then stays open.
        log_allocations: gets a line for each call that allocates or frees device memory.
        stand_in: lets generated digits replace a data set that is missing.
        team: the ranks of the run, which it leaves at the end. Each trains on its part of every
            batch; rank 0 writes checkpoints and logs.
        resumption: what `config.resume` names, if the caller has read it.
        new_data: allows other data than those of the resumed run.
        is_lenient: on the host leaves out toggles for a GPU alone, as where the device is "auto".
        """
        self.team = team
        self._resumption, self._new_data, self._is_lenient = resumption, new_data, is_lenient
        self._imports_ms = imports_ms
        self._closing = ExitStack()
        self._locks = self._closing.enter_context(DirectoryLocks())
        if team is not None:
            self._closing.callback(team.close)
        try:
            self.config, self.listener = config, Listeners(listeners)
            self.listener = Listeners(
                [*listeners, *requested_listeners(config, self.lock)] if team is None
                or not team.rank else without_file_writers(listeners, config))
            self._prepare(data, opened, log_allocations, stand_in)
        except BaseException as error:
            self._fail(error)
            self._closing.close()
            self._raise_lost_rank(error)
            raise

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: object, error: BaseException | None, *more: object) -> None:
        if error is not None:
            self._fail(error)
        self._closing.close()

    def _fail(self, error: BaseException) -> None:
        """Send the error to the other ranks; only rank 0 prints it."""
        if self.team is not None:
            self.team.fail(error)
            if self.team.rank and isinstance(error, RawnnError) \
                    and not isinstance(error, RanksError):
                error.speaks = False

    def _raise_lost_rank(self, error: BaseException) -> None:
        """If another rank is lost, raise that error instead: it is why a call failed here. Errors
        in OF_ALL_RANKS stay."""
        if self.team is not None and isinstance(error, RawnnError) \
                and not isinstance(error, OF_ALL_RANKS):
            self.team.check()

    def _prepare(self, data: Dataset | None, opened: Opened | None,
                 log_allocations: TextSink | None, stand_in: bool) -> None:
        """All that happens before the first epoch, in order."""
        self.stopped, self.signal, self.resumed = "", 0, 0
        self.facts: dict[str, Any] = {}  # what listeners store in checkpoints
        self.unsaved: CheckpointError | None = None
        self._earlier_scale: InputScale | None = None
        self.lineage: Lineage = ((uuid4().hex[:16], 0),)
        self._scaling_facts: dict[str, float] = {}
        before = self._resumed_run()
        if data is None and before is None:
            check_validation(self.config)
        opened, reading = self._open(opened, data, before)
        started = perf_counter()
        self._read_data(data, reading, before, stand_in, opened)
        self._data_ms = (perf_counter() - started) * 1e3
        if log_allocations is not None:
            self._log_allocations(log_allocations)
        started = perf_counter()
        planner = RunPlanner(self.config, self.data, opened, self.team, self.listener.notify,
                             self._is_lenient)
        self.selection, self.prepared = planner.plan(
            (before.path, before.checkpoint) if before else None)
        self._notify_of_plan()
        self._build_runner(opened)
        self._resolved_options = resolve_options(self.config.opt, self.selection, self.prepared,
                                                 opened.machine)
        if before is not None:
            self._resume(before.path, before.checkpoint)
        if self._is_other_data and self.facts.pop(EARLY_STOPPING, None):
            self.listener.notify("early stopping starts anew: its best value was measured on other "
                                 "data")
        self._predict_scaling(opened, planner)
        self._setup_ms = (perf_counter() - started) * 1e3

    def _notify_of_each(self, sentences: Iterable[str]) -> None:
        for sentence in filter(None, sentences):
            self.listener.notify(sentence)

    def _resumed_run(self) -> Resumption | None:
        """The run that `config.resume` names; None for a new one."""
        before = resumption_of(self.config, self._resumption, self._new_data)
        self.unknown = before.unknown if before else ""
        if before is not None:
            self._notify_of_each((*before.messages, self.unknown))
        return before

    def _open(self, opened: Opened | None, data: Dataset | None, before: Resumption | None
              ) -> tuple[Opened, ReadAhead | None]:
        """The device, and the data that are read while it opens. A missing GPU is reported before
        a download."""
        config, reading = self.config, None
        if opened is None:
            if data is None and (config.device != "host" or outline_of(config) is not None):
                reading = ReadAhead(config, **(before.loading(config) if before else {}))
            opened = open_device(config.device, self.listener.notify,
                                 parallel.ordinal(config, self.team) if self.team else 0)
            if opened.device:
                self._closing.callback(opened.device.close)
                opened.device.target()  # loads NVRTC at a first run, while data are read
        self.device, self._driver_ms = opened.device, opened.milliseconds
        self.no_gpu = opened.machine.no_gpu or ""  # why the run is on the host, if it is
        return opened, reading

    def _read_data(self, data: Dataset | None, reading: ReadAhead | None,
                   before: Resumption | None, stand_in: bool, opened: Opened) -> None:
        """Set `data`, as the network takes them, and what `config` leaves to them."""
        config, notify = self.config, self.listener.notify
        self._is_callers_data = data is not None
        found = data or (reading.result(notify) if reading else None)
        if found is None:
            check_unread(config, opened, self.team)
            found = named(config, notify, stand_in, **(before.loading(config) if before else {}))
        self.data = found
        self._notify_of_each(data.notes if data else ())
        if config.autoencoder:
            self.data = self.data.reconstructing()
        if before is not None:
            self.data = with_targets_of(before.relabelled(self.data),
                                        before.checkpoint.target_normalisation, before.path)
        check_fit(config, self.data)
        self._is_other_data = before is not None and before.differs(self.data, self._new_data)
        self.config, message = settled(config, self.data)
        self.doubts = doubts(self.config, self.data)
        self._notify_of_each((message, *self.doubts))
        if self.team is not None:
            if self.team.place.is_open:
                notify(parallel.OPEN_JOB)
            self.team.compare("the data", parallel.data_facts(self.data))

    def _log_allocations(self, sink: TextSink) -> None:
        if self.device is None:
            self.listener.notify("no allocations are logged: the host has no device memory")
            return
        from rawnn.cuda.allocators.log import logged

        self._closing.enter_context(logged(self.device.memory, sink))

    def _notify_of_plan(self) -> None:
        """Compare the toggles of all ranks, and say what of the options has no effect."""
        config, notify = self.config, self.listener.notify
        if self.team is not None:
            self.team.compare("the toggles", {
                "the device": "the host" if self.device is None else "a GPU",
                "the toggles": str(self.selection)})
        elif "nccl" in self.selection.values:
            notify("nccl changes nothing in a run of one process: python -m rawnn launch -n 2 "
                   "starts two")
        own = [f"{name}={value}" for name, value in self.selection.values.items() if is_op(name)]
        if own and self.device is not None and self.device.backend.name == "sim":
            notify(f"{', '.join(own)} is not compiled for the simulated GPU, which computes what "
                   f"its op means: python -m rawnn kernel try FILE.cu compiles a kernel, and "
                   f"rawnn.Kernel does in Python")
        if config.activation != Config.activation and len(config.layers) == 2:
            features, outputs = config.layers
            notify(f"activation = {config.activation} plays no part: {features}-{outputs} has no "
                   f"hidden layer; give one, as in --layers {features},128,{outputs}")
        if not LossUnits(self.prepared.network, self.data).by_factor:
            notify("the targets have different standard deviations: both losses are measured on "
                   "the host after each report's epoch; --opt report=10 makes reports fewer")
        self.left_out = left_out(self.prepared.recipe, len(self.data.train_images))
        if self.left_out:
            logging.getLogger("rawnn").info(f"of {self.data.name}'s examples {self.left_out}")

    def _build_runner(self, opened: Opened) -> None:
        """Set `runner`, and `prepared` as it is executed."""
        if opened.device is None:
            if self.config.device == "auto":
                self.listener.notify(f"running on the host: {opened.machine.no_gpu}")
            self.runner: Runner = HostRunner(self.prepared, team=self.team)
        else:
            from rawnn.engine.runners.gpu import GpuRunner

            self.runner = runner = GpuRunner(opened.device, self.prepared, self.team)
            self.prepared = runner.prepared
        self._closing.callback(self.runner.close)

    def _predict_scaling(self, opened: Opened, planner: RunPlanner) -> None:
        """Measure how a run of several GPUs scales, before it trains."""
        team, runner = self.team, self.runner
        if team is None or opened.device is None or opened.device.backend.caution:
            return
        from rawnn.engine.runners.gpu import GpuRunner

        assert isinstance(runner, GpuRunner)
        message, self._scaling_facts = parallel.predict_scaling(
            team, *runner.time_without_collectives())
        self.listener.notify(message)
        if self._scaling_facts["compute_us"] < parallel.SHORT_US:
            message, found = parallel.compare_with_one_rank(
                team, runner.timed(), lambda: parallel.time_one_rank(
                    opened, planner.for_one_rank(self.selection, self.prepared)))
            self._scaling_facts |= found
            self._notify_of_each([message])

    def _resume(self, file: Path, found: Checkpoint) -> None:
        self.load(found, os.fspath(file))
        if self.team is not None:
            self.team.compare("the checkpoint", parallel.state_facts(self.runner.state()))
        self.resumed, self.facts = found.epoch, dict(found.facts)
        self._earlier_scale = InputScale.stored_in(found.data, found.facts)
        self.lineage = (*found.lineage, (self.lineage[0][0], found.epoch))
        for sentence in what_continues(file, found, self.config.epochs, self.data.name):
            self.listener.notify(sentence)

    # -- for listeners ----------------------------------------------------------------------------
    @property
    def work(self) -> PreparedRun:
        """The former name of `prepared`."""
        return self.prepared

    def lock(self, directory: str | os.PathLike[str]) -> bool:
        """Lock a directory against other runs until this one is closed, and return whether that
        worked. A second call for it does nothing; rank 0 locks for all ranks. Raises ConfigError if
        another run writes there."""
        if self.team is not None and self.team.rank:
            return False
        return self._locks.hold(directory, self.listener.notify)

    def stop(self, reason: str) -> None:
        """End the run after this epoch; `reason` becomes part of the result."""
        self.stopped = reason

    def stop_unsaved(self, error: CheckpointError, directory: str | os.PathLike[str]) -> None:
        """End the run after this epoch, since its state could not be stored; sets `unsaved`."""
        if self.unsaved is None:
            self.unsaved = not_stored(error, directory)
            self.stop("a checkpoint could not be written")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Wait for the device, and exclude what runs within from the training time."""
        with self._loop.paused():
            yield

    def checkpoint(self, epoch: int) -> Checkpoint:
        """The state needed to continue from here, after `epoch` epochs."""
        state, network = self.runner.state(), self.prepared.network
        names = [tensor.name for tensor in network.parameters()]
        return Checkpoint(
            network, {name: state.pop(name) for name in names}, epoch, state,
            stored_options(self.config, self._is_callers_data),
            self.data.normalisation, self.data.label_names, {**self.facts, **names_of(self.data)},
            self._resolved_options.plain(), self._record, self.lineage,
            self.data.target_normalisation, self.data.label_dtype, self.data.autoencoder)

    @cached_property
    def input_scale(self) -> InputScale | None:
        """The scale of the inputs that the network was trained on from its beginning."""
        return self._earlier_scale or self.data.input_scale

    @property
    def sharding(self) -> str:
        """Of the persistent kernel that trains, in full; "" where none does."""
        return self._resolved_options.sharding

    @cached_property
    def _record(self) -> dict[str, Any]:
        return record_of(self.data, self._is_callers_data, self.input_scale)

    def restore(self, state: State) -> None:
        """Replace parameters and state by an earlier `runner.state()`."""
        self.runner.load(state)
        self._loop.stale = True

    def load(self, checkpoint: Checkpoint, where: str) -> None:
        """Replace parameters and state by a checkpoint's. Raises CheckpointError if it is of
        another network or optimizer."""
        prepared = self.prepared
        checkpoint = at_its_epoch(checkpoint, prepared.recipe, prepared.updates)
        self.runner.load(state_of(checkpoint, prepared.network, self.runner.state(),
                                  prepared.updates, self.config.optimizer, where))

    # -- running ----------------------------------------------------------------------------------
    def run(self) -> Result:
        """Train all epochs and return the result.

        In the main thread SIGINT (Ctrl-C), SIGTERM and SIGHUP, unless the process handles them
        itself, end the run after the current epoch. A second one, or 20 s, ends it at once, with
        the parameters of the end of the last epoch, or in the first epoch those of its middle.
        `signal` then holds its number, and the result is marked `interrupted`. Work that a GPU has
        already been given is waited for.
        """
        self._loop = loop = Loop(self)
        former = self.facts.get(EARLY_STOPPING)
        self.listener.started(self)
        if former is not None and self.facts.get(EARLY_STOPPING) is former:
            del self.facts[EARLY_STOPPING]  # of the resumed run: this one does not stop early
        try:
            self.signal = loop.run()
        except TrainingDiverged as error:
            error.history = loop.history  # type: ignore[attr-defined]
            raise
        except RawnnError as error:
            self._raise_lost_rank(error)
            raise
        return self._result(loop)

    def _result(self, loop: Loop) -> Result:
        facts = self.runner.describe()
        if self.team is not None:
            facts |= self._scaling_facts
            facts["ranks"] = self.team.gather("the result", {
                "who": self.team.who,
                "device": self.device.info.name if self.device else "host"})
        facts["normalisation"] = str(self.data.normalisation)
        if self.left_out:
            recipe = self.prepared.recipe
            facts["examples_left_out"] = len(self.data.train_images) % recipe.batch
        epochs = self.runner.epoch_milliseconds()[: loop.epochs]
        later = epochs[len(epochs) // 2 :]
        half = self.resumed + len(epochs) / 2
        wall = [r.epoch_ms for r in loop.history if r.epoch > half]
        compile_ms = float(facts.pop("compile_ms", 0.0))
        reached = loop.reached
        return Result(
            config=self.config,
            toggles=self.selection.values,
            implied=sorted(self.selection.implied),
            notes=[*self.selection.notes, *self.data.notes],
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
                process=since_import() * 1e3,
            ),
            peak_memory_bytes=self.runner.peak_memory(),
            environment=environment(
                self.device.backend.name if self.device else "host",
                asdict(self.device.info) if self.device else None,
                facts.pop("libraries", {}),
            ),
            facts=facts,
            interrupted=bool(self.signal),
            test_accuracy=reached.accuracy,
            test_loss=reached.loss,
            stopped=self.stopped,
            sharding=self.sharding,
            resumed_epochs=self.resumed,
            broken_epoch=loop.broken_epoch,
            label_names=self.data.label_names,
            target_names=self.data.target_names,
            feature_names=self.data.feature_names,
            target_normalisation=self.data.target_normalisation,
            label_dtype=self.data.label_dtype,
            autoencoder=self.data.autoencoder,
            normalisation=self.data.normalisation,
            input_scale=self.input_scale,
            parameters=self.runner.parameters(),
        )
