"""The ladder: the same training with one optimization more at every rung.

Rungs are interleaved (every rung once, then every rung again, ...), so that a machine that warms
up or slows down during the measurement does so for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import msgspec

from rawnn.bench.accuracy import Oracle
from rawnn.bench.clocks import ManagedGpu
from rawnn.bench.conditions import Conditions, Watch, unslowed
from rawnn.bench.footprint import Footprint, footprint
from rawnn.bench.records import (
    LadderResult,
    Run,
    Rung,
    place_of,
    timer_of,
    toggle_words,
)
from rawnn.bench.rounds import Rounds
from rawnn.bench.suites import read_suites
from rawnn.common.errors import ConfigError, MissingLibrary, RawnnError, nearest
from rawnn.data import Dataset, load_dataset
from rawnn.engine.config import Config
from rawnn.engine.data_source import check_fit, settled
from rawnn.engine.machine import Opened, open_device
from rawnn.engine.result import Result
from rawnn.engine.training import Listener, Session
from rawnn.opts import TOGGLES
from rawnn.opts.presets import PRESETS
from rawnn.opts.user_kernel_toggles import is_op, toggle

_SUITE = read_suites().ladder
BASE = tuple(_SUITE.base)
"""The report keeps its data and its buffers on the GPU before it starts its clock."""

DEFAULT_RUNGS = tuple(_SUITE.rungs)
BASELINE = "baseline"


@dataclass(frozen=True)
class Progress:
    """Where a ladder stands: `done` of `total` runs, the last of them `rung` of `repeat` (from 0),
    and everything found so far."""

    done: int
    total: int
    repeat: int
    rung: str
    result: LadderResult


@dataclass
class _Step:
    """A rung being measured. `words` are the toggles that it adds."""

    name: str
    words: tuple[str, ...]
    rung: Rung
    runs: list[Run] = field(default_factory=list)


def run_ladder(config: Config, repeats: int = 5, rungs: Sequence[str] = DEFAULT_RUNGS,
               on_progress: Callable[[Progress], None] = lambda progress: None, *,
               notify: Callable[[str], None] = lambda message: None,
               data: Dataset | None = None, oracle: Oracle | None = None,
               base: Sequence[str] = BASE, budget: float = math.inf) -> LadderResult:
    """Measure every rung `repeats` times, interleaved, on one opened device.

    Repeat r trains every rung with seed `config.seed` + r. `rungs` are toggles as after --opt, each
    added to those of the rungs before; one rung may add several ("fuse+cublas"); a preset ("best")
    replaces them. The baseline, of the toggles `base`, is always run first; `config.opt` plays no
    part. What a rung adds is not carried on to later rungs where this rung cannot run. All rungs
    are run once more only where that is expected to end within `budget` seconds: `repeats` of the
    result then says how often they were.

    A rung that fails or cannot run is recorded with the reason and the others go on; Ctrl-C ends
    the ladder, which is returned as far as it got. Raises ConfigError for rungs that do not exist,
    DataError, DeviceError.
    """
    check_rungs(rungs)
    if repeats < 1:
        raise ConfigError(f"repeats = {repeats}: a ladder needs at least 1")
    data = data or load_dataset(config.dataset, config.data, notify=notify)
    check_fit(config, data)
    config, _ = settled(config, data)
    opened = open_device(config.device, notify)
    with opened:
        ladder = _Ladder(config, repeats, rungs, data, opened, oracle, notify, base, budget)
        ladder.run(on_progress)
        return ladder.result()


def check_rungs(rungs: Sequence[str]) -> None:
    """Raise ConfigError unless every rung names toggles or presets, with valid values."""
    for rung in rungs:
        check_words(rung.split("+"), f"the rung '{rung}'")


def check_words(words: Sequence[str], where: str) -> None:
    """Raise ConfigError unless each word is a toggle or preset, with a valid value; `where` they
    stand is said."""
    for word in words:
        name, _, value = word.strip().removeprefix("-").partition("=")
        if not name or (name in PRESETS and not value):
            continue
        if name not in TOGGLES and not is_op(name):
            known = (*TOGGLES, *PRESETS)
            raise ConfigError(f"{where}: no toggle is called '{name}'" + (
                nearest(name, known) or f"; the toggles are {', '.join(known)}"))
        if not word.startswith("-"):
            toggle(name).parse(value if "=" in word else None)


def climb(words: Sequence[str], added: Sequence[str]) -> tuple[str, ...]:
    """The toggles of a rung: those of the rung before it and what it adds."""
    now = list(words)
    for word in added:
        name = word.removeprefix("-").partition("=")[0]
        if word in PRESETS:
            now = [word]
            continue
        known = [w for w in now if w.partition("=")[0] == name]
        now = [w for w in now if w not in known]
        if not word.startswith("-") or not known:
            now.append(word)
    return tuple(now)


def _opt(words: Sequence[str]) -> str:
    """The toggles of a rung as after --opt, and nothing else."""
    return ",".join(words if words and words[0] in PRESETS else ("none", *words))


class _Ladder:
    def __init__(self, config: Config, repeats: int, rungs: Sequence[str], data: Dataset,
                 opened: Opened, oracle: Oracle | None, notify: Callable[[str], None],
                 on: Sequence[str], budget: float) -> None:
        self._rounds = Rounds(repeats, budget)
        self._repeats, self._data, self._opened, self._oracle = repeats, data, opened, oracle
        self._listener = _Quiet(notify)
        self._notes: list[str] = []
        self._interrupted = False
        self._libraries: dict[str, str] = {}
        base = tuple(on)
        steps = [(name, tuple(name.split("+"))) for name in rungs]
        self._gpu, self._watch = ManagedGpu.of(opened), Watch.of(opened)
        if opened.device is None:
            base = tuple(w for w in base if _on_host(w))
            left_out = [name for name, words in steps if not all(map(_on_host, words))]
            steps = [(name, words) for name, words in steps if name not in left_out]
            config = replace(config, device="host")
            self._notes.append(f"measured on the host: {opened.machine.gpu}")
            if left_out:
                self._notes.append(f"rungs that mean nothing on the host are left out: "
                                   f"{', '.join(left_out)}")
        self._base = base
        self._config = replace(config, opt=_opt(base))
        self._environment = place_of(opened)
        self._steps = [_Step(BASELINE, (), Rung(name=BASELINE, opt=_opt(base)))]
        words = base
        for name, added in steps:
            words = climb(words, added)
            self._steps.append(_Step(name, added, Rung(name=name, opt=_opt(words))))

    def run(self, on_progress: Callable[[Progress], None]) -> None:
        total, done = self._repeats * len(self._steps), 0
        try:
            for repeat in self._rounds:
                words = self._base
                for step in self._steps:
                    if repeat == 0:
                        # What failed here is not carried on: one missing library must not take
                        # all later rungs with it.
                        wanted = climb(words, step.words)
                        step.rung = msgspec.structs.replace(step.rung, opt=_opt(wanted))
                    self._measure(step, repeat)
                    if repeat == 0 and step.rung.status == "measured":
                        words = wanted
                    if self._interrupted:
                        return
                    done += 1
                    on_progress(Progress(done, total, repeat, step.name, self._so_far()))
        except KeyboardInterrupt:
            self._interrupted = True

    def _measure(self, step: _Step, repeat: int) -> None:
        """Run a rung once more, unless it could not run before."""
        if step.rung.status != "measured":
            return
        config = replace(self._config, opt=step.rung.opt, seed=self._config.seed + repeat)
        try:
            (result, print_), conditions = unslowed(lambda: self._train(config))
        except (ConfigError, MissingLibrary) as error:
            step.rung = msgspec.structs.replace(step.rung, status="unavailable", reason=str(error))
            return
        except RawnnError as error:
            step.rung = msgspec.structs.replace(step.rung, status="failed", reason=str(error))
            return
        if result.interrupted:
            self._interrupted = True
            return
        sample = self._gpu.sample()
        step.runs.append(Run.of(repeat, result, sample, conditions))
        self._libraries.update(result.environment.libraries)
        step.rung = msgspec.structs.replace(
            step.rung.with_runs(step.runs, self._oracle), notes=result.notes,
            toggles=toggle_words(result), footprint=print_)

    def _train(self, config: Config) -> tuple[tuple[Result, Footprint], Conditions | None]:
        """A run, what a step of it moves, and under which conditions it was."""
        try:
            with Session(config, self._listener, data=self._data, opened=self._opened) as session:
                with self._watch.during() as seen:
                    result = session.run()
                print_ = footprint(session.work, result.facts, self._opened)
        except RawnnError:
            with suppress(RawnnError):  # the first failure is the one to tell of
                self._release()
            raise
        self._release()
        return (result, print_), seen.conditions

    def _release(self) -> None:
        """Start the next run with empty device memory and a peak of its own."""
        if self._opened.device:
            memory = self._opened.device.memory
            memory.reset_peak()

    def _so_far(self) -> LadderResult:
        """What is kept meanwhile: should the process be killed, it was interrupted there."""
        return msgspec.structs.replace(self.result(), interrupted=True)

    def result(self) -> LadderResult:
        libraries = {**self._environment.libraries, **self._libraries}
        return LadderResult(
            config=self._config, repeats=self._rounds.repeats,
            environment=replace(self._environment, libraries=libraries),
            dataset=self._data.name, data_source=self._data.source,
            synthetic=self._data.synthetic,
            timer=timer_of(self._opened), notes=self._notes,
            oracle=self._oracle, rungs=[step.rung for step in self._steps],
            interrupted=self._interrupted,
        )


def _on_host(word: str) -> bool:
    """Whether a toggle or preset means anything where there is no GPU."""
    name = word.removeprefix("-").partition("=")[0]
    return TOGGLES[name].host if name in TOGGLES else name in ("best", "none")


class _Quiet(Listener):
    """Passes each different message on once, not at every run."""

    reads = False

    def __init__(self, notify: Callable[[str], None]) -> None:
        self._notify, self._said = notify, set[str]()

    def notify(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            self._notify(message)
