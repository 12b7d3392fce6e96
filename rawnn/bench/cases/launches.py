"""What one launch of a small kernel costs the host: ours and those of other systems of
Python.

docs/lab.md says what each column is.
"""

from __future__ import annotations

import timeit
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import click
import numpy as np
from msgspec import Meta

from rawnn.bench.case import GPU_DEVICE, Case
from rawnn.bench.harness import Harness, Sample, Variant, require_gpu
from rawnn.bench.launch_systems import KERNEL, SOURCE, SYSTEMS, Launch, N, missing
from rawnn.bench.record import Results
from rawnn.bench.render import machine
from rawnn.bench.render.view import View
from rawnn.bench.suites import Settings, Suites
from rawnn.common.errors import ConfigError, RawnnError
from rawnn.engine.machine import Opened
from rawnn.lab.arrays import array
from rawnn.lab.kernel import Kernel

OURS = ("rawnn", "rawnn, others", "rawnn, bound")
MOST = 400
"""Launches of a sample at most: a stream takes some 1,000 before the host has to wait for it."""
TIMER = {"launch_us": "the host's time of many launches over their number, all work awaited "
                      "between samples"}


class LaunchesSuite(Settings, frozen=True, kw_only=True):
    """`bench launches`: samples of each way of launching, and launches of a sample."""

    samples: Annotated[int, Meta(ge=1, le=10_000)]
    launches: Annotated[int, Meta(ge=1, le=400)]


def measure(harness: Harness, suites: Suites, *, samples: int | None, count: int | None,
            device: str) -> None:
    """Measure what launching a small kernel costs the host in rawnn and in cuda.bindings,
    cuda.core, CuPy, PyTorch, Triton and Numba, as far as they are installed.

    Exits with 1 if a launch of ours could not be measured; what others say stands in the table.
    """
    opened = harness.open(device, TIMER)
    suite: LaunchesSuite = suites.launches
    measure_launches(harness, opened, samples or suite.samples, count or suite.launches)


def measure_launches(harness: Harness, opened: Opened, samples: int, launches: int) -> None:
    """Time the launch of every system that is installed, in turns. One that cannot be made or that
    does not compute what it should keeps the reason.

    Raises ConfigError without a GPU, and for more launches than a stream takes.
    """
    gpu = require_gpu(opened, "launches can be measured")
    if launches > MOST:
        raise ConfigError(f"launches = {launches}: take at most {MOST}, since the host has to wait "
                          f"for a stream that holds more")
    if gpu.backend.name == "sim":
        from rawnn.sim import register

        register(KERNEL, lambda t, a: t.y.__iadd__(a["a"] * t.x), {"y": ("n",), "x": ("n",)},
                 reads=("x", "y"), writes=("y",))
    kernel = Kernel(SOURCE, KERNEL, device=gpu)
    variants, timed = [], {}
    for name, launch in [*_rawnn_methods(kernel), *_peer_methods(kernel)]:
        found = _Timed(launch, launches, kernel) if isinstance(launch, Launch) else None
        variant = Variant("launches", name, "", "launch_us", {"launches": launches},
                          found or (lambda number: Sample({})))
        if found is None:
            reason = str(launch)
            variant.refuse("failed" if reason.startswith("failed") else "unavailable", reason)
        else:
            timed[name] = found
            variant.notes = [f"{found.launch.statement}{found.launch.note}"]
            if found.launch.version:
                harness.environment.libraries[SYSTEMS[name].title or name] = found.launch.version
        variants.append(variant)
    harness.ask(variants)
    harness.interleave(  # whose file is written when all is over, not between samples
        variants, samples + 1, is_budgeted=False,
        on_sample=lambda variant, done, total: harness.progress(done, total, samples + 1,
                                                                variant.name))
    for variant in variants:
        if variant.is_usable and variant.name in timed and (reason := timed[variant.name].wrong()):
            variant.samples.clear()
            variant.refuse("wrong", reason)
        harness.store(variant.records())
    harness.end()


