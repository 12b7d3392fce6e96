"""Random training runs on a device, each compared with NumPy on the host.

The truth are the same steps in float64, without a lower precision. The host's distance from it, in
float32 and with everything rounded as it is stored, says how much rounding costs this
very run. The device adds up in other orders, and rounds the other way where a value lies between
two. Where what is stored is rounded to less than float32, it must be as near to the host as two
independent roundings are; otherwise it must be as near to the truth as the host is, within a factor
that allows for longer chains of sums. To both some units of the last place are added.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import click
import msgspec
import numpy as np
from numpy.typing import NDArray

from rawnn.bench.case import DEVICE, Case
from rawnn.bench.harness import Harness, precision_name
from rawnn.bench.record import Record, Results, Status, records_of
from rawnn.bench.render import machine
from rawnn.bench.render.view import View
from rawnn.bench.specification import EPOCHS, SMALL, Limits, Specification, sample
from rawnn.bench.suites import Suites
from rawnn.common.errors import OutOfMemory, RawnnError
from rawnn.cuda.errors import CallFailed
from rawnn.data import Dataset
from rawnn.engine.config import Config
from rawnn.engine.machine import Opened
from rawnn.engine.runners.host import HostRunner
from rawnn.engine.runners.prepared_run import PreparedRun, Runner
from rawnn.model.layers import Parameters

SLACK = 8.0
STORED_SLACK = 2.0
"""How much of rounding's cost the device may be off by: from the truth, and from the host."""
LEAST = 4.0
"""Units of rounding that two orders of a sum may always differ by, times the square root of its
length where sums are rounded to that unit."""

NORMALISED = 3.0
"""As many times that for optimizers that divide by the gradient's size: what is nearly 0 and
rounded to the other sign moves a parameter as far as any other gradient does."""
MISJUDGED = 0.5
"""Answers, times the square root of all, that may fall either way, times the slack."""

_UNIT = {"": 2.0**-24, "tf32": 2.0**-11, "fp16": 2.0**-11, "fp16=acc16": 2.0**-11,
         "bf16": 2.0**-9, "sr": 2.0**-8, "fp8": 2.0**-4}
"""Half the distance of two neighbours at 1; of stochastic rounding, the whole."""
_ARITHMETIC = ("tf32", "fp16=acc16")
"""Formats of the arithmetic, which references on the host do not imitate: what float32 costs there
is multiplied by how much coarser they are."""
_SUMS = ("", "fp16=acc16")
"""Formats in which sums are rounded as well as what is stored."""


HEADER = f"{'seed':>6}  {'':<6}  {'time':>18}  {'used':>5}  run (used: share of the tolerance)"
"""Above the lines of outcomes."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a run: "right", "wrong", "failed" or "memory" (it did not fit). `us` is the time
    of a step in microseconds (on a device by its clock), `used` the largest share of a tolerance
    that was used up. As text it is one line, and another where there is a reason."""

    seed: int
    opt: str
    specification: str
    verdict: str
    reason: str = ""
    us: float = math.nan
    used: float = 0.0

    def __str__(self) -> str:
        time = "" if math.isnan(self.us) else f"{self.us:.1f} us a step"
        share = f"{self.used:.2f}" if self.verdict in ("right", "wrong") else ""
        line = f"{self.seed:>6}  {self.verdict:<6}  {time:>18}  {share:>5}  {self.specification}"
        return f"{line}\n        {self.reason}" if self.reason else line

    def records(self, environment: str) -> list[Record]:
        """The outcome as records."""
        ran = self.verdict in ("right", "wrong")
        return list(records_of(
            f"check/{self.seed}", self.opt, {
                "tolerance_used": self.used if ran and math.isfinite(self.used) else None,
                "step_us": self.us if ran else None},
            precision=precision_name(self.opt), conditions={"seed": self.seed},
            status=STATUSES[self.verdict], reason=self.reason, notes=[self.specification],
            environment=environment))


STATUSES: dict[str, Status] = {"right": "measured", "wrong": "wrong", "failed": "failed",
                               "memory": "unavailable"}
"""What the file says of a verdict."""


