"""`rawnn.time(kernel, ...)`: measures a kernel and compares it with the GPU's limits. Every sample
has fresh inputs, and results are checked after the measurement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf
from numbers import Real
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from rawnn.common.errors import ConfigError, DeviceError, check_whole
from rawnn.common.words import counted
from rawnn.lab.advice import Measurements, Uses, advice, uses_of
from rawnn.lab.arrays import check_not_recording, chosen_device, default_device
from rawnn.lab.checking import (
    Checked,
    CheckFailed,
    Finding,
    TrialResult,
    images_of,
    invalid_writes,
    judged,
    try_sizes,
)
from rawnn.lab.integrity import Integrity, Refused
from rawnn.lab.kernel import Kernel
from rawnn.lab.kernel_problem import KernelProblem, Launching, Trial
from rawnn.lab.measuring import Sample, Stopwatch
from rawnn.lab.parameter_roles import problem_of
from rawnn.lab.red_zones import Contents, Image
from rawnn.lab.sampling import Sizes
from rawnn.lab.subprocess_runner import SeparateProcess, runner_for
from rawnn.lab.work import Work

if TYPE_CHECKING:
    from rawnn.bench.gpu_limits import Roofline
    from rawnn.bench.statistics import Spread

SAMPLES = 40
_BATCH = 16
"""Most samples in one graph; a first batch warms up and is discarded."""
_MEMORY_FRACTION = 4
"""A batch may use one part in this many of the free memory."""
_HOST = 1 << 29
"""Bytes of host memory for a batch's arrays, before and after it."""
_CHECKING = 1.0
"""Seconds for comparing results per batch, or for all batches if each is one large sample. A sample
that is faster than all before it is always compared."""
_SLACK, _FASTER_THAN_A_COPY = 1.05, 1.15
"""Factors by which a limit may be exceeded: the limit was measured, too; and read-only traffic is
faster than the copy with which the memory limit was measured."""


@dataclass(frozen=True)
class Times:
    """Microseconds of one launch: median, spread and the 95 % interval of the median."""

    spread: Spread
    low: float
    high: float

    @property
    def median(self) -> float:
        return self.spread.median

    def __str__(self) -> str:
        s = self.spread
        return (f"{s.median:.2f} us (95 % interval {self.low:.2f}-{self.high:.2f}; all "
                f"{s.n} samples {s.min:.2f}-{s.max:.2f})")


@dataclass(frozen=True)
class Timed:
    """The measurement of a kernel.

    cold, warm: times with nothing of it in the L2 cache, and with what fits.
    moved, computed: declared bytes and operations.
    roofline: the measured limits of this GPU.
    least: the lower bound in microseconds that follows from them, set by `bound`.
    checked: samples that were compared with the reference after the measurement.
    """

    kernel: str
    gpu: str
    sizes: Sizes
    launching: Launching | None
    cold: Times
    warm: Times
    empty: float | None
    moved: int
    computed: int | None
    roofline: Roofline | None
    least: float | None
    bound: str
    uses: Uses | None
    advice: tuple[str, ...]
    checked: int
    notes: tuple[str, ...] = ()

    @property
    def gbps(self) -> float:
        """GB/s with a cold cache."""
        return self.moved / self.cold.median * 1e-3

    @property
    def tflops(self) -> float | None:
        """10^12 operations a second with a cold cache."""
        return None if self.computed is None else self.computed / self.cold.median * 1e-6

    @property
    def fraction(self) -> float | None:
        """Fraction of the roofline's limit."""
        return None if self.least is None else self.least / self.cold.median

    def __str__(self) -> str:
        sizes = ", ".join(f"{n} = {v:,}" for n, v in self.sizes.items())
        lines = [f"{self.kernel} on {self.gpu}, {sizes or 'its only size'}"
                 + (f" ({self.launching})" if self.launching else ""),
                 f"  cold L2 cache: {self.cold}", f"  warm L2 cache: {self.warm}"]
        if self.empty is not None:
            lines.append(f"  an empty kernel, measured in the same way: {self.empty:.2f} us")
        rate = f"  {self.moved:,} bytes: {self.gbps:,.0f} GB/s"
        if self.computed is not None:
            rate += f"; {self.computed:,} operations: {self.tflops:,.2f} TFLOP/s"
        lines.append(rate)
        if self.least is not None and self.roofline is not None:
            lines.append(f"  {self.fraction:.0%} of this GPU's limit: {self.bound} allows "
                         f"{self.least:.2f} us ({self.roofline.where})")
        if self.uses is not None:
            lines.append(f"  {self.uses}")
        lines += [f"  next: {text}" for text in self.advice]
        lines.append(f"  {counted(self.checked, 'timed result')} compared with the reference"
                     if self.checked else "  no result was compared: give a reference")
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])