@dataclass
class _Timed:
    """A launch that is timed; the first of its turns warms up. `begun` and `ended` count turns."""

    launch: Launch
    launches: int
    kernel: Kernel
    begun: int = 0
    ended: int = 0

    def __post_init__(self) -> None:
        self._timer = timeit.Timer(self.launch.statement, globals=dict(self.launch.names))
        self._statements = max(self.launches // self.launch.launches, 1)

    def __call__(self, number: int) -> Sample:
        self.begun += 1
        try:
            seconds = self._timer.timeit(self._statements)
        except Exception as error:  # whatever another system says; the others go on
            raise RawnnError(_failure(error)) from None
        self.kernel.synchronize()
        self.ended += 1
        times = [seconds / (self._statements * self.launch.launches) * 1e6] if number else []
        return Sample({"launch_us": times})

    def wrong(self) -> str:
        """What is wrong with the sums that its launches left; "" if nothing is."""
        if self.ended < 2:
            return "broken off ahead of its first sample"
        each = self._statements * self.launch.launches
        return _wrong(self.launch, each * self.ended, each * self.begun)


def _rawnn_methods(kernel: Kernel) -> Sequence[tuple[str, Launch]]:
    """Our launches: with the same arguments again, with others each time, and bound."""
    made = []
    once = f"kernel[1, {N}](y, x, 2.0, {N})"
    statements = ((once, 1), (f"{once}; kernel[1, {N}](y, z, 2.0, {N})", 2), ("run()", 1))
    for name, (statement, count) in zip(OURS, statements, strict=True):
        y, x, z = (array(np.full(N, value, np.float32), device=kernel.device)
                   for value in (0, 1, 1))
        names = {"kernel": kernel, "y": y, "x": x, "z": z,
                 "run": kernel.bind(1, N, y, x, 2.0, N)}
        made.append((name, Launch(statement, names, y.numpy, launches=count)))
    return made


def _peer_methods(kernel: Kernel) -> list[tuple[str, Launch | str]]:
    """Those of other systems; in place of one that there is not, the reason."""
    made: list[tuple[str, Launch | str]] = []
    for name, system in SYSTEMS.items():
        reason = missing(system.package)
        if reason or not _runs_here(kernel):
            made.append((name, reason or "launches on a real GPU only"))
            continue
        try:
            made.append((name, system.make(kernel)))
        except Exception as error:  # whatever the system says; the others go on
            made.append((name, _failure(error)))
    return made


def _runs_here(kernel: Kernel) -> bool:
    return kernel.device.backend.name != "sim"


def _failure(error: Exception) -> str:
    first = (str(error).splitlines() or [""])[0]
    return f"failed: {type(error).__name__}: {first}"


def _wrong(launch: Launch, least: int, most: int) -> str:
    """What is wrong with the sums that `most` launches left, or not fewer than `least` where the
    last sample was broken off; an empty string if nothing is."""
    try:
        found: Any = np.asarray(launch.result())
    except Exception as error:  # whatever the system says; the others go on
        return _failure(error)
    right = found.shape == (N,) and (found == found[0]).all() and \
        float(found[0]) in range(2 * least, 2 * most + 1, 2)
    return "" if right else f"refused: after {most} launches y is {found[:1]}, not {2.0 * most}"


def failures(results: Results) -> str:
    """Which launch of ours could not be measured."""
    failed = [e for e in results.entries("launches") if e.variant in OURS
              and e.status not in ("measured", "not measured")]
    return f"{failed[0].variant}: {failed[0].reason}" if failed else ""


REFERENCE = machine.PACKED
MOST_BEYOND_US = {"rawnn": 1.0, "rawnn, bound": 0.2}
"""Microseconds of the host by which our launches may cost more than REFERENCE; half is usual."""


def too_expensive(results: Results) -> str:
    """Launches of ours that cost more than they may above the driver's own call."""
    medians = {e.variant: us for e in results.entries("launches") if (us := e.median("launch_us"))}
    return "; ".join(
        f"{name} takes {medians[name]:.2f} us, which is more than {most:g} us above {REFERENCE} "
        f"({medians[REFERENCE]:.2f} us)" for name, most in MOST_BEYOND_US.items()
        if {name, REFERENCE} <= medians.keys() and medians[name] >= medians[REFERENCE] + most)


CASE = Case("launches", measure, (
    click.option("--samples", type=click.IntRange(1, 10_000),
                 help="Samples of each system's launch (50)."),
    click.option("--launches", "count", type=click.IntRange(1, MOST),
                 help="Launches of a sample (200)."),
    GPU_DEVICE), failures, too_expensive, resumes=False, settings=LaunchesSuite, view=View(
        "What a launch costs the host", "One small kernel, launched from Python by each system "
        "that is installed.", machine.launches))
