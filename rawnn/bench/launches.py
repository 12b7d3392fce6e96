"""What one launch of a small kernel costs the host: ours beside other systems of Python.

docs/lab.md says what each column is.
"""

from __future__ import annotations

import os
import timeit
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec
import numpy as np

from rawnn.bench.columns import markdown_table
from rawnn.bench.launch_systems import KERNEL, SOURCE, SYSTEMS, N, Way, missing
from rawnn.bench.measured import Measured, read_measured
from rawnn.bench.records import place_of
from rawnn.bench.statistics import Spread, median_interval, spread
from rawnn.common.errors import ConfigError
from rawnn.engine.machine import Opened
from rawnn.engine.result import Environment
from rawnn.lab.arrays import array
from rawnn.lab.kernel import Kernel

SCHEMA_VERSION = 1
HEADINGS = ("launch", "median us", "min-max", "95 % interval", "n", "beside", "how")
BESIDE = "cuda.bindings, packed"
"""What others are compared with: the driver's call by itself, its arguments packed beforehand."""
OURS = ("rawnn", "rawnn, others", "rawnn, bound")
MOST = 400
"""Launches of a sample at most: a stream takes some 1,000 before the host has to wait for it."""


class LaunchCost(msgspec.Struct, frozen=True, kw_only=True):
    """One way of launching: microseconds of the host for a launch, by sample, and the 95 % interval
    of their median. `how` is the very statement that was timed, `reason` why there is no time."""

    name: str
    how: str = ""
    version: str = ""
    us: Spread | None = None
    interval: tuple[float, float] | None = None
    samples: list[float] = []
    reason: str = ""


class LaunchesResult(Measured, frozen=True, kw_only=True):
    """All ways, and where they were measured; `launches` are those of a sample. `interrupted` says
    that Ctrl-C ended it early."""

    kind: Literal["launches"] = "launches"
    schema_version: int = SCHEMA_VERSION
    environment: Environment
    launches: int
    ways: list[LaunchCost]
    interrupted: bool = False

    def cells(self, cost: LaunchCost) -> list[str]:
        """A row of the table."""
        if cost.us is None or cost.interval is None:
            return [cost.name, "-", "", "", "", "", cost.reason]
        packed = next((c.us for c in self.ways if c.name == BESIDE and c.us), None)
        beside = f"{cost.us.median - packed.median:+.2f}" if packed and cost.name != BESIDE else ""
        low, high = cost.interval
        return [cost.name, f"{cost.us.median:.2f}", f"{cost.us.min:.2f}-{cost.us.max:.2f}",
                f"{low:.2f}-{high:.2f}", str(cost.us.n), beside, cost.how]

    def provenance(self) -> str:
        """Where, when and how it was measured."""
        place = self.environment
        gpu = place.gpu or {}
        where = "a SIMULATED GPU, whose times say nothing about a real one" \
            if place.device == "sim" else \
            f"{gpu.get('name', 'no GPU')}, driver {gpu.get('driver', 'unknown')}"
        versions = ", ".join(f"{n} {v}" for n, v in place.libraries.items())
        return (f"{where}; Python {place.python}; {versions}; the host's time, {self.launches} "
                f"launches a sample, samples in turns, all work awaited between them; "
                f"{place.date}, commit {place.commit or 'unknown'}")

    def markdown(self) -> str:
        """The table in Markdown, with its provenance below."""
        lines = markdown_table(HEADINGS, [self.cells(c) for c in self.ways],
                               (HEADINGS[0], HEADINGS[-1]))
        return "\n".join([*lines, "", f"{self.provenance()}.", ""])


LAUNCHES: Mapping[str, tuple[type[LaunchesResult], int]] = {
    "launches": (LaunchesResult, SCHEMA_VERSION)}


MOST_BEYOND_US = {"rawnn": 1.0, "rawnn, bound": 0.2}
"""Microseconds of the host by which our launches may cost more than BESIDE; half is usual."""


def too_dear(result: LaunchesResult) -> list[str]:
    """Sentences on launches of ours that cost more than they may beside the driver's own call."""
    medians = {way.name: way.us.median for way in result.ways if way.us}
    return [f"{name} takes {medians[name]:.2f} us, which is more than {most:g} us above {BESIDE} "
            f"({medians[BESIDE]:.2f} us)" for name, most in MOST_BEYOND_US.items()
            if {name, BESIDE} <= medians.keys() and medians[name] >= medians[BESIDE] + most]


def read_launches(path: str | os.PathLike[str]) -> LaunchesResult:
    """Read what `write_json` wrote. Raises ConfigError for anything else."""
    found: LaunchesResult = read_measured(path, LAUNCHES)
    return found


