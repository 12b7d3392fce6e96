"""The GPU's clocks, temperature, power and reasons for slowing down, as NVIDIA's management library
tells them.

It is asked through `nvidia-ml-py`; without the package, or without such a GPU, nothing is observed
and nothing else changes.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from rawnn.bench.statistics import Spread, spread
from rawnn.engine.machine import Opened

FIELDS = ("sm_mhz", "mem_mhz", "temperature_c", "power_w")
SLOWDOWNS = {"HwSlowdown": "hardware slowdown", "HwThermalSlowdown": "too hot",
             "HwPowerBrakeSlowdown": "power brake", "SwThermalSlowdown": "too hot (driver)",
             "SwPowerCap": "power limit"}
"""NVML's reasons for lower clocks -> what a reader is told. Idle or locked clocks are none."""


class ClockSample(msgspec.Struct, frozen=True, kw_only=True):
    """One reading; None where the GPU does not report a quantity. MHz, degrees Celsius, watts."""

    sm_mhz: float | None = None
    mem_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None


class _Nothing:
    """In place of the library where there is no GPU to ask about."""

    def nvmlInit(self) -> None:
        raise OSError("there is no GPU")


class ManagedGpu:
    """CUDA's device `ordinal`, as NVML sees it; `library` stands in for pynvml. One reading takes
    some 0.1 ms."""

    def __init__(self, ordinal: int, library: Any = None) -> None:
        self._nvml, self._handle = library, None
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
    def of(cls, opened: Opened) -> ManagedGpu:
        """The GPU that was opened; one that observes nothing for the host and simulated GPUs."""
        device = opened.device
        real = device is not None and device.backend.name != "sim"
        return cls(device.info.ordinal) if device and real else cls(0, _Nothing())

    @property
    def observes(self) -> bool:
        return self._handle is not None

    def sample(self) -> ClockSample | None:
        """The reading of this moment, or None if there is none to be had."""
        if self._handle is None:
            return None
        return ClockSample(
            sm_mhz=self._ask(lambda n, h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM)),
            mem_mhz=self._ask(lambda n, h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM)),
            temperature_c=self._ask(
                lambda n, h: n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU)),
            power_w=self._ask(lambda n, h: n.nvmlDeviceGetPowerUsage(h) / 1e3))

    def slowdowns(self) -> set[str]:
        """What makes the clocks lower at this moment."""
        bits = self._ask(lambda n, h: n.nvmlDeviceGetCurrentClocksThrottleReasons(h)) or 0
        return {words for name, words in SLOWDOWNS.items()
                if int(bits) & getattr(self._nvml, f"nvmlClocksThrottleReason{name}", 0)}

    def energy(self) -> float | None:
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


def summarize(samples: list[ClockSample | None]) -> dict[str, Spread]:
    """The spread of each quantity over the readings that have it; empty if none was observed."""
    found: dict[str, Spread] = {}
    for name in FIELDS:
        values = [v for s in samples if s is not None and (v := getattr(s, name)) is not None]
        if values:
            found[name] = spread(values)
    return found
