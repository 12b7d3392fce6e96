"""The toggle `tune`: before training, every variant of every launch is measured in the step itself.

A kernel that is fastest by itself need not be so in the step, where it finds data in the caches and
shares the GPU with other kernels. So complete steps are timed, with one op at a time in another
variant. A variant is used only if nearly all of its samples are faster than nearly all of those
without it. The results are stored, and later runs only read them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter

from rawnn.common.errors import RawnnError
from rawnn.cuda.device import Device
from rawnn.cuda.stream import Event
from rawnn.engine.launch_choices import (
    Changes,
    TunedLaunch,
    applied,
    file_of,
    key_of,
    read,
    variants,
    with_choices,
    write,
)
from rawnn.engine.runners.prepared_run import PreparedRun
from rawnn.engine.runners.programs import Program
from rawnn.plan.plan import Plan

STEPS = 16
"""Steps of a timed program."""
SAMPLE_MS = 2.0
"""Least device time of a sample."""
SCREENED, CONFIRMED = 3, 7
"""Samples of each variant; and alternating samples of it and its predecessor if it looks faster."""


def tuned(device: Device, prepared: PreparedRun) -> PreparedRun:
    """The run with the stored launches of this GPU; if none are stored, they are measured first.
    Interrupted, it stores what was found so far. A simulated device has no meaningful times and
    uses the defaults.

    Raises what the construction of a runner raises; a variant that cannot run is left out.
    """
    if not has_clock(device):
        return prepared
    path = file_of(device.info)
    known = read(path, device.notify)
    plan = prepared.train
    missing = {key_of(op, plan): variants(op, plan) for op in plan.ops
               if key_of(op, plan) not in known}
    if missing:
        started, now = perf_counter(), _changes_of(known)
        with _StepTimer.on(device, prepared) as trial:
            first = trial.us(trial.current(plan, now), SCREENED)
            for key, others in missing.items():
                known[key] = trial.best(plan, _changes_of(known), key, others)
                write(path, device.info, known, device.notify)
            last = trial.us(trial.current(plan, _changes_of(known)), SCREENED)
        count = sum(map(len, missing.values()))
        device.notify(f"tune measured {count} variants of {len(missing)} launches in "
                      f"{perf_counter() - started:.1f} s: {last:.1f} us a step, {first:.1f} before")
        for key in missing:
            if known[key].changes:
                device.notify(f"tune: {described(key, known[key])}")
    return applied(prepared, _changes_of(known))


def has_clock(device: Device) -> bool:
    """Whether times on the device are those of a GPU."""
    return device.backend.name != "sim"


def _changes_of(known: dict[str, TunedLaunch]) -> dict[str, Changes]:
    return {key: found.changes for key, found in known.items() if found.changes}


def described(key: str, found: TunedLaunch) -> str:
    """An op and its choice, in words."""
    words = ", ".join(f"{name} {value}" for name, value in found.changes.items()) or "by rule"
    return f"{key}: {words}, {found.after:.1f} us a step, {found.before:.1f} before"


class _StepTimer:
    """A runner whose step can be timed in other variants."""

    def __init__(self, device: Device, prepared: PreparedRun) -> None:
        from rawnn.engine.runners.gpu import GpuRunner

        self._device = device
        policy = replace(prepared.policy, tune=False)
        self._steps = min(STEPS, prepared.steps)
        self._runner = GpuRunner(device, replace(prepared, policy=policy))
        self._program: Program | None = None
        self._choices: dict[str, Changes] | None = None

    @classmethod
    @contextmanager
    def on(cls, device: Device, prepared: PreparedRun) -> Iterator[_StepTimer]:
        """A timer whose orders, rates and parameters are those of a started epoch."""
        trial = cls(device, prepared)
        try:
            trial._runner.epoch(False)
            yield trial
        finally:
            if trial._program is not None:
                trial._program.close()
            trial._runner.close()

    def current(self, plan: Plan, choices: dict[str, Changes]) -> Program:
        """The program of the choices so far."""
        if self._program is None or self._choices != choices:
            program = self._make(plan, choices)
            if self._program is not None:
                self._program.close()
            self._program, self._choices = program, dict(choices)
        return self._program

    def _make(self, plan: Plan, choices: dict[str, Changes]) -> Program:
        return self._runner.trial(with_choices(plan, choices), self._steps)

    def best(self, plan: Plan, choices: dict[str, Changes], key: str,
             others: list[Changes]) -> TunedLaunch:
        """The fastest of an op's variants; the default if none is clearly faster."""
        now = self.current(plan, choices)
        before = after = self.us(now, SCREENED)
        best: Changes = {}
        for changes in others:
            wanted = {**choices, key: changes}
            try:
                program = self._make(plan, wanted)
            except RawnnError:  # too much shared memory, or no such algorithm: it cannot run here
                continue
            try:
                if self.us(program, SCREENED) < after:
                    us, faster = self._compared(program, self.current(plan, {
                        **choices, **({key: best} if best else {})}))
                    if faster:
                        best, after = changes, us
                        self._program, program = program, self._program or program
                        self._choices = wanted
            finally:
                program.close()
        return TunedLaunch(best, round(before, 2), round(after, 2))

    def _compared(self, one: Program, other: Program) -> tuple[float, bool]:
        """Microseconds a step of `one`, and whether it is faster than `other` beyond noise: all of
        its samples but the slowest are below all of the other's but the fastest."""
        pairs = [(self._sample(one), self._sample(other)) for _ in range(CONFIRMED)]
        ours, theirs = (sorted(samples) for samples in zip(*pairs, strict=True))
        return statistics.median(ours), ours[-2] < theirs[1]

    def us(self, program: Program, samples: int) -> float:
        """Median microseconds a step."""
        self._sample(program)
        return statistics.median(self._sample(program) for _ in range(samples))

    def _sample(self, program: Program) -> float:
        """Microseconds a step, over as many runs as a sample needs."""
        runs, total = 1, 0.0
        while True:
            total = self._milliseconds(program, runs)
            if total >= SAMPLE_MS or runs >= 1 << 12:
                return total * 1e3 / (runs * self._steps)
            runs *= max(2, min(int(SAMPLE_MS / max(total, 1e-3) + 1), 1 << 12))

    def _milliseconds(self, program: Program, runs: int) -> float:
        stream = self._device.stream
        start, end = Event(self._device.driver), Event(self._device.driver)
        try:
            start.record(stream)
            for _ in range(runs):
                program.run(self._steps)
            end.record(stream)
            stream.synchronize("measuring a variant")
            return end.milliseconds_since(start)
        finally:
            start.close()
            end.close()
