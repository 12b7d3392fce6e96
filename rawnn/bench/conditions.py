"""A GPU's clocks, temperature, power and reasons for slowing down, sampled while something runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TypeVar

import msgspec

from rawnn.bench.clocks import ClockSample, ManagedGpu, summarize
from rawnn.bench.statistics import Spread
from rawnn.engine.machine import Opened

T = TypeVar("T")

INTERVAL_S = 0.05
"""Seconds between samples; one takes some 0.1 ms of a core, in the thread that takes it."""

LEAST_S = 1.0
"""Seconds from which on the energy counter's steps, of some 0.1 s, do not matter."""

HARMLESS = ("power limit",)
"""Reasons that a GPU at full load has anyway, which make no run worth repeating."""


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen during a measurement: clocks in MHz, degrees Celsius, watts; `energy_j` is what
    the GPU took in all, `seconds` how long was watched. `slowdowns` are reasons for lower clocks
    that held at some sample."""

    sm_mhz: Spread | None = None
    mem_mhz: Spread | None = None
    temperature_c: Spread | None = None
    power_w: Spread | None = None
    slowdowns: list[str] = []
    energy_j: float | None = None
    seconds: float = 0.0

    @property
    def throttled(self) -> list[str]:
        """The slowdowns that make a measurement one of something else."""
        return [reason for reason in self.slowdowns if reason not in HARMLESS]


class Seen:
    """What `Watch.during` found; `conditions` once it has ended, None without NVML."""

    conditions: Conditions | None = None


class Watch:
    """Samples one GPU from a thread."""

    def __init__(self, gpu: ManagedGpu) -> None:
        self._gpu = gpu

    @classmethod
    def of(cls, opened: Opened) -> Watch:
        """Of the GPU that was opened; one that observes nothing for the host and simulated GPUs."""
        return cls(ManagedGpu.of(opened))

    @property
    def observes(self) -> bool:
        return self._gpu.observes

    @contextmanager
    def during(self) -> Iterator[Seen]:
        """Sample from now until the block ends."""
        seen = Seen()
        if not self.observes:
            yield seen
            return
        samples: list[ClockSample | None] = []
        reasons: set[str] = set()
        done, begun, energy = threading.Event(), monotonic(), self._gpu.energy()

        def watch() -> None:
            while True:
                reasons.update(self._gpu.slowdowns())
                samples.append(self._gpu.sample())
                if done.wait(INTERVAL_S):
                    return

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield seen
        finally:
            done.set()
            thread.join()
            end = self._gpu.energy()
            used = None if energy is None or end is None else (end - energy) / 1e3
            seen.conditions = Conditions(**summarize(samples), slowdowns=sorted(reasons),
                                         energy_j=used, seconds=monotonic() - begun)


def unslowed(measure: Callable[[], tuple[T, Conditions | None]]) -> tuple[T, Conditions | None]:
    """What `measure` gives with the conditions that it saw: once more where the GPU slowed down
    meanwhile; if it does so again, that is kept, and its conditions say so."""
    found = measure()
    return measure() if found[1] is not None and found[1].throttled else found


def slowed(conditions: Conditions | None) -> str:
    """In words that a measurement is one of a GPU that slowed down, and why; "" where it is not."""
    if conditions is None or not conditions.throttled:
        return ""
    return (f"ran on a slowed-down GPU ({', '.join(conditions.throttled)}), even when it was run "
            f"again")


def joules(conditions: Conditions | None, epochs: int) -> str:
    """Joules of an epoch, with its share of the test evaluation; "" where NVML does not say. A
    counter that moves some times a second tells nothing of a run shorter than that."""
    if conditions is None or conditions.energy_j is None or conditions.seconds < LEAST_S \
            or not epochs:
        return ""
    return f"{conditions.energy_j / epochs:.3g}"


def merged(parts: list[Conditions]) -> Conditions | None:
    """The conditions of several turns as one; None for none."""
    if not parts:
        return None

    def widest(name: str) -> Spread | None:
        spreads = [s for p in parts if (s := getattr(p, name)) is not None]
        if not spreads:
            return None
        middle = sorted(spreads, key=lambda s: s.median)[len(spreads) // 2]
        return Spread(n=sum(s.n for s in spreads), median=middle.median,
                      min=min(s.min for s in spreads), max=max(s.max for s in spreads),
                      mad=middle.mad)

    energies = [p.energy_j for p in parts if p.energy_j is not None]
    return Conditions(
        sm_mhz=widest("sm_mhz"), mem_mhz=widest("mem_mhz"), power_w=widest("power_w"),
        temperature_c=widest("temperature_c"),
        slowdowns=sorted({word for p in parts for word in p.slowdowns}),
        energy_j=sum(energies) if energies else None, seconds=sum(p.seconds for p in parts))
