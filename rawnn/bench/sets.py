"""Built-in workloads trained with sets of toggles: time, accuracy, device memory.

Sets are interleaved (each once, then each again, ...), so that a machine that warms up or slows
down during the measurement does so for all of them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Literal

import msgspec

from rawnn.bench.clocks import ClockSample, ManagedGpu, summarize
from rawnn.bench.columns import WHY, markdown_table
from rawnn.bench.conditions import Conditions, Watch, joules, merged, slowed, unslowed
from rawnn.bench.footprint import Footprint, footprint, traffic, x_floor
from rawnn.bench.ladder import check_words
from rawnn.bench.measured import Measured, read_measured
from rawnn.bench.records import place_of, timer_of, toggle_words
from rawnn.bench.rounds import Rounds
from rawnn.bench.statistics import Spread, mean_std, runs_text, spread, with_deviation
from rawnn.common.errors import CompileError, ConfigError, RawnnError
from rawnn.data import Dataset, load_dataset
from rawnn.engine.config import Config
from rawnn.engine.data_source import check_fit, settled
from rawnn.engine.machine import Opened, open_device
from rawnn.engine.result import Environment, Result
from rawnn.engine.run_planner import RunPlanner
from rawnn.engine.runners.precompile import precompile
from rawnn.engine.runners.prepared_run import PreparedRun
from rawnn.engine.training import Listener, Session
from rawnn.model.workloads import workload
from rawnn.opts import TOGGLES
from rawnn.opts.precision_names import PRECISIONS

HEADINGS = ("workload", "toggles", "µs/step", "ms/epoch", "x floor", *WHY, "test accuracy",
            "device memory")

EMULATED = frozenset(word.partition("=")[0] for word in PRECISIONS)
"""Number formats, whose rounding NumPy carries out beside the arithmetic of float32."""

Kind = Literal["workloads", "toggles", "ablation"]
WorkloadSet = tuple[str, str]
"""A workload's name, and toggles as after --opt."""


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One workload with one set of toggles, trained for `epochs`.

    `us` is the time of a step in microseconds, `epoch_ms` of an epoch in milliseconds, both by the
    clock that the result's `timer` describes, and `times_ms` those of each run; `evaluation_ms` of
    one pass over the test set by the wall clock. `reason` says why it could not be run, or not
    again.
    """

    workload: str
    opt: str
    epochs: int
    toggles: list[str] = []
    notes: list[str] = []
    steps: int = 0
    us: Spread | None = None
    epoch_ms: Spread | None = None
    times_ms: list[float] = []
    evaluation_ms: Spread | None = None
    accuracies: list[float] = []
    peak_memory_bytes: int = 0
    clocks: dict[str, Spread] = {}
    conditions: Conditions | None = None
    footprint: Footprint | None = None
    reason: str = ""

    def cells(self) -> list[str]:
        """Its row of the table."""
        if self.reason or self.us is None or self.epoch_ms is None:
            return [self.workload, self.opt, "-", "-", "", *[""] * len(WHY),
                    self.reason or "not measured", "-"]
        return [self.workload, self.opt,
                with_deviation(self.us.median, self.us.mad, self.us.n, digits=2),
                f"{self.epoch_ms.median:.2f}", x_floor(self.us.median, self.footprint),
                *traffic(self.footprint),
                joules(self.conditions, self.epochs * len(self.accuracies)),
                self.accuracy(), self.memory()]

    def accuracy(self) -> str:
        """Mean and standard deviation of the test accuracy."""
        return with_deviation(*mean_std(self.accuracies), len(self.accuracies))

    def memory(self) -> str:
        """The most device memory that was held at once."""
        return f"{self.peak_memory_bytes / 2**20:.0f} MiB"


SCHEMA_VERSION = 2


class SetsResult(Measured, frozen=True, kw_only=True):
    """Every measurement of `rawnn bench workloads` or `rawnn bench toggles`, and where it was
    made. `interrupted` says that Ctrl-C ended it early: some sets then have fewer than `repeats`
    runs, or none. `sittings` is more than one where it was gone on with: sets of one sitting are
    interleaved with each other, not with those of another."""

    kind: Kind
    schema_version: int = SCHEMA_VERSION
    repeats: int
    environment: Environment
    dataset: str
    synthetic: bool
    timer: dict[str, str]
    measurements: list[Measurement]
    interrupted: bool = False
    sittings: int = 1

    def markdown(self) -> str:
        """The table in Markdown, with its provenance below."""
        rows = [[f"`{name}`", f"`{opt}`", *figures]
                for name, opt, *figures in (m.cells() for m in self.measurements)]
        lines = markdown_table(HEADINGS, rows, ("workload", "toggles"))
        return "\n".join([*lines, "", self.provenance(), ""])

    def machine(self) -> str:
        """What it was measured on."""
        env = self.environment
        if env.device == "sim":
            return "a SIMULATED GPU, whose times say nothing about a real one"
        return f"{env.gpu['name']}, driver {env.gpu['driver']}, CUDA {env.gpu['cuda']}" \
            if env.gpu else f"host ({env.platform}), by the wall clock"

    def provenance(self) -> str:
        """Where, when and how it was measured."""
        counts = {len(m.accuracies) for m in self.measurements} - {0}
        runs, several = runs_text(counts), max(counts, default=0) > 1
        slow = "".join(f"; {m.workload} {m.opt} {why}" for m in self.measurements
                       if (why := slowed(m.conditions)))
        if several:
            runs = runs.replace("medians", "medians and median deviations")
        sittings = f", in {self.sittings} sittings" if self.sittings > 1 else ""
        return (f"{self.machine()}; {runs}{sittings}, seeds from 0, on {self.dataset}; "
                + ("accuracy: mean and standard deviation; " if several else "")
                + f"{self.environment.date}, commit {self.environment.commit or 'unknown'}{slow}")


SETS: Mapping[str, tuple[type[SetsResult], int]] = dict.fromkeys(
    ("workloads", "toggles", "ablation"), (SetsResult, SCHEMA_VERSION))


def read_sets(path: str | os.PathLike[str]) -> SetsResult:
    """Read what `SetsResult.write_json` wrote. Raises ConfigError for anything else."""
    sets: SetsResult = read_measured(path, SETS)
    return sets


@dataclass(frozen=True)
class Progress:
    """Where a measurement stands: `done` of `total` runs, the last of them of `measurement`, which
    is `complete` if that was its last, and everything found so far."""

    done: int
    total: int
    measurement: Measurement
    complete: bool
    result: SetsResult


def run_sets(kind: Kind, sets: Sequence[WorkloadSet], repeats: int = 3,
             epochs: int | Mapping[str, int] | None = None, device: str = "auto",
             dataset: str = "mnist", *,
             notify: Callable[[str], None] = lambda message: None,
             on_progress: Callable[[Progress], None] = lambda progress: None,
             opened: Opened | None = None,
             data: Dataset | None = None, stand_in: bool = False,
             budget: float = math.inf, earlier: SetsResult | None = None) -> SetsResult:
    """Train each workload with its set of toggles, `repeats` times with seeds 0, 1, ..., on one
    opened device, interleaved: on `opened`, which is left open, if that is given. `epochs` are the
    workload's own unless given: for all workloads, or by name, with `others` for those that are not
    named. `stand_in` is explained at `load_dataset`. All sets are run once; a set is run once more
    only where that is expected to end within `budget` seconds, so that quick ones may be run more
    often than others: `repeats` of the result then says how often any was.

    `on_progress` hears everything found so far after each run. A set that cannot run is kept with
    the reason; Ctrl-C ends the measurement, which is returned as far as it got. Raises ConfigError
    for unknown names, DataError, DeviceError.
    """
    if repeats < 1 or not sets:
        raise ConfigError(f"repeats = {repeats} of {len(sets)} sets: there is nothing to measure")
    for _, opt in sets:
        check_words(opt.split(","), f"--opt {opt}")
    series = [_Series(name, opt, _config(name, opt, _epochs(epochs, name), device, dataset))
              for name, opt in sets]
    data = data or load_dataset(dataset, notify=notify, stand_in=stand_in)
    for each in series:
        check_fit(each.config, data)
    own = opened is None
    opened = opened or open_device(device, notify)
    if opened.device is None:
        for each in series:
            each.config = replace(each.config, device="host")  # which leaves no toggle out
            each.reason = _not_on_host(kind, each.opt)
    try:
        measuring = _Sets(kind, series, repeats, data, opened, budget)
        if earlier is not None:
            measuring.go_on_from(earlier, notify)
        return measuring.run(on_progress)
    finally:
        if own:
            opened.close()


def _not_on_host(kind: Kind, opt: str) -> str:
    """Why a set says nothing where there is no GPU; "" where it does."""
    names = [name for word in opt.split(",") if word[:1] != "-"
             for name in [word.partition("=")[0]] if name in TOGGLES]
    if gpu := [name for name in names if not TOGGLES[name].host]:
        return f"only for a GPU: {', '.join(gpu)}"
    if kind == "toggles" and (emulated := [name for name in names if name in EMULATED]):
        return f"the host only emulates {', '.join(emulated)}: its time says nothing"
    return ""


def _epochs(asked: int | Mapping[str, int] | None, name: str) -> int | None:
    """The epochs that a workload is asked for, None for its own."""
    if asked is None or isinstance(asked, int):
        return asked
    return asked.get(name, asked.get("others"))


def _config(name: str, opt: str, epochs: int | None, device: str, dataset: str) -> Config:
    values = {**workload(name), "opt": opt, "device": device, "dataset": dataset}
    return Config(**(values if epochs is None else {**values, "epochs": epochs}))


@dataclass(eq=False)
class _Series:
    """A set being measured. `seconds` is what its last run took, making ready included; `kept` was
    measured before."""

    workload: str
    opt: str
    config: Config
    runs: list[Result] = field(default_factory=list)
    clocks: list[ClockSample | None] = field(default_factory=list)
    conditions: list[Conditions] = field(default_factory=list)
    footprint: Footprint | None = None
    steps: int = 0
    seconds: float = 0.0
    reason: str = ""
    kept: Measurement | None = None

    def measurement(self) -> Measurement:
        if self.kept is not None:
            return self.kept
        found = Measurement(workload=self.workload, opt=self.opt, epochs=self.config.epochs,
                            reason=self.reason)
        runs = self.runs
        if not runs:
            return found
        times = [r.average_epoch_ms for r in runs]
        return msgspec.structs.replace(
            found, toggles=toggle_words(runs[-1]), notes=runs[-1].notes, steps=self.steps,
            us=spread([t * 1e3 / self.steps for t in times]), epoch_ms=spread(times),
            times_ms=times,
            evaluation_ms=spread([r.times.evaluation / max(len(r.history), 1) for r in runs]),
            accuracies=[r.test_accuracy for r in runs],
            peak_memory_bytes=max(r.peak_memory_bytes for r in runs),
            clocks=summarize(self.clocks), conditions=merged(self.conditions),
            footprint=self.footprint)


class _Sets:
    def __init__(self, kind: Kind, series: Sequence[_Series], repeats: int, data: Dataset,
                 opened: Opened, budget: float) -> None:
        self._kind, self._series, self._repeats = kind, series, repeats
        self._data, self._opened = data, opened
        self._gpu, self._environment = ManagedGpu.of(opened), place_of(opened)
        self._watch = Watch.of(opened)
        self._interrupted = False
        self._rounds, self._sittings = Rounds(repeats, budget), 1

    def go_on_from(self, earlier: SetsResult, notify: Callable[[str], None]) -> None:
        """Keep what a file has, where that can stand beside what is measured now."""
        def place(result: SetsResult) -> tuple[object, ...]:
            env = result.environment
            return (result.kind, result.dataset, env.commit, env.device,
                    env.gpu and (env.gpu["name"], env.gpu["driver"]))

        if place(earlier) != place(self.result()):
            notify("nothing is taken from before: another commit, GPU, driver or data set")
            return
        known = {(m.workload, m.opt, m.epochs): m for m in earlier.measurements if m.times_ms}
        for series in self._series:
            series.kept = known.get((series.workload, series.opt, series.config.epochs))
        if count := sum(s.kept is not None for s in self._series):
            self._sittings = earlier.sittings + 1
            self._environment.libraries.update(earlier.environment.libraries)
            notify(f"{count} of {len(self._series)} sets were measured before")

    def run(self, on_progress: Callable[[Progress], None]) -> SetsResult:
        left = [series for series in self._series if series.kept is None]
        total, done = self._repeats * len(left), 0
        try:
            for series in self._series:
                if series.kept is not None:
                    on_progress(Progress(0, total, series.kept, True, self._so_far()))
            self._compile(left)
            waiting = list(left)  # for the last of their runs
            for repeat in range(self._repeats):
                ran = False
                for series in left:
                    if repeat and not self._rounds.room(series.seconds):
                        continue  # others may take less
                    self._once_more(series, repeat)
                    if self._interrupted:
                        return self.result()
                    ran, done = True, done + 1
                    if complete := repeat == self._repeats - 1:
                        waiting.remove(series)
                    on_progress(Progress(done, total, series.measurement(), complete,
                                         self._so_far()))
                if not ran:
                    break
            if waiting:  # the budget is spent: what was measured is all there is
                self._repeats = max(len(s.measurement().times_ms) for s in self._series)
            for series in waiting:
                on_progress(Progress(done, done, series.measurement(), True, self.result()))
        except KeyboardInterrupt:
            self._interrupted = True
        return self.result()

    def _compile(self, left: Sequence[_Series]) -> None:
        """Compile what these sets need at once, on all cores. What is wrong with a set is said when
        its turn comes."""
        if self._opened.device is None:
            return
        works = list[PreparedRun]()
        for series in left:
            with suppress(RawnnError):
                config, _ = settled(series.config, self._data)
                works.append(RunPlanner(config, self._data, self._opened, None,
                                        lambda message: None).plan(None)[1])
        with suppress(CompileError):
            precompile(self._opened.device, works)

    def _once_more(self, series: _Series, repeat: int) -> None:
        """Run a set once more, unless it could not run before."""
        if series.reason:
            return
        config, begun = replace(series.config, seed=repeat), monotonic()
        try:
            run, conditions = unslowed(lambda: self._run(series, config))
        except RawnnError as error:
            series.reason = str(error)
            return
        finally:
            series.seconds = monotonic() - begun
        if run.interrupted:
            self._interrupted = True
            return
        series.runs.append(run)
        series.conditions += [conditions] if conditions else []
        series.clocks.append(self._gpu.sample())
        self._environment.libraries.update(run.environment.libraries)

    def _run(self, series: _Series, config: Config) -> tuple[Result, Conditions | None]:
        with Session(config, Listener(), data=self._data, opened=self._opened) as session:
            with self._watch.during() as seen:
                run = session.run()
            series.steps = session.work.updates
            series.footprint = footprint(session.work, run.facts, self._opened)
        return run, seen.conditions

    def _so_far(self) -> SetsResult:
        """What is kept meanwhile: should the process be killed, it was interrupted there."""
        return msgspec.structs.replace(self.result(), interrupted=True)

    def result(self) -> SetsResult:
        return SetsResult(
            kind=self._kind, repeats=self._repeats, environment=self._environment,
            dataset=self._data.name, synthetic=self._data.synthetic,
            timer=timer_of(self._opened),
            measurements=[series.measurement() for series in self._series],
            interrupted=self._interrupted, sittings=self._sittings)
