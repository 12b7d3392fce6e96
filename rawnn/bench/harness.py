"""The one way in which variants are measured: in interleaved rounds, each variant once, then each
again, so that a machine that warms up or slows down does so for all of them.

What was measured is in the results file after every sample. Ctrl-C ends a measurement and keeps
what there is; a file that is resumed keeps what it has, and only what it lacks is measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from time import monotonic
from typing import TYPE_CHECKING

from rawnn.bench.conditions import Conditions, Watch
from rawnn.bench.record import (
    UNSTEADY,
    Record,
    Results,
    Status,
    Value,
    records_of,
)
from rawnn.common.errors import ConfigError, MissingLibrary, RawnnError
from rawnn.common.files import check_output
from rawnn.common.locks import file_lock
from rawnn.cuda.device import Device
from rawnn.engine.config import check_device
from rawnn.engine.machine import Opened, open_device
from rawnn.engine.result import Environment, environment
from rawnn.opts.precision_names import precision_of

if TYPE_CHECKING:
    from rawnn.bench.peers.worker import Timed

INTERRUPTED = "it was interrupted"
CUT_OFF = "it was cut off while it measured"
"""What a file says of a suite whose process was killed."""

Notify = Callable[[str], None]


@dataclass(frozen=True)
class Sample:
    """What one turn of a variant gave: one value or several of each of `metrics`, values that are
    the same in every turn (`facts`), sentences, and what NVML read meanwhile (`conditions`)."""

    metrics: Mapping[str, float | Sequence[float]]
    facts: Mapping[str, float | None] = field(default_factory=dict)
    notes: Sequence[str] = ()
    conditions: Conditions | None = None
    libraries: Mapping[str, str] = field(default_factory=dict)


@dataclass(eq=False)
class Variant:
    """One thing that is measured: what identifies its records, and what takes a sample of it.

    `take` is called with the number of the round. `metric` is the one that a record of it has even
    where there is no sample. A variant with a `status` other than "not measured" and "measured"
    takes no more turns; `reason` says why.
    """

    case: str
    name: str
    precision: str
    metric: str
    conditions: Mapping[str, Value]
    take: Callable[[int], Sample]
    status: Status = "not measured"
    reason: str = ""
    notes: list[str] = field(default_factory=list)
    samples: dict[str, list[float]] = field(default_factory=dict)
    readings: dict[str, list[Sequence[float]]] = field(default_factory=dict)
    facts: dict[str, float] = field(default_factory=dict)
    environment: str = ""
    turns: int = 0
    seconds: float = 0.0

    @property
    def is_usable(self) -> bool:
        return self.status in ("not measured", "measured")

    def refuse(self, status: Status, reason: str) -> None:
        """Take no more samples of it."""
        self.status, self.reason = status, reason

    def add(self, sample: Sample) -> None:
        """Keep what a turn gave."""
        for name, value in sample.metrics.items():
            self.samples.setdefault(name, []).extend(
                [float(value)] if isinstance(value, int | float) else map(float, value))
        self.facts |= {name: float(v) for name, v in sample.facts.items() if v is not None}
        self.notes += [note for note in sample.notes if note not in self.notes]
        if sample.conditions is not None:
            self._add_conditions(sample.conditions)
        self.turns += 1
        self.status = "measured"

    def _add_conditions(self, observed: Conditions) -> None:
        for name, now in observed.readings.items():
            earlier = [self.samples[name]] if name in self.samples else []
            self.readings.setdefault(name, [*earlier]).append(now)
            low, middle, high = zip(*self.readings[name], strict=True)
            self.samples[name] = [min(low), median(middle), max(high)]
        if observed.energy_j is not None:
            self.samples.setdefault("energy_j", []).append(observed.energy_j)
            self.samples.setdefault("seconds", []).append(observed.seconds)
        if observed.throttled:
            note = f"ran on a slowed-down GPU ({', '.join(observed.throttled)}), even when it " \
                   "was run again"
            self.notes += [note] * (note not in self.notes)

    def records(self) -> list[Record]:
        """Its records, that of the main metric first."""
        return list(records_of(
            self.case, self.name, {self.metric: [], **self.samples, **self.facts},
            precision=self.precision, conditions=self.conditions, status=self.status,
            reason=self.reason, notes=self.notes, environment=self.environment))

    def resume(self, records: Sequence[Record]) -> None:
        """Go on from what a file has of it."""
        main = records[0]
        self.status, self.reason, self.notes = main.status, main.reason, list(main.notes)
        self.samples = {r.metric: list(r.samples) for r in records if r.samples}
        self.turns, self.environment = len(main.samples), main.environment


class Harness:
    """The measurement of one suite. Use as a context manager: it holds the lock on the results file
    and the device, and writes the file when it ends. `watch` and `environment` are set by `open`,
    the latter alone by `stand`."""

    watch: Watch
    environment: Environment

    def __init__(self, suite: str, path: str | None = None, earlier: Results | None = None,
                 budget: float = math.inf, notify: Notify = lambda message: None,
                 progress: Callable[[int, int, int, str], None] = lambda *now: None,
                 echo: Callable[[str], object] = print) -> None:
        """`path` is the file that is written, `earlier` what it holds. `progress` gets how many of
        how many samples are taken, in how many rounds they come, and the last variant; `echo`
        prints what is found meanwhile."""
        self.suite, self.results = suite, earlier or Results()
        self.notify, self.progress, self.echo = notify, progress, echo
        self.budget = budget
        self.interrupted = False
        self._path, self._begun = path, monotonic()
        self._resumes = earlier is not None
        self._closing = ExitStack()
        self._unwritten: RawnnError | None = None

    def __enter__(self) -> Harness:
        check_output("--json", self._path)
        if self._path is not None:
            self._closing.enter_context(file_lock(self._path, self.notify))
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.close()

    # -- where it is measured ----------------------------------------------------------------------
    def open(self, device: str, timer: Mapping[str, str]) -> Opened:
        """Open the device to measure on, until the end; `timer` says what times cover. Raises
        DeviceError, and ConfigError for what names no device, and where the resumed file is of
        another machine or commit."""
        check_device(device)
        opened = open_device(device, self.notify)
        self._closing.enter_context(opened)
        self.watch = Watch.of(opened)
        self.stand(place_of(opened, timer))
        return opened

    def stand(self, place: Environment) -> None:
        """Measure in this environment. Raises ConfigError as `open` does."""
        if self._resumes:
            for record in self.results.where(self.suite):
                before = self.results.place(record)
                if before.place != place.place:
                    raise ConfigError(
                        f"the file to be resumed was measured on {before.machine} at commit "
                        f"{before.commit[:7] or 'unknown'}, and this is {place.machine} at commit "
                        f"{place.commit[:7] or 'unknown'}: name another file")
        self.environment = place
        self.results.environments[place.key] = place

    # -- time --------------------------------------------------------------------------------------
    @property
    def left(self) -> float:
        """Seconds of the budget that are left."""
        return self.budget - (monotonic() - self._begun)

    # -- records -----------------------------------------------------------------------------------
    def store(self, records: Iterable[Record]) -> None:
        """Put records into the results, and write the file. Where that fails (a full disk) it is
        said once, and tried again with the next records."""
        self.results.update(records)
        before, self._unwritten = self._unwritten, None
        if self._path is None:
            return
        try:
            self.results.write(self._path)
        except RawnnError as error:
            self._unwritten = error
            if before is None:
                self.notify(f"{error}; going on, to be tried again")

    def end(self, why: str = "") -> None:
        """Write how the suite ended: `why` early, by Ctrl-C, or whole."""
        why = why or (INTERRUPTED if self.interrupted else "")
        self.results.ended.pop(self.suite, None)
        if why:
            self.results.ended[self.suite] = why
        self.store(())

    def check(self) -> None:
        """Raise RawnnError where the file could not be written, KeyboardInterrupt where Ctrl-C
        ended it: to be called when all has been printed."""
        if self._unwritten is not None:
            raise self._unwritten
        if self.interrupted:
            raise KeyboardInterrupt

    # -- measuring ---------------------------------------------------------------------------------
    def ask(self, variants: Sequence[Variant]) -> None:
        """Say in the file what is to be measured; variants go on from what it has of them."""
        known: dict[tuple[object, ...], list[Record]] = {}
        for record in self.results.where(self.suite):
            known.setdefault(record.program, []).append(record)
        for variant in variants:
            variant.environment = self.environment.key
            before = known.get(variant.records()[0].program)
            if before and before[0].samples and before[0].status == "measured":
                variant.resume(before)
        self.results.ended[self.suite] = CUT_OFF
        self.store(record for variant in variants for record in variant.records())

    def interleave(self, variants: Sequence[Variant], rounds: int, *,
                   whole_rounds: bool = False, is_budgeted: bool = True,
                   on_sample: Callable[[Variant, int, int], None] | None = None,
                   is_skipped: Callable[[Variant], bool] = lambda variant: False) -> None:
        """Take `rounds` samples of each variant, in turns. Behind the first round none is taken
        that is not expected to end within the budget; with `whole_rounds` no round is begun then.
        One that `is_skipped` takes no turn behind its first. What a variant raises ends that
        variant only. `on_sample` gets each with how many of how many are taken; by default it is
        written to the file and shown as progress. Ctrl-C ends it, and sets `interrupted`."""
        total = sum(max(rounds - v.turns, 0) for v in variants if v.is_usable)
        done = 0
        try:
            for number in range(rounds):
                needed = sum(v.seconds for v in variants if v.is_usable) if whole_rounds else 0.0
                if number and is_budgeted and whole_rounds and self.left < needed:
                    return
                for variant in variants:
                    if not variant.is_usable or variant.turns > number:
                        continue
                    if number and is_budgeted and not whole_rounds and self.left < variant.seconds:
                        continue  # others may take less
                    if number and is_skipped(variant):
                        continue
                    self._once(variant, number)
                    done += 1
                    if on_sample is not None:
                        on_sample(variant, done, total)
                    else:
                        self.store(variant.records())
                        self.progress(done, total, rounds, f"{variant.case} {variant.name}")
        except KeyboardInterrupt:
            self.interrupted = True

    def _once(self, variant: Variant, number: int) -> None:
        """One more sample; a second try where the GPU slowed down meanwhile."""
        begun = monotonic()
        try:
            sample = variant.take(number)
            if sample.conditions is not None and sample.conditions.throttled:
                sample = variant.take(number)
        except (ConfigError, MissingLibrary) as error:
            variant.refuse("unavailable", str(error))
        except RawnnError as error:
            variant.refuse("failed", str(error))
        else:
            variant.add(sample)
            self.environment.libraries.update(sample.libraries)
        variant.seconds = monotonic() - begun


def sample_of(timed: Timed, steps: int, conditions: Conditions | None, *metrics: str,
              libraries: Mapping[str, str] | None = None) -> Sample:
    """What timing a program gave: microseconds a step, of so many `steps` an epoch; and
    milliseconds of an epoch where `metrics` names them."""
    values = {"epoch_ms": timed.milliseconds,
              "step_us": [ms * 1e3 / steps for ms in timed.milliseconds]}
    return Sample({name: values[name] for name in (*metrics, "step_us")},
                  notes=[] if timed.steady else [UNSTEADY], conditions=conditions,
                  libraries=libraries or {})


def place_of(opened: Opened, timer: Mapping[str, str] | None = None) -> Environment:
    """Where it is measured; libraries are added as runs use them."""
    device = opened.device
    return environment(device.backend.name if device else "host",
                       asdict(device.info) if device else None, {}, timer)


def require_gpu(opened: Opened, what: str) -> Device:
    """The GPU that was opened. Raises ConfigError where `what` needs one and there is none."""
    if opened.device is None:
        raise ConfigError(f"{what} on a GPU only: {opened.machine.no_gpu}")
    return opened.device


def precision_name(opt: str) -> str:
    """The precision that toggles ask for."""
    return precision_of(opt.split(",")) or "float32"


def resumed(path: str | None) -> bool:
    """Whether there is a file to go on with."""
    return bool(path) and Path(str(path)).exists()