def time(kernel: Kernel | Callable[..., Any], reference: Any = None, *,
         at: Mapping[str, int] | None = None, samples: int = SAMPLES, seed: int = 0,
         limit: float | None = None, device: Any = None, **work: Any) -> Timed:
    """Measure a kernel on one set of sizes: the largest of the work's, or those in `at`.

        rawnn.time(saxpy, lambda x, y, a: a * x + y, grid="cdiv(n, 256)", block=256,
                   flops="2 * n", at={"n": 1 << 24})

    `reference` and `work` are as in rawnn.lab.Work. The kernel is first checked on these sizes.
    Every sample then has its own inputs, and outputs are poisoned before it. After the measurement
    every sample that is faster than those before it, and others at random, are compared with the
    reference. `kernel` may be a function that launches several, given `shapes`; its samples end
    when all streams are idle, and include the host's time. `limit` (seconds for a batch of samples)
    runs the kernel in a separate process.

    Raises CheckFailed where the kernel is wrong, before the clock or behind it; Refused where it is
    faster than the GPU's measured limits allow for the declared work, where a function replaces
    what measures it, or sets a part of the L2 cache aside; ConfigError for work that does not fit
    the kernel.

    Parameters
    ----------
    kernel
        a Kernel, or a function that launches several
    reference
        a NumPy function, or a Work
    at
        sizes by name; None: the largest of the work
    samples
        launches that are timed
    seed
        of all draws
    limit
        seconds for a batch of samples, in a process of its own, and for a call of the reference;
        None: no limit
    device
        where a function's kernels run; None: that of the kernel
    work
        keywords of Work
    """
    check_not_recording("rawnn.time")
    if isinstance(samples, Real) and samples < 2:
        raise ConfigError(f"samples = {samples}: a spread needs at least 2")
    check_whole("samples", samples, 2)
    check_whole("seed", seed, 0)
    declared = Work.of(reference, work)
    compared = declared.reference is not None
    problem = problem_of(kernel, declared if compared else
                         replace(declared, reference=lambda **known: {}), limit)
    generator, integrity = np.random.default_rng(seed), Integrity()
    sizes = problem.largest(at or {})
    runner = runner_for(problem, limit, device)
    try:
        if compared:
            tried, _ = try_sizes(problem, sizes, runner, generator)
            Checked(problem.label, (tried,), 1).require()
        clock = _Clock(problem, sizes, runner, generator, compared)
        cold, warm = clock.times(samples, False), clock.times(samples, True)
        on = kernel.device if isinstance(kernel, Kernel) else chosen_device(device, default_device)
        real = on.backend.name != "sim"
        empty = float(np.median(runner.empty(_BATCH))) \
            if real and isinstance(kernel, Kernel) else None
    finally:
        runner.close()
    integrity.require()
    trial = clock.last
    assert trial is not None
    moved, computed = problem.moved(trial), problem.computed(trial)
    roof = roofline_of(on.info.name)
    least, bound = limits(roof, moved, computed, number_class(problem))
    _refuse_too_fast(problem, trial, cold, warm, roof, on)
    notes = [] if roof else [f"how far from the limit that is cannot be said: the limits of "
                             f"{on.info.name} have not been measured (rawnn bench lower-bounds)"]
    if roof and computed and number_class(problem) not in roof.flops:
        notes.append(f"nothing was measured of how fast this GPU computes in "
                     f"{number_class(problem)}: memory alone is compared with")
    if not real:
        notes.append("the simulated GPU's times say nothing of a GPU")
    uses = uses_of(kernel, trial.launching) if isinstance(kernel, Kernel) and trial.launching \
        else None
    seen = Measurements(cold.median, warm.median, empty, least, bound, moved,
                        on.attribute("L2_CACHE_SIZE") if real else None)
    hints = tuple(advice(uses, trial.launching, seen)) if uses and trial.launching else ()
    return Timed(problem.label, on.info.name, sizes, trial.launching, cold, warm, empty, moved,
                 computed, roof, least, bound, uses, hints, clock.checked, tuple(notes))


