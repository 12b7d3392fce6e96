"""What the toggle `tune` does before training: every variant of every launch of the step, measured
in the step itself.

A kernel that is fastest alone need not be so between its neighbours, whose data it finds in the
caches and whose blocks it shares the GPU with. So the whole step is timed, with one op after the
other in another variant, and a variant is kept only where nearly all of its samples are faster than
nearly all of those without it. What is found is remembered; the next run only reads it.
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
"""Steps of a program that is timed."""
SAMPLE_MS = 2.0
"""Device time of a sample at least."""
SCREENED, CONFIRMED = 3, 7
"""Samples of a variant, and of it and of what it would replace, in turns, where it looks faster."""


def tuned(device: Device, work: PreparedRun) -> PreparedRun:
    """The run with its launches as remembered for this GPU, and first as measured where nothing is
    remembered. Interrupted, it keeps what was found so far. A simulated device, whose times say
    nothing, goes by rule.

    Raises what making a runner raises; a variant that cannot run is left out.
    """
    if not has_clock(device):
        return work
    path = file_of(device.info)
    known = read(path, device.notify)
    plan = work.train
    missing = {key_of(op, plan): variants(op, plan) for op in plan.ops
               if key_of(op, plan) not in known}
    if missing:
        started, now = perf_counter(), _changes_of(known)
        with _StepTimer.on(device, work) as trial:
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
    return applied(work, _changes_of(known))


def has_clock(device: Device) -> bool:
    """Whether times on the device are those of a GPU."""
    return device.backend.name != "sim"


def _changes_of(known: dict[str, TunedLaunch]) -> dict[str, Changes]:
    return {key: found.changes for key, found in known.items() if found.changes}


def described(key: str, found: TunedLaunch) -> str:
    """An op and what is chosen for it, in words."""
    words = ", ".join(f"{name} {value}" for name, value in found.changes.items()) or "by rule"
    return f"{key}: {words}, {found.after:.1f} us a step, {found.before:.1f} before"


class _StepTimer:
    """A runner whose step can be timed in other variants."""

    def __init__(self, device: Device, work: PreparedRun) -> None:
        from rawnn.engine.runners.gpu import GpuRunner

        self._device = device
        policy = replace(work.policy, tune=False)
        self._steps = min(STEPS, work.steps)
        self._runner = GpuRunner(device, replace(work, policy=policy))
        self._program: Program | None = None
        self._made: dict[str, Changes] | None = None

    @classmethod
    @contextmanager
    def on(cls, device: Device, work: PreparedRun) -> Iterator[_StepTimer]:
        """With the orders, rates and parameters of an epoch behind it."""
        trial = cls(device, work)
        try:
            trial._runner.epoch(False)
            yield trial
        finally:
            if trial._program is not None:
                trial._program.close()
            trial._runner.close()

    def current(self, plan: Plan, choices: dict[str, Changes]) -> Program:
        """The program of the choices made so far."""
        if self._program is None or self._made != choices:
            made = self._make(plan, choices)
            if self._program is not None:
                self._program.close()
            self._program, self._made = made, dict(choices)
        return self._program

    def _make(self, plan: Plan, choices: dict[str, Changes]) -> Program:
        return self._runner.trial(with_choices(plan, choices), self._steps)

    def best(self, plan: Plan, choices: dict[str, Changes], key: str,
             others: list[Changes]) -> TunedLaunch:
        """The fastest of an op's variants, the rule's where none is faster beyond doubt."""
        now = self.current(plan, choices)
        before = after = self.us(now, SCREENED)
        best: Changes = {}
        for changes in others:
            wanted = {**choices, key: changes}
            try:
                program = self._make(plan, wanted)
            except RawnnError:  # too much shared memory, no such algorithm: it cannot run here
                continue
            try:
                if self.us(program, SCREENED) < after:
                    us, faster = self._compared(program, self.current(plan, {
                        **choices, **({key: best} if best else {})}))
                    if faster:
                        best, after = changes, us
                        self._program, program = program, self._program or program
                        self._made = wanted
            finally:
                program.close()
        return TunedLaunch(best, round(before, 2), round(after, 2))

    def _compared(self, one: Program, other: Program) -> tuple[float, bool]:
        """Microseconds a step of the one, and whether it is faster than the other beyond noise:
        all of its samples but the slowest before all of the other's but the fastest."""
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