def measure(harness: Harness, suites: Suites, *, count: int, seed: int, work: float | None,
            device: str) -> None:
    """Train random networks with random toggles, and check each run against NumPy.

    Losses and parameters must come as near to a run in float64 as NumPy does that rounds the same
    numbers. Exits with 1 if a run is wrong or fails; one that does not fit into memory is said.
    """
    opened = harness.open(Config(device=device).device, {"step_us": "the last epoch of two"})
    limits = SMALL if device == "sim" else Limits()
    limits = replace(limits, work=work or limits.work)
    harness.echo(HEADER)
    done = 0
    try:
        for outcome in run_random(opened, limits, seed, count):
            harness.echo(str(outcome))
            harness.store(outcome.records(harness.environment.key))
            done += 1
            harness.progress(done, count, count, f"seed {outcome.seed}")
    except KeyboardInterrupt:
        harness.interrupted = True
    left = f"the device cannot be used any more: {count - done} runs are left" if done < count \
        and not harness.interrupted else ""
    if left:
        harness.echo(left)
    harness.end(left)


def failures(results: Results) -> str:
    """Which runs are not right."""
    found = results.entries("check")
    wrong = [str(e.conditions["seed"]) for e in found if e.status in ("wrong", "failed")]
    return f"{len(wrong)} of {len(found)} runs are not right (seeds {', '.join(wrong)}); --n 1 " \
           f"--seed N repeats one" if wrong else ""


@dataclass(frozen=True)
class _Found:
    """What a run of a few epochs left behind."""

    losses: NDArray[np.float64]
    correct: int
    test_loss: float
    parameters: Parameters
    skipped: bool


def run_random(opened: Opened, limits: Limits, seed: int, count: int) -> Iterator[Outcome]:
    """Draw and check `count` runs, of the seeds from `seed` on. Ends early where the device has
    failed in a way that it cannot be used after."""
    for number in range(seed, seed + count):
        outcome, usable = check_run(sample(number, limits, opened.machine), opened)
        yield outcome
        if not usable:
            return


def check_run(spec: Specification, opened: Opened) -> tuple[Outcome, bool]:
    """Train on the device and on the host and compare; and whether the device is usable after."""
    name = str(spec)
    try:
        data = spec.data()
        device = _on_device(spec, data, opened)
    except OutOfMemory as error:
        return Outcome(seed=spec.seed, opt=spec.opt(), specification=name, verdict="memory",
                       reason=str(error)), True
    except Exception as error:  # whatever it is, it is what was looked for; the next run goes on
        said = str(error) if isinstance(error, RawnnError) else f"{type(error).__name__}: {error}"
        return Outcome(seed=spec.seed, opt=spec.opt(), specification=name, verdict="failed",
                       reason=said), not isinstance(error, CallFailed) or _is_usable(opened)
    found, us = device
    machine = opened.machine
    plain, true = (spec.work(opt, data, machine) for opt in (spec.opt("preload"), "none,preload"))
    host, _ = _trained(HostRunner(plain), plain)
    exact, _ = _trained(HostRunner(true, "float64"), true)
    used, reason = _compared(spec, found, host, exact)
    return Outcome(seed=spec.seed, opt=spec.opt(), specification=name,
                   verdict="wrong" if used > 1 else "right",
                   reason=reason if used > 1 else "", us=us, used=used), True


def _is_usable(opened: Opened) -> bool:
    """Whether the device can still be used: some failures break its context for good."""
    try:
        if opened.device is not None:
            opened.device.stream.synchronize("a run that failed")
    except CallFailed:
        return False
    return True


def _on_device(spec: Specification, data: Dataset, opened: Opened) -> tuple[_Found, float]:
    """What the run left, and microseconds of a step in its last epoch."""
    work = spec.work(spec.opt(), data, opened.machine)
    if opened.device is None:
        return _trained(HostRunner(work), work)
    from rawnn.engine.runners.gpu import GpuRunner

    if spec.has_launch_variants:
        work = spec.with_launch_variants(work)
    return _trained(GpuRunner(opened.device, work), work)


