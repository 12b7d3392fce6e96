"""The GPU's clocks, temperature, power and reasons for slowing down, sampled while something runs.

NVIDIA's management library is asked through `nvidia-ml-py`, from a thread; without the package, or
without such a GPU, nothing is observed and nothing else changes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

import msgspec

from rawnn.bench.clocks import smi_index
from rawnn.bench.statistics import Spread, spread
from rawnn.run.machine import Opened

INTERVAL_S = 0.05
"""Seconds between samples; one takes some 0.1 ms of a core, in the thread that takes it."""

SLOWDOWNS = {"HwSlowdown": "hardware slowdown", "HwThermalSlowdown": "too hot",
             "HwPowerBrakeSlowdown": "power brake", "SwThermalSlowdown": "too hot (driver)",
             "SwPowerCap": "power limit"}
"""NVML's reasons for lower clocks -> what a reader is told. Idle or locked clocks are none."""
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


class _Nothing:
    """In place of the library where there is no GPU to watch."""

    def nvmlInit(self) -> None:
        raise OSError("there is no GPU")


class Watch:
    """Samples one GPU, CUDA's device `ordinal`. Use as a context manager."""

    def __init__(self, ordinal: int, library: Any = None) -> None:
        self._nvml, self._handle = library, None
        try:
            if library is None:
                import pynvml

                self._nvml = pynvml
            self._nvml.nvmlInit()
            name = smi_index(ordinal, os.environ.get("CUDA_VISIBLE_DEVICES", ""))
            self._handle = self._nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() \
                else self._nvml.nvmlDeviceGetHandleByUUID(name)
        except Exception:  # no package, no library, no such GPU: nothing is observed
            self._handle = None

    @classmethod
    def of(cls, opened: Opened) -> Watch:
        """Of the GPU that was opened; one that observes nothing for the host and simulated GPUs."""
        device = opened.device
        real = device is not None and device.backend.name != "sim"
        return cls(device.info.ordinal) if device and real else cls(0, _Nothing())

    @property
    def observes(self) -> bool:
        return self._handle is not None

    @contextmanager
    def during(self) -> Iterator[Seen]:
        """Sample from now until the block ends."""
        seen = Seen()
        if self._handle is None:
            yield seen
            return
        samples: list[dict[str, float]] = []
        reasons: set[str] = set()
        done, begun, energy = threading.Event(), monotonic(), self._energy()

        def watch() -> None:
            while True:
                samples.append(self._sample(reasons))
                if done.wait(INTERVAL_S):
                    return

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield seen
        finally:
            done.set()
            thread.join()
            end = self._energy()
            used = None if energy is None or end is None else (end - energy) / 1e3
            spreads = {name: spread(values) for name in ("sm_mhz", "mem_mhz", "temperature_c",
                                                         "power_w")
                       if (values := [s[name] for s in samples if name in s])}
            seen.conditions = Conditions(**spreads, slowdowns=sorted(reasons), energy_j=used,
                                         seconds=monotonic() - begun)

    def _energy(self) -> float | None:
        """Millijoules since the driver was loaded."""
        return self._ask(lambda n, h: n.nvmlDeviceGetTotalEnergyConsumption(h))

    def _sample(self, reasons: set[str]) -> dict[str, float]:
        questions = {
            "sm_mhz": lambda n, h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM),
            "mem_mhz": lambda n, h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM),
            "temperature_c": lambda n, h: n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU),
            "power_w": lambda n, h: n.nvmlDeviceGetPowerUsage(h) / 1e3,
        }
        bits = self._ask(lambda n, h: n.nvmlDeviceGetCurrentClocksThrottleReasons(h))
        for name, words in SLOWDOWNS.items():
            bit = getattr(self._nvml, f"nvmlClocksThrottleReason{name}", 0)
            if bits is not None and int(bits) & bit:
                reasons.add(words)
        found = {name: self._ask(question) for name, question in questions.items()}
        return {name: value for name, value in found.items() if value is not None}

    def _ask(self, question: Any) -> float | None:
        try:
            return float(question(self._nvml, self._handle))
        except Exception:  # this GPU does not report it
            return None


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
