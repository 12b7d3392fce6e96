"""What any results file of `rawnn bench` holds, as series of times by suite and set.

A suite is what was trained (a workload, a ladder's network, a drawn network), a set is how
(toggles, a peer's form). Files of every kind are read here, so that what compares or draws them
need not know the kinds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from rawnn.bench.footprint import Footprint
from rawnn.bench.peers.records import OURS, ContestsResult
from rawnn.bench.records import LadderResult
from rawnn.bench.statistics import Spread
from rawnn.common.errors import ConfigError
from rawnn.engine.result import Environment


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Repeated measurements of one set of one suite. `times` are in the file's own unit, one a run;
    lower is better. `summarised` says that the file kept only their median and spread, of which
    `times` are made. `host` says that the host launches or computes each step, whose noise is of
    another size than that of a graph on the device; `ours`, that it is rawnn's and not a peer's.
    `reason` says why there are none, or no more."""

    suite: str
    set: str
    times: list[float]
    summarised: bool = False
    host: bool = False
    ours: bool = True
    reason: str = ""


class SeriesFile(msgspec.Struct, frozen=True, kw_only=True):
    """A results file: where it was measured, and its series in order."""

    path: str
    kind: str
    environment: Environment
    dataset: str
    series: list[Series]

    @property
    def machine(self) -> str:
        gpu = self.environment.gpu
        return str(gpu["name"]) if gpu else f"host ({self.environment.platform})"


class _Head(msgspec.Struct):
    kind: str


def read_series(path: str | os.PathLike[str]) -> SeriesFile:
    """The series of a results file, or of all those in a directory that have times, as `bench all`
    writes them. Raises ConfigError for anything that is none."""
    return _directory(Path(path)) if Path(path).is_dir() else _file(path)


def _directory(path: Path) -> SeriesFile:
    """All files of a directory as one, whose suites are told apart by what the file holds."""
    files = []
    for file in sorted(path.glob("*.json")):
        with suppress(ConfigError):
            files.append(_file(file))
    if not files:
        raise ConfigError(f"{path} has no results file with times")
    return SeriesFile(
        path=os.fspath(path), kind="all", environment=files[0].environment,
        dataset=", ".join(sorted({f.dataset for f in files})),
        series=[msgspec.structs.replace(s, suite=s.suite if s.suite.startswith(f.kind) else
                                        f"{f.kind} {s.suite}") for f in files for s in f.series])


def _file(path: str | os.PathLike[str]) -> SeriesFile:
    """The series of one file."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    try:
        kind = msgspec.json.decode(content, type=_Head).kind
        if kind not in READERS:
            raise ConfigError(f"{path} holds '{kind}', of which no times can be read; there are "
                              f"{', '.join(READERS)}")
        place, dataset, series = READERS[kind](content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is no results file of rawnn bench: {error}") from None
    return SeriesFile(path=os.fspath(path), kind=kind, environment=place, dataset=dataset,
                      series=series)


Reader = Callable[[bytes], tuple[Environment, str, list[Series]]]


def _ladder(content: bytes) -> tuple[Environment, str, list[Series]]:
    found = msgspec.json.decode(content, type=LadderResult)
    config = found.config
    suite = f"ladder {'-'.join(map(str, config.layers))} batch {config.batch}"
    return found.environment, found.dataset, [
        Series(suite=suite, set=rung.name, times=[run.average_epoch_ms for run in rung.runs],
               host=_by_host(rung.footprint), reason=rung.reason) for rung in found.rungs]


def _by_host(print_: Footprint | None) -> bool:
    """Whether each step of ours is launched by the host; not said of files without it."""
    return print_ is not None and not print_.nodes


class _Measurement(msgspec.Struct):
    """What every version of the schema has of a set's times: each run's, or a spread."""

    workload: str
    opt: str
    times_ms: list[float] = []
    epoch_ms: Spread | None = None
    footprint: Footprint | None = None
    reason: str = ""


class _Sets(msgspec.Struct):
    environment: Environment
    dataset: str
    measurements: list[_Measurement]


def _sets(content: bytes) -> tuple[Environment, str, list[Series]]:
    found = msgspec.json.decode(content, type=_Sets)
    made = []
    for m in found.measurements:
        exact = m.times_ms or m.epoch_ms is None
        times = m.times_ms if exact or m.epoch_ms is None else restored(m.epoch_ms)
        made.append(Series(suite=m.workload, set=m.opt, times=times,
                           summarised=not exact and len(times) > 3,
                           host=_by_host(m.footprint), reason=m.reason))
    return found.environment, found.dataset, made


def restored(kept: Spread) -> list[float]:
    """Measurements with the median, extremes and median deviation of a Spread: the very ones up to
    three, else some that are as far apart."""
    if kept.n == 1:
        return [kept.median]
    if kept.n == 2:
        return [kept.min, kept.max]
    inner = kept.n - 3
    low, high = max(kept.min, kept.median - kept.mad), min(kept.max, kept.median + kept.mad)
    return [kept.min, *[low] * (inner - inner // 2), kept.median, *[high] * (inner // 2), kept.max]


def _contests(content: bytes) -> tuple[Environment, str, list[Series]]:
    found = msgspec.json.decode(content, type=ContestsResult)
    made = [Series(suite=f"{c.problem.name} ({c.problem})",
                   set=" ".join(filter(None, (e.system, e.numbers, e.form))), times=e.us,
                   host=e.clock == "wall" or _by_host(e.footprint), ours=e.system == OURS,
                   reason=e.reason)
            for c in found.contests for e in c.entries]
    return found.environment, f"draw {found.draw_version}", made


READERS: dict[str, Reader] = {
    "ladder": _ladder, "workloads": _sets, "toggles": _sets, "ablation": _sets,
    "random-peers": _contests, "peers": _contests, "sweep": _contests}
"""What a file says it holds -> how its series are read."""