class _Clock:
    """Measures batches of samples with fresh inputs, and compares the results."""

    def __init__(self, problem: KernelProblem, sizes: Sizes, runner: Stopwatch | SeparateProcess,
                 generator: np.random.Generator, compared: bool) -> None:
        self._problem, self._sizes, self._runner = problem, sizes, runner
        self._generator, self._compared = generator, compared
        self._pools: dict[str, Any] = {}
        self._scales: dict[str, float] = {}
        self._most = 0
        self._fastest = {False: inf, True: inf}
        self._spent = 0.0
        self.checked = 0
        self.last: Trial | None = None

    def times(self, samples: int, warm: bool) -> Times:
        """Times of `samples` launches. Raises CheckFailed if a result is wrong."""
        from rawnn.bench.statistics import median_interval, spread

        found: list[float] = []
        first = True
        while len(found) < samples:
            measured = self._batch(min(self._size(), samples - len(found)), warm)
            if not first:
                found += measured
            first = False
        return Times(spread(found), *median_interval(found))

    def _size(self) -> int:
        """Samples in a batch, limited by memory: each has its arrays twice, between zones."""
        if not self._most:
            images = images_of(self._trial(), self._generator)
            nbytes = sum(image.content.nbytes for image in images.values())
            self._most = max(1, min(_BATCH, self._runner.free() // _MEMORY_FRACTION // (2 * nbytes),
                                    _HOST // nbytes))
        return self._most

    def _trial(self) -> Trial:
        self.last = self._problem.trial(self._sizes, self._generator, pools=self._pools)
        return self.last

    def _batch(self, count: int, warm: bool) -> list[float]:
        trials = [self._trial() for _ in range(count)]
        images = [images_of(trial, self._generator) for trial in trials]
        inputs = [o.name for o in self._problem.operands if o.read]
        samples: list[Sample] = [(given, trial.numbers, inputs)
                                 for given, trial in zip(images, trials, strict=True)]
        times, contents = self._runner.measure(trials[0].launching, samples, warm)
        began = perf_counter()
        order = self._generator.permutation(count).tolist()
        fastest = int(np.argmin(times))
        for index in dict.fromkeys([fastest, *order]):
            record = index == fastest and times[index] < self._fastest[warm]
            if not record and self._spent + perf_counter() - began > _CHECKING:
                break
            self._compare(trials[index], images[index], contents[index])
        self._fastest[warm] = min(self._fastest[warm], times[fastest])
        # Batches of several samples have a time limit each.
        self._spent += perf_counter() - began if count == 1 else 0.0
        return times

    def _compare(self, trial: Trial, images: Mapping[str, Image], contents: Contents) -> None:
        """Raise CheckFailed if the result of a timed launch is wrong."""
        expected = trial.expected() if self._compared else {}
        findings: list[Finding] = invalid_writes(trial, images, contents,
                                                 expected if self._compared else None)
        results = {name: images[name].values(contents[name])
                   for name, exact in expected.items() if exact is not None}
        comparisons = judged(trial, expected, results, self._generator, self._scales)
        for each in comparisons:
            name = each.operand.partition(".")[0]
            if not each.passed and not images[name].changed(contents[name]).size:
                findings.append(Finding("not written", name, f"'{name}' was never written by the "
                                        f"end of its sample"))
            elif not each.passed:
                findings.append(Finding("wrong", name, f"wrong: {each}"))
        self.checked += self._compared
        if findings:
            raise CheckFailed(str(Checked(
                f"{trial.problem.label} while it was timed",
                (TrialResult(trial.sizes, trial.launching, comparisons, tuple(findings)),), 1)))


def roofline_of(gpu: str) -> Roofline | None:
    """The measured limits of this GPU; None without a measurement."""
    from rawnn.bench.gpu_limits import roofline

    return roofline(gpu)


def number_class(problem: KernelProblem) -> str:
    """The precision of its arithmetic: tf32 if declared, else that of the smallest float input."""
    if problem.work.compute == "tf32":
        return "tf32"
    names = [o.dtype.name for o in problem.operands if o.read] or \
        [o.dtype.name for o in problem.operands]
    for name in ("float8", "bfloat16", "float16", "float32"):
        if any(n.startswith(name) for n in names):
            return name
    return names[0]


def limits(roof: Roofline | None, moved: int, computed: int | None, kind: str
           ) -> tuple[float | None, str]:
    """(lower bound in microseconds from memory and arithmetic, which of the two sets it)."""
    if roof is None:
        return None, ""
    memory = moved / roof.memory_gbps * 1e-3
    rate = roof.flops.get(kind)
    arithmetic = computed / rate * 1e6 if computed and rate else 0.0
    return max(memory, arithmetic), "memory" if memory >= arithmetic else "arithmetic"


def _refuse_too_fast(problem: KernelProblem, trial: Trial, cold: Times, warm: Times,
                     roof: Roofline | None, device: Any) -> None:
    for least, times, what in _least(problem, trial, cold, warm, roof, device):
        if times.median < least:
            raise Refused(
                f"{problem.label} takes {times.median:.2f} us, and {what} allows no less than "
                f"{least:.2f} us: either it does not do the work (every sample's inputs were "
                f"fresh), or less is needed than was declared: say bytes= and flops=")


def _least(problem: KernelProblem, trial: Trial, cold: Times, warm: Times, roof: Roofline | None,
           device: Any) -> Iterator[tuple[float, Times, str]]:
    """Lower bounds for a cold and a warm cache. Written data may still be in L2 when the clock
    stops."""
    moved, computed = problem.moved(trial), problem.computed(trial)
    read = sum(trial.arrays[o.name].nbytes for o in problem.operands if o.read)
    read = min(read, moved)
    at_least = read + max(0, moved - read - device.attribute("L2_CACHE_SIZE"))
    if roof is not None:
        yield at_least / (roof.memory_gbps * _FASTER_THAN_A_COPY) * 1e-3, cold, \
            f"moving {at_least:,} bytes at {roof.memory_gbps:,.0f} GB/s (measured)"
        rate = roof.flops.get(number_class(problem))
        if computed and rate:
            for times in (cold, warm):
                yield computed / (rate * _SLACK) * 1e6, times, \
                    f"{computed:,} operations at {rate * 1e-12:,.1f} TFLOP/s (measured)"
    elif device.backend.name != "sim":
        try:  # kHz, bits; two transfers a clock
            rate = 2e-6 * device.attribute("MEMORY_CLOCK_RATE") / 8 \
                * device.attribute("GLOBAL_MEMORY_BUS_WIDTH")
        except (DeviceError, AttributeError):  # newer drivers may not report it
            return
        if rate:
            yield at_least / rate * 1e-3, cold, \
                f"moving {at_least:,} bytes at {rate:,.0f} GB/s, the most its memory could do,"
