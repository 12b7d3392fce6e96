"""Loss curves: ours and the peers' on top of each other, from the same weights on the same batches.

Nothing is timed here, so that many steps cost little.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic

import msgspec

from rawnn.bench.peers.check import reference, share
from rawnn.bench.peers.contest import Rules
from rawnn.bench.peers.problem import Problem
from rawnn.bench.peers.process import SystemProcess
from rawnn.bench.peers.worker import CHECKED_EPOCHS, Prepare
from rawnn.bench.records import place_of
from rawnn.errors import ConfigError, RawnnError
from rawnn.files import write_atomically
from rawnn.machine import open_device
from rawnn.result import Environment


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """The loss of each step of one program (None: not finite). `error` is the share of the stated
    tolerance that it used up beside the others' float32, None where there was nothing to compare
    with."""

    workload: str
    system: str
    numbers: str
    form: str
    losses: list[float | None]
    error: float | None = None
    reason: str = ""


class CurvesResult(msgspec.Struct, frozen=True, kw_only=True):
    """All curves, and where they were drawn."""

    kind: str = "curves"
    schema_version: int = 1
    environment: Environment
    systems: list[str]
    left_out: dict[str, str]
    steps: dict[str, int]
    curves: list[Curve]

    def write_json(self, path: str | os.PathLike[str]) -> None:
        """Write it atomically. Raises RawnnError where the file cannot be written."""
        write_atomically(path, msgspec.json.encode(self) + b"\n")


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
    """Train each problem in every system for two epochs of its steps. A system that fails is kept
    with the reason. Raises DeviceError."""
    opened = open_device(rules.device, notify)
    environment = place_of(opened)
    if opened.device:
        with suppress(RawnnError):
            opened.device.close()
    curves: list[Curve] = []
    for problem in problems:
        notify(f"{problem.name}: {CHECKED_EPOCHS * problem.steps} steps in each system")
        curves += _curves(problem, rules, environment)
    return CurvesResult(
        environment=environment, systems=list(rules.systems), left_out=left_out, curves=curves,
        steps={p.name: CHECKED_EPOCHS * p.steps for p in problems})


def _curves(problem: Problem, rules: Rules, environment: Environment) -> list[Curve]:
    processes = [SystemProcess(system, max(1, (os.cpu_count() or 2) // len(rules.systems)))
                 for system in rules.systems]
    try:
        for process in processes:
            process.prepare(Prepare(problem, rules.device_of(process.system),
                                    rules.forms(problem, process.system), rules.patience))
        deadline = monotonic() + 1.25 * rules.patience + 20
        for process in processes:
            process.settle(deadline)
            environment.libraries.update(process.versions)
        right = reference([(p.system, m) for p in processes for m in p.made])
        found = [Curve(workload=problem.name, system=p.system, numbers=m.numbers, form=m.form,
                       losses=m.losses, reason=m.reason,
                       error=None if right is None or m.reason else _finite(
                           share(m.losses, right, m.numbers)))
                 for p in processes for m in p.made]
        return found + [Curve(workload=problem.name, system=p.system, numbers="", form="",
                              losses=[], reason=p.lost) for p in processes if p.lost]
    finally:
        for process in processes:
            process.close()


def _finite(value: float) -> float | None:
    return value if value != float("inf") else None
