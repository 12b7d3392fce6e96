"""The GPU's clocks, temperature and power, as nvidia-smi reports them between runs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence

import msgspec

from rawnn.bench.statistics import Spread, spread
from rawnn.run.machine import Opened

FIELDS = ("sm_mhz", "mem_mhz", "temperature_c", "power_w")
QUERY = "clocks.sm,clocks.mem,temperature.gpu,power.draw"
PATIENCE_S = 10


class ClockSample(msgspec.Struct, frozen=True, kw_only=True):
    """One reading; None where the GPU does not report a quantity. MHz, degrees Celsius, watts."""

    sm_mhz: float | None = None
    mem_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None


def _nvidia_smi(arguments: Sequence[str]) -> str:
    return subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True,
                          timeout=PATIENCE_S, check=True).stdout


class ClockSampler:
    """Reads one GPU. After the first failure (no nvidia-smi, no such GPU) it stops asking, so that
    a machine without the tool loses no time."""

    def __init__(self, ordinal: int, query: Callable[[Sequence[str]], str] = _nvidia_smi) -> None:
        self._index = smi_index(ordinal, os.environ.get("CUDA_VISIBLE_DEVICES", ""))
        self._query: Callable[[Sequence[str]], str] | None = query

    def sample(self) -> ClockSample | None:
        """The reading of this moment, or None if there is none to be had."""
        if self._query is None:
            return None
        try:
            text = self._query(
                [f"--query-gpu={QUERY}", "--format=csv,noheader,nounits", "-i", self._index])
            values = [_number(word) for word in text.strip().splitlines()[0].split(",")]
            return ClockSample(**dict(zip(FIELDS, values, strict=True)))
        except (OSError, subprocess.SubprocessError, IndexError, ValueError):
            self._query = None
            return None


def sampler_of(opened: Opened) -> ClockSampler | None:
    """For the GPU that was opened; None for the host and a simulated GPU, which have no clocks."""
    device = opened.device
    return None if device is None or device.backend.name == "sim" else \
        ClockSampler(device.info.ordinal)


def smi_index(ordinal: int, visible: str) -> str:
    """What nvidia-smi -i takes for CUDA's device `ordinal`, given CUDA_VISIBLE_DEVICES."""
    names = [word.strip() for word in visible.split(",") if word.strip()]
    return names[ordinal] if ordinal < len(names) else str(ordinal)


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:  # "[N/A]", "[Not Supported]"
        return None


def summarize(samples: Sequence[ClockSample | None]) -> dict[str, Spread]:
    """The spread of each quantity over the readings that have it; empty if none was observed."""
    found: dict[str, Spread] = {}
    for name in FIELDS:
        values = [v for s in samples if s is not None and (v := getattr(s, name)) is not None]
        if values:
            found[name] = spread(values)
    return found
