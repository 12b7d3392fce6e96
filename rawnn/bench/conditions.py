"""A GPU's clocks, temperature, power and reasons for slowing down while something runs, by NVIDIA's
management library.

It is asked through `nvidia-ml-py`. Without the package, or without such a GPU, nothing is observed
and nothing else changes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from time import monotonic
from typing import Any

from rawnn.engine.machine import Opened

INTERVAL_S = 0.05
"""Seconds between samples; one takes some 0.1 ms of a core, in the thread that takes it."""
SLOWDOWNS = {"HwSlowdown": "hardware slowdown", "HwThermalSlowdown": "too hot",
             "HwPowerBrakeSlowdown": "power brake", "SwThermalSlowdown": "too hot (driver)",
             "SwPowerCap": "power limit"}
"""NVML's reasons for lower clocks, and their names here. Idle or locked clocks are none."""
HARMLESS = ("power limit",)
"""Reasons that a GPU at full load has anyway, which make no run worth repeating."""


@dataclass
class Conditions:
    """What was observed during a measurement: of each quantity of record.CLOCK_METRICS that the GPU
    reports its minimum, median and maximum; reasons for lower clocks that held at some sample; the
    joules that the GPU took in all; and for how many seconds it was watched."""

    readings: dict[str, list[float]] = field(default_factory=dict)
    slowdowns: list[str] = field(default_factory=list)
    energy_j: float | None = None
    seconds: float = 0.0

    @property
    def throttled(self) -> list[str]:
        """The slowdowns that make a measurement one of something else."""
        return [reason for reason in self.slowdowns if reason not in HARMLESS]


class Watch:
    """Samples CUDA's device `ordinal` from a thread; none is observed without one. `library` stands
    in for pynvml."""

    def __init__(self, ordinal: int | None, library: Any = None) -> None:
        self._nvml, self._handle = library, None
        if ordinal is None:
            return
        try:
            if library is None:
                import pynvml

                self._nvml = pynvml
            self._nvml.nvmlInit()
            name = nvml_name(ordinal, os.environ.get("CUDA_VISIBLE_DEVICES", ""))
            self._handle = self._nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() \
                else self._nvml.nvmlDeviceGetHandleByUUID(name)
        except Exception:  # no package, no library, no such GPU: nothing is observed
            self._handle = None

    @classmethod
    def of(cls, opened: Opened) -> Watch:
        """Of the GPU that was opened; one that observes nothing for the host and simulated GPUs."""
        device = opened.device
        return cls(device.info.ordinal if device and device.backend.name != "sim" else None)

    @property
    def observes(self) -> bool:
        return self._handle is not None

    @contextmanager
    def during(self) -> Iterator[Conditions]:
        """Sample from now until the block ends; what is given has the readings from then on, none
        without NVML."""
        observed = Conditions()
        if not self.observes:
            yield observed
            return
        readings: dict[str, list[float]] = {}
        reasons: set[str] = set()
        done, begun, energy = threading.Event(), monotonic(), self._energy()

        def watch() -> None:
            while True:
                reasons.update(self._slowdowns())
                for name, value in self._sample().items():
                    readings.setdefault(name, []).append(value)
                if done.wait(INTERVAL_S):
                    return

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield observed
        finally:
            done.set()
            thread.join()
            end = self._energy()
            if energy is not None and end is not None:
                observed.energy_j = (end - energy) / 1e3
            observed.readings = {name: [min(values), median(values), max(values)]
                                 for name, values in readings.items()}
            observed.slowdowns, observed.seconds = sorted(reasons), monotonic() - begun

    def _sample(self) -> dict[str, float]:
        """The reading of this moment: MHz, degrees Celsius, watts."""
        found = {
            "sm_mhz": self._ask(lambda n, h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM)),
            "mem_mhz": self._ask(lambda n, h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM)),
            "temperature_c": self._ask(
                lambda n, h: n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU)),
            "power_w": self._ask(lambda n, h: n.nvmlDeviceGetPowerUsage(h) / 1e3)}
        return {name: value for name, value in found.items() if value is not None}

    def _slowdowns(self) -> set[str]:
        """What makes the clocks lower at this moment."""
        bits = self._ask(lambda n, h: n.nvmlDeviceGetCurrentClocksThrottleReasons(h)) or 0
        return {words for name, words in SLOWDOWNS.items()
                if int(bits) & getattr(self._nvml, f"nvmlClocksThrottleReason{name}", 0)}

    def _energy(self) -> float | None:
        """Millijoules since the driver was loaded."""
        return self._ask(lambda n, h: n.nvmlDeviceGetTotalEnergyConsumption(h))

    def _ask(self, question: Any) -> float | None:
        try:
            return float(question(self._nvml, self._handle))
        except Exception:  # this GPU does not report it
            return None


def nvml_name(ordinal: int, visible: str) -> str:
    """NVML's index, or the UUID, of CUDA's device `ordinal`, given CUDA_VISIBLE_DEVICES."""
    names = [word.strip() for word in visible.split(",") if word.strip()]
    return names[ordinal] if ordinal < len(names) else str(ordinal)
