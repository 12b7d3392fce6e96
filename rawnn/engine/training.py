"""Training: from a Config to a Result."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from contextlib import suppress
from typing import Any

from rawnn.common.errors import ConfigError, unknown
from rawnn.common.listener import listeners_of
from rawnn.distributed import Team
from rawnn.engine import parallel
from rawnn.engine.checkpoint import continued
from rawnn.engine.config import Config
from rawnn.engine.result import Result
from rawnn.engine.resumption import Resumption, dataset_of
from rawnn.engine.session import Session


def train(config: Config | None = None, *, listener: object = (),
          data: Any = None, validation: Any = None, normalise: Any = None,
          new_data: bool = False, team: Team | None = None, communicator: Any = None,
          **options: Any) -> Result:
    """Train the network of `config` (or of Config(**options)) and return the result.

    `data` is a directory or file as in Config, a Dataset, or arrays (X, y) as for `from_arrays`,
    with `validation` and `normalise`. `listener` is a Listener, an object with some of its methods,
    or a sequence of these.

    With `resume` the options of the run that wrote the checkpoint are the defaults, and its split
    and normalisation (mean and deviation of its training) are used. Labels refer to the network's
    classes by name. Arrays have to be passed again. Data whose shape, dtype or content differs from
    the checkpoint's record are refused unless `new_data` is true. A RuntimeWarning names what an
    older checkpoint does not record of them.

    A missing data set is an error: generated digits are used only for `dataset="synthetic"`. If
    `device` is "auto" and there is no GPU, a RuntimeWarning says that training runs on the host.
    Other messages go to the listener and to the logger "rawnn".

    Raises ConfigError, DataError, DeviceError and related errors with one clear sentence. An
    exception of a listener ends the run and propagates, with all memory freed. TrainingDiverged
    has the reports so far as `history`. If a checkpoint cannot be written (a full disk), the run
    ends after that epoch, and the CheckpointError has its Result as `result`.

    In a process that torchrun, mpirun, srun or `rawnn launch` started with others, all of them
    train one network together (docs/scaling.md); so do those of a `communicator` of mpi4py, each
    with a call of its own. `team` are ranks that the caller has joined. Then RanksError says which
    rank is lost or differs.

    In the main thread, Ctrl-C ends the run after the current epoch and returns the result so far,
    marked `interrupted`. A second one, or 20 s, ends it at once, with the parameters of the end of
    the last epoch. In the first epoch they are those of its middle, which `broken_epoch` of the
    result says. Nothing more is measured then. SIGTERM and SIGHUP do the same, write a checkpoint
    if `save` is set, and then end the process as they would have. Signals that the process ignores
    or handles itself are not touched, and afterwards all handlers are as before.
    """
    if config is not None and not isinstance(config, Config):
        raise ConfigError(f"config is a rawnn.Config, not a {type(config).__name__}: give its "
                          f"options by name, as in train(layers=(784, 10))")
    for name in options:
        if name not in Config.__dataclass_fields__:
            raise unknown("option", name, (*Config.known(), "listener"))
    arrays = data is not None and not isinstance(data, str | os.PathLike)
    own = {"data": data, "validation": validation, "normalise": normalise}
    of_config = {} if arrays else {k: v for k, v in own.items() if v is not None}
    if config is not None and (options or of_config):
        raise ConfigError("give either a Config or its options, not both")
    resume = options.get("resume") if config is None else config.resume
    before = Resumption.of(resume) if resume else None
    if config is None:
        config = Config(**continued({**options, **of_config}, arrays,
                                    (before.path, before.checkpoint) if before else None))
    dataset = None
    if arrays:
        dataset, config = dataset_of(data, config, validation, normalise, before)
    listeners = listeners_of(listener)
    team = team or parallel.join(config, communicator=communicator)
    with Session(config, *listeners, data=dataset, team=team, resumption=before,
                 new_data=new_data) as session:
        if session.device is None and config.device == "auto":
            warnings.warn(f"training on the host, not on a GPU: {session.no_gpu}", RuntimeWarning,
                          stacklevel=2)
        for sentence in filter(None, (session.spare, session.unknown)):
            warnings.warn(sentence, RuntimeWarning, stacklevel=2)
        result = session.run()
    if session.unsaved is not None:
        session.unsaved.result = result  # type: ignore[attr-defined]
        raise session.unsaved
    if session.signal not in (0, signal.SIGINT):
        with suppress(OSError):
            sys.stdout.flush()
        signal.raise_signal(session.signal)
    return result


class Session:
    """One run, from opening the device to the result. Use as a context manager."""

    def __init__(self, config: Config, *listeners: Listener, imports_ms: float = 0.0,
                 data: Dataset | None = None, opened: Opened | None = None,
                 log_allocations: TextSink | None = None, stand_in: bool = False,
                 team: Team | None = None, resumption: Resumption | None = None,
                 new_data: bool = False) -> None:
        """`imports_ms` is what the process took to get here. `data` and `opened` may be given
        where several runs share them; an opened device is then left open. `log_allocations` gets
        a line for each call that takes device memory from the driver or gives it back. `stand_in`
        lets generated digits take the place of a data set that cannot be had. As one rank of a
        `team`, which it leaves at the end, it trains on its part of every batch; checkpoints and
        logs are written by rank 0. `resumption` is what `config.resume` names, where the caller
        has read it; `new_data` allows other data than its run had."""
        self.team = team
        self._resumption, self._new_data = resumption, new_data
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
        """The other ranks learn why this one ends; rank 0 says it."""
        if self.team is not None:
            self.team.fail(error)
            if self.team.rank and isinstance(error, RawnnError) \
                    and not isinstance(error, RanksError):
                error.speaks = False

    def _raise_lost_rank(self, error: BaseException) -> None:
        """Where another rank is lost, that is why a call failed here: raise it in its place. What
        all ranks find wrong by themselves stays as it is."""
        if self.team is not None and isinstance(error, RawnnError) \
                and not isinstance(error, OF_ALL_RANKS):
            self.team.check()

    def _prepare(self, data: Dataset | None, opened: Opened | None,
                 log_allocations: TextSink | None, stand_in: bool) -> None:
        config, notify = self.config, self.listener.notify
        self.stopped = ""
        self.signal = 0
        before = resumption_of(config, self._resumption, self._new_data)
        self.unknown = before.unknown if before else ""
        for sentence in filter(None, (*before.messages, self.unknown) if before else ()):
            notify(sentence)
        instead = before.loading(config) if before else {}
        reading = None
        if opened is None:  # ahead of the data: a GPU that is not there is found before a download
            if data is None and config.device != "host":
                reading = ReadAhead(config, **instead)
            opened = open_device(config.device, notify,
                                 parallel.ordinal(config, self.team) if self.team else 0)
            if opened.device:
                self._closing.callback(opened.device.close)
                opened.device.target()  # which loads NVRTC at a first run, while data are read
        self.device, self._driver_ms = opened.device, opened.milliseconds
        self.no_gpu = opened.machine.no_gpu or ""  # why, where it runs on the host
        started = perf_counter()
        self._is_callers_data = data is not None
        self.data = data or (reading and reading.result(notify)) or \
            named(config, notify, stand_in, **instead)
        for note in data.notes if data else ():
            notify(note)
        if config.autoencoder:
            self.data = self.data.reconstructing()
        if before is not None:
            self.data = with_targets_of(before.relabelled(self.data),
                                        before.checkpoint.target_normalisation, before.path)
        check_fit(config, self.data)
        other = before is not None and before.differs(self.data, self._new_data)
        self.config, said = settled(config, self.data)
        config, self.spare = self.config, spare_outputs(self.config, self.data)
        for sentence in filter(None, (said, self.spare)):
            notify(sentence)
        if self.team is not None:
            if self.team.place.is_open:
                notify(parallel.OPEN_JOB)
            self.team.compare("the data", parallel.data_facts(self.data))
        self._data_ms = (perf_counter() - started) * 1e3
        if log_allocations is not None and self.device is None:
            notify("no allocations are logged: the host has no device memory")
        elif log_allocations is not None and self.device is not None:
            from rawnn.cuda.allocators.log import logged

            self._closing.enter_context(logged(self.device.memory, log_allocations))
        started = perf_counter()
        planner = RunPlanner(config, self.data, opened, self.team, notify)
        self.selection, self.work = planner.plan(
            (before.path, before.checkpoint) if before else None)
        if self.team is not None:
            self.team.compare("the toggles", {
                "the device": "the host" if self.device is None else "a GPU",
                "the toggles": str(self.selection)})
        elif "nccl" in self.selection.values:
            notify("nccl changes nothing in a run of one process: python -m rawnn launch -n 2 "
                   "starts two")
        if config.activation != Config.activation and len(config.layers) == 2:
            features, outputs = config.layers
            notify(f"activation = {config.activation} plays no part: {features}-{outputs} has no "
                   f"hidden layer; give one, as in --layers {features},128,{outputs}")
        if not LossUnits(self.work.network, self.data).by_factor:
            notify("the targets have different standard deviations: both losses are measured on "
                   "the host after each report's epoch; --opt report=10 makes reports fewer")
        self.left_out = left_out(self.work.recipe, len(self.data.train_images))
        if self.left_out:
            logging.getLogger("rawnn").info(f"of {self.data.name}'s examples {self.left_out}")
        if opened.device is None:
            if config.device == "auto":
                notify(f"running on the host: {opened.machine.no_gpu}")
            self.runner: Runner = HostRunner(self.work, team=self.team)
        else:
            from rawnn.engine.runners.gpu import GpuRunner

            self.runner = runner = GpuRunner(opened.device, self.work, self.team)
            self.work = runner.work
        self._closing.callback(self.runner.close)
        self._resolved_options = resolve_options(config.opt, self.selection, self.work,
                                                 opened.machine)
        self.resumed = 0
        self.facts: dict[str, Any] = {}  # what listeners keep in checkpoints
        self.unsaved: CheckpointError | None = None
        self.lineage: Lineage = ((uuid4().hex[:16], 0),)
        if before is not None:
            self._resume(before.path, before.checkpoint)
        if other and self.facts.pop(EARLY_STOPPING, None):
            notify("early stopping begins anew: what was best before was so on other data")
        self._scaling_facts: dict[str, float] = {}
        if self.team is not None and opened.device and not opened.device.backend.caution:
            said, self._scaling_facts = parallel.predict_scaling(self.team,
                                                                 *runner.time_without_collectives())
            notify(said)
            if self._scaling_facts["compute_us"] < parallel.SHORT_US:
                said, found = parallel.compare_with_one_rank(self.team, runner.timed(), lambda: (
                    parallel.time_one_rank(opened,
                                           planner.for_one_rank(self.selection, self.work))))
                self._scaling_facts |= found
                if said:
                    notify(said)
        self._setup_ms = (perf_counter() - started) * 1e3

    def _resume(self, file: Path, found: Checkpoint) -> None:
        self.load(found, os.fspath(file))
        if self.team is not None:
            self.team.compare("the checkpoint", parallel.state_facts(self.runner.state()))
        self.resumed, self.facts = found.epoch, dict(found.facts)
        self.lineage = (*found.lineage, (self.lineage[0][0], found.epoch))
        for sentence in what_continues(file, found, self.config.epochs, self.data.name):
            self.listener.notify(sentence)

    # -- what listeners may ask for ---------------------------------------------------------------
    def lock(self, directory: str | os.PathLike[str]) -> bool:
        """Keep other runs from writing to a directory until this one is closed, and return whether
        they are kept from it. A second call for it does nothing; rank 0 does so for all ranks.
        Raises ConfigError where another run writes there."""
        if self.team is not None and self.team.rank:
            return False
        return self._locks.hold(directory, self.listener.notify)

    def stop(self, reason: str) -> None:
        """End the run after this epoch; `reason` goes into the result."""
        self.stopped = reason

    def stop_unsaved(self, error: CheckpointError, directory: str | os.PathLike[str]) -> None:
        """End the run after this epoch as its state could not be kept. `unsaved` then says so."""
        if self.unsaved is None:
            self.unsaved = CheckpointError(f"{error}; {how_to_continue(directory)}")
            self.stop("a checkpoint could not be written")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Wait for the device, and leave out of the training time what is done within."""
        with self._loop.paused():
            yield

    def checkpoint(self, epoch: int) -> Checkpoint:
        """All that is needed to go on from here; `epoch` epochs are done."""
        state, network = self.runner.state(), self.work.network
        names = [tensor.name for tensor in network.parameters()]
        config = msgspec.to_builtins(replace(self.config, resume=None))
        if self._is_callers_data:  # nobody could load it by these
            config = {k: v for k, v in config.items() if k not in ("dataset", "data", "target")}
        return Checkpoint(
            network, {name: state.pop(name) for name in names}, epoch, state, config,
            self.data.normalisation, self.data.label_names,
            {**self.facts, "dataset": self.data.name, "features": self.data.feature_names,
             **({"targets": self.data.target_names} if self.data.target_names else {})},
            self._resolved_options.plain(), self._record, self.lineage,
            self.data.target_normalisation, self.data.label_dtype, self.data.autoencoder)

    @property
    def sharding(self) -> str:
        """Of the persistent kernel that trains, in full; "" where none does."""
        return self._resolved_options.sharding

    @cached_property
    def _record(self) -> dict[str, Any]:
        return record_of(self.data, self._is_callers_data)

    def restore(self, state: State) -> None:
        """Replace parameters and state by what `runner.state()` gave before."""
        self.runner.load(state)
        self._loop.stale = True

    def load(self, checkpoint: Checkpoint, where: str) -> None:
        """Take parameters and state from a checkpoint. Raises CheckpointError if it is of another
        network or optimizer."""
        self.runner.load(state_of(checkpoint, self.work.network, self.runner.state(),
                                  self.work.updates, self.config.optimizer, where))

    # -- running ----------------------------------------------------------------------------------
    def run(self) -> Result:
        """Train all epochs and return the result.

        In the main thread SIGINT (Ctrl-C), SIGTERM and SIGHUP, unless the process handles them
        itself, end the run after the epoch in hand; a second one, or 20 s, at once, with the
        parameters that the last epoch left, or in the first those in its midst. `signal` then holds
        its number, and the result is marked `interrupted`. What a GPU has been given already is
        waited for.
        """
        self._loop = loop = Loop(self)
        former = self.facts.get(EARLY_STOPPING)
        self.listener.started(self)
        if former is not None and self.facts.get(EARLY_STOPPING) is former:
            del self.facts[EARLY_STOPPING]  # of the run before: this one does not stop early
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
            recipe = self.work.recipe
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
            target_normalisation=self.data.target_normalisation,
            label_dtype=self.data.label_dtype,
            autoencoder=self.data.autoencoder,
            normalisation=self.data.normalisation,
            parameters=self.runner.parameters(),
        )