def measure(opened: Opened, samples: int, launches: int,
            on_sample: Callable[[int, int], None] = lambda done, total: None) -> LaunchesResult:
    """Time every way that is installed, in turns. One that cannot be made or that does not compute
    what it should keeps the reason. Ctrl-C ends it early, with the samples there are.

    Raises ConfigError without a GPU, and for more launches than a stream takes.
    """
    if opened.device is None:
        raise ConfigError(f"launches can be measured on a GPU only: {opened.machine.gpu}")
    if launches > MOST:
        raise ConfigError(f"launches = {launches}: take at most {MOST}, since the host has to wait "
                          f"for a stream that holds more")
    if opened.device.backend.name == "sim":
        from rawnn.sim import register

        register(KERNEL, lambda t, a: t.y.__iadd__(a["a"] * t.x), {"y": ("n",), "x": ("n",)},
                 reads=("x", "y"), writes=("y",))
    kernel = Kernel(SOURCE, KERNEL, device=opened.device)
    timers: dict[str, tuple[Way, timeit.Timer]] = {}
    costs: dict[str, LaunchCost] = {}
    for name, way in [*_own(kernel), *_others(kernel)]:
        if isinstance(way, Way):
            timers[name] = way, timeit.Timer(way.statement, globals=dict(way.names))
            costs[name] = LaunchCost(name=name, version=way.version,
                                     how=f"{way.statement}{way.note}")
        else:
            costs[name] = LaunchCost(name=name, reason=way)
    found: dict[str, list[float]] = {name: [] for name in timers}
    begun, ended, interrupted = Counter[str](), Counter[str](), False
    try:
        for turn in range(samples + 1):  # the first warms up
            for name in [*found]:
                begun[name] += 1
                try:
                    seconds = timers[name][1].timeit(_statements(timers[name][0], launches))
                except Exception as error:  # whatever another system says; the others go on
                    costs[name] = LaunchCost(name=name, reason=_said(error))
                    del found[name]
                    continue
                kernel.synchronize()
                ended[name] += 1
                if turn:
                    found[name].append(seconds / _launches(timers[name][0], launches) * 1e6)
            on_sample(turn + 1, samples + 1)
    except KeyboardInterrupt:
        if not any(found.values()):
            raise
        interrupted = True
    for name, times in found.items():
        way = timers[name][0]
        each = _launches(way, launches)
        wrong = _wrong(way, each * ended[name], each * begun[name]) if times else \
            "broken off ahead of its first sample"
        costs[name] = LaunchCost(name=name, reason=wrong) if wrong else msgspec.structs.replace(
            costs[name], us=spread(times), interval=median_interval(times), samples=times)
    libraries = {SYSTEMS[name].title or name: cost.version for name, cost in costs.items()
                 if cost.version}
    place = place_of(opened)
    place = replace(place, libraries={**place.libraries, **libraries})
    return LaunchesResult(environment=place, launches=launches,
                          ways=list(costs.values()), interrupted=interrupted)


def _statements(way: Way, launches: int) -> int:
    """How many times a sample of about `launches` runs a way's statement."""
    return max(launches // way.launches, 1)


def _launches(way: Way, launches: int) -> int:
    """How many launches that are."""
    return _statements(way, launches) * way.launches


def _own(kernel: Kernel) -> Sequence[tuple[str, Way]]:
    """Our launches: with the same arguments again, with others each time, and bound."""
    made = []
    once = f"kernel[1, {N}](y, x, 2.0, {N})"
    statements = ((once, 1), (f"{once}; kernel[1, {N}](y, z, 2.0, {N})", 2), ("run()", 1))
    for name, (statement, count) in zip(OURS, statements, strict=True):
        y, x, z = (array(np.full(N, value, np.float32), device=kernel.device)
                   for value in (0, 1, 1))
        names = {"kernel": kernel, "y": y, "x": x, "z": z,
                 "run": kernel.bind(1, N, y, x, 2.0, N)}
        made.append((name, Way(statement, names, y.numpy, launches=count)))
    return made


def _others(kernel: Kernel) -> list[tuple[str, Way | str]]:
    """Those of other systems; in place of one that there is not, the reason."""
    made: list[tuple[str, Way | str]] = []
    for name, system in SYSTEMS.items():
        reason = missing(system.package)
        if reason or not _runs_here(kernel):
            made.append((name, reason or "launches on a real GPU only"))
            continue
        try:
            made.append((name, system.make(kernel)))
        except Exception as error:  # whatever the system says; the others go on
            made.append((name, _said(error)))
    return made


def _runs_here(kernel: Kernel) -> bool:
    return kernel.device.backend.name != "sim"


def _said(error: Exception) -> str:
    first = (str(error).splitlines() or [""])[0]
    return f"failed: {type(error).__name__}: {first}"


def _wrong(way: Way, least: int, most: int) -> str:
    """What is wrong with the sums that `most` launches left, or not fewer than `least` where the
    last sample was broken off; an empty string if nothing is."""
    try:
        found: Any = np.asarray(way.result())
    except Exception as error:  # whatever the system says; the others go on
        return _said(error)
    right = found.shape == (N,) and (found == found[0]).all() and \
        float(found[0]) in range(2 * least, 2 * most + 1, 2)
    return "" if right else f"refused: after {most} launches y is {found[:1]}, not {2.0 * most}"