def _trained(runner: Runner, work: PreparedRun) -> tuple[_Found, float]:
    """Train some epochs, the last of them measured."""
    try:
        scale = _loss_scale(work)
        if "loss_scale" in work.state:
            runner.load({"loss_scale": np.array([scale, 0], np.float32)})
        losses, correct = np.zeros(0), 0
        for epoch in range(EPOCHS):
            measured = epoch + 1 == EPOCHS or work.policy.report == 1
            with np.errstate(all="ignore"):  # infinities are values here
                runner.epoch(measured)
            if measured:
                loss, right = runner.metrics()
                losses = np.append(losses, loss.astype(np.float64))
                correct = int(right.sum())
        us = runner.epoch_milliseconds()[-1] / work.updates * 1e3
        parameters = runner.parameters()
        kept = runner.state().get("loss_scale")
        return _Found(losses, correct, runner.evaluate().loss, parameters,
                      kept is not None and float(kept[0]) < scale), us
    finally:
        runner.close()


def _loss_scale(work: PreparedRun) -> float:
    """A power of two that brings gradients of the mean loss to the order of 1: high enough for
    float16, low enough that no step overflows."""
    outputs = 1 if work.network.loss_spec.labelled else work.network.outputs
    return 2.0 ** min(math.floor(math.log2(work.train.batch * outputs)), 15)


def _compared(spec: Specification, found: _Found, host: _Found,
              exact: _Found) -> tuple[float, str]:
    """The largest share of a tolerance that was used up, and what by."""
    unit = _UNIT[spec.precision]
    coarser = unit / _UNIT[""] if spec.precision in _ARITHMETIC else 1.0
    slack, other = (SLACK * coarser, exact) if spec.precision in ("", *_ARITHMETIC) else \
        (STORED_SLACK, host)
    if spec.optimizer.name != "sgd":
        slack *= NORMALISED
    longest = max(*spec.network.layers, spec.batch)
    least = LEAST * unit * (math.sqrt(longest) if spec.precision in _SUMS else LEAST)
    shares: list[tuple[float, str]] = []

    def compare(what: str, distance: float, cost: float, size: float) -> None:
        allowed = slack * cost + least * size
        share = distance / allowed if allowed else math.inf if distance else 0.0
        if math.isfinite(size):
            shares.append((math.inf if math.isnan(share) else share,
                           f"{what} is off by {distance / size if size else distance:.2g}, the "
                           f"host by {cost / size if size else cost:.2g}"))

    start = spec.network.initial(spec.seed)
    sizes, costs, distances = {}, {}, {}
    for name, array in exact.parameters.items():
        moved = np.linalg.norm(array.astype(np.float64) - start[name])
        sizes[name] = float(max(moved, 1e-6 * np.linalg.norm(start[name])))
        costs[name] = _distance(host.parameters[name], array)
        distances[name] = _distance(found.parameters[name], other.parameters[name])
    usual = float(np.median([costs[n] / sizes[n] for n in sizes if sizes[n]] or [0.0]))
    for name, size in sizes.items():
        compare(f"the change of {name}", distances[name], max(costs[name], usual * size), size)
    last = slice(-len(found.losses), None)  # with `report` not every epoch is measured
    compare("the loss", float(np.abs(found.losses - other.losses[last]).max()),
            float(np.abs(host.losses[last] - exact.losses[last]).max()),
            float(np.abs(exact.losses[last]).max()))
    compare("the test loss", abs(found.test_loss - other.test_loss),
            abs(host.test_loss - exact.test_loss), abs(exact.test_loss))
    if spec.network.init != "zeros" and exact.correct:  # else all outputs are alike
        cost = abs(host.correct - exact.correct) + MISJUDGED * math.sqrt(exact.correct)
        compare("the count of right answers", abs(found.correct - other.correct), cost,
                exact.correct)
    if found.skipped != host.skipped:
        shares.append((math.inf, "steps were skipped for an overflow, but not on both"))
    return max(shares)


def _distance(a: NDArray[np.floating], b: NDArray[np.floating]) -> float:
    return float(np.linalg.norm(a.astype(np.float64) - b))


CASE = Case("check", measure, (
    click.option("--n", "count", type=click.IntRange(1), default=30, show_default=True,
                 help="How many runs."),
    click.option("--seed", type=click.IntRange(0), default=0, show_default=True,
                 help="Seed of the first run; each has the next. A run follows from its seed "
                      "alone."),
    click.option("--work", type=click.FloatRange(1), metavar="N",
                 help="Multiply-adds of a step at most, which bound the time that NumPy takes to "
                      "check it (2e9; on a simulated device 2e5)."),
    DEVICE), failures, resumes=False,
    view=View("Random runs", "Each checked against NumPy.", machine.checks))
