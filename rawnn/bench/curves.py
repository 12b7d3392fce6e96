"""Loss curves: ours and the peers' on top of each other, from the same weights on the same batches;
and of networks of several sizes what each learns in as many steps, and how fast.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from rawnn.bench.columns import markdown_table
from rawnn.bench.measured import Measured
from rawnn.bench.peers.check import reference
from rawnn.bench.peers.contest import TURN_S, Rules
from rawnn.bench.peers.lanes import Lanes, Prepared
from rawnn.bench.peers.problem import Problem
from rawnn.bench.peers.rounding import share
from rawnn.bench.peers.worker import CHECKED_EPOCHS, TRUTH, Made, Prepare
from rawnn.bench.records import place_of
from rawnn.common.errors import ConfigError
from rawnn.engine.machine import open_device
from rawnn.engine.result import Environment

LAST = 50
"""Steps whose mean loss is what a network has come to."""


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """The loss of each step of one program (None: not finite). `error` is the share of the stated
    tolerance that it used up beside the others' float32, None where there was nothing to compare
    with. `us` are microseconds of a step, one a sample, timed behind the curve."""

    workload: str
    system: str
    numbers: str
    form: str
    losses: list[float | None]
    us: list[float] = []
    error: float | None = None
    reason: str = ""

    @property
    def last(self) -> float | None:
        """The mean loss of the last LAST steps; None where one is not finite."""
        tail = [v for v in self.losses[-LAST:] if v is not None]
        return sum(tail) / len(tail) if tail and len(tail) == len(self.losses[-LAST:]) else None


class CurvesResult(Measured, frozen=True, kw_only=True):
    """All curves, and where they were drawn; `problems` are the networks."""

    INDENT = None
    kind: str = "curves"
    schema_version: int = 1
    environment: Environment
    systems: list[str]
    left_out: dict[str, str]
    steps: dict[str, int]
    curves: list[Curve]
    problems: list[Problem] = msgspec.field(default_factory=list)
    interrupted: bool = False


HEADINGS = ("workload", "system", "numbers", "form", "first loss", "last loss", "tolerance used")


def rows(result: CurvesResult) -> list[tuple[str, ...]]:
    """The texts under HEADINGS, a curve a row; the last loss is the mean of the last LAST steps."""
    def text(value: float | None) -> str:
        return "not finite" if value is None else f"{value:.5f}"

    return [(c.workload, c.system, c.numbers, c.form,
             text(c.losses[0]) if c.losses else c.reason, text(c.last) if c.losses else "",
             "" if c.error is None else f"{c.error:.0%}") for c in result.curves]


def provenance(result: CurvesResult) -> str:
    """Where and when it was measured, and on how many steps."""
    env = result.environment
    gpu = f"{env.gpu['name']}, driver {env.gpu['driver']}, CUDA {env.gpu['cuda']}" if env.gpu \
        else f"host ({env.platform})"
    steps = ", ".join(sorted({str(n) for n in result.steps.values()}, key=int))
    versions = ", ".join(f"{name} {version}" for name, version in env.libraries.items())
    return (f"{gpu}; {versions}; {steps} steps from the same weights on the same batches; "
            f"{env.date}, commit {env.commit or 'unknown'}")


def markdown(result: CurvesResult) -> str:
    """The table in Markdown, with its provenance below."""
    return "\n".join([*markdown_table(HEADINGS, rows(result), HEADINGS[:4]), "",
                      f"{provenance(result)}.", ""])


CURVES: Mapping[str, tuple[type[CurvesResult], int]] = {"curves": (CurvesResult, 1)}


def read_curves(path: str | os.PathLike[str]) -> CurvesResult:
    """Read what `write_json` wrote. Raises ConfigError for anything else."""
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=CurvesResult)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} holds no loss curves: {error}") from None


def run_curves(problems: Sequence[Problem], rules: Rules, left_out: dict[str, str],
               notify: Callable[[str], None]) -> CurvesResult:
    """Train each problem in every system for two epochs of its steps, and then time it, one program
    after the other. A system that fails is kept with the reason. Ctrl-C ends it with the problems
    that all systems have trained, if there are any. Raises DeviceError."""
    with open_device(rules.device, notify) as opened:
        environment = place_of(opened)
    ready: dict[str, dict[str, Prepared]] = {p.name: {} for p in problems}
    curves: dict[str, list[Curve]] = {}
    interrupted = False

    def done(prepared: Prepared) -> None:
        ready[prepared.problem.name][prepared.system] = prepared
        notify(f"{prepared.problem.name} in {prepared.system} is done")

    with Lanes(rules.systems, len(problems)) as lanes:
        try:
            found = lanes.prepare(
                sorted(problems, key=lambda p: -p.flops),  # the largest take longest
                lambda problem, system: Prepare(
                    problem, rules.device_of(system), rules.forms(problem, system),
                    rules.patience), done)
            for p in problems:
                curves[p.name] = _of(p, found[p.name])
        except KeyboardInterrupt:
            interrupted = True
            for p in problems:  # what all systems have trained has its curves, if not its times
                if p.name not in curves and len(ready[p.name]) == len(rules.systems):
                    curves[p.name] = _of(p, [ready[p.name][s] for s in rules.systems], timed=False)
            if not curves:
                raise
        environment.libraries.update(lanes.versions)
    return CurvesResult(
        environment=environment, systems=list(rules.systems), left_out=left_out,
        curves=[curve for several in curves.values() for curve in several],
        steps={p.name: CHECKED_EPOCHS * p.steps for p in problems if p.name in curves},
        problems=[p for p in problems if p.name in curves], interrupted=interrupted)


def _of(problem: Problem, prepared: Sequence[Prepared], timed: bool = True) -> list[Curve]:
    right = reference([(p.system, m) for p in prepared for m in p.made])
    found = [Curve(workload=problem.name, system=p.system, numbers=m.numbers, form=m.form,
                   losses=m.losses, reason=m.reason,
                   us=_timed(problem, p, index, m) if timed else [],
                   error=None if right is None or m.reason else _finite(share(right, problem, m)))
             for p in prepared for index, m in enumerate(p.made)]
    return found + [Curve(workload=problem.name, system=p.system, numbers="", form="", losses=[],
                          reason=p.reason) for p in prepared if not p.made]


def _timed(problem: Problem, prepared: Prepared, index: int, made: Made) -> list[float]:
    """Microseconds of a step, of a program that is not there for its losses alone."""
    if made.reason or made.numbers == TRUTH:
        return []
    return [ms * 1e3 / problem.steps for ms in prepared.time(index, TURN_S).milliseconds]


def _finite(value: float) -> float | None:
    return value if value != float("inf") else None
