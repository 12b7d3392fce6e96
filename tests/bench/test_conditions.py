"""What is seen of a GPU while something runs: warm-up, clocks, throttling."""

from __future__ import annotations

from typing import Any

import pytest

from rawnn.bench.clocks import ManagedGpu
from rawnn.bench.conditions import Conditions, Watch
from rawnn.bench.peers import worker
from rawnn.bench.peers.contest import Rules, run_contests
from rawnn.bench.peers.worker import timed
from tests.bench.contests import tiny


class Clock:
    """A program that gets faster, and then stays."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def block(self, epochs: int) -> float:
        self.asked.append(epochs)
        return max(20.0 - len(self.asked), 12.0)

    def reorder(self, order: Any) -> None: ...

    def losses(self) -> Any: ...


def test_warm_up_ends_when_the_last_samples_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "WARM_S", 0.0)
    clock = Clock()
    found = timed(clock)
    assert found.milliseconds == [12.0] * 4
    assert found.steady
    assert len(clock.asked) == 10 + 4


def test_a_program_that_never_settles_is_timed_and_said_to_be_unsteady(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "PATIENCE_S", 0.0)
    assert not timed(Clock()).steady


def test_long_samples_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "LONG_S", -1.0)
    found = timed(Clock())
    assert (len(found.milliseconds), found.epochs) == (2, 2)


class Library:
    """As much of NVML as is asked."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    nvmlClocksThrottleReasonHwSlowdown = 8
    nvmlClocksThrottleReasonSwPowerCap = 4
    reasons, energy = 12, 0

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetClockInfo(self, handle: int, which: int) -> int:
        return 1980 if which == 1 else 3201

    def nvmlDeviceGetTemperature(self, handle: int, which: int) -> int:
        raise RuntimeError("not supported")

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 250_000

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        self.energy += 5000
        return self.energy

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return self.reasons


def test_conditions_are_sampled_while_something_runs() -> None:
    with Watch(ManagedGpu(0, Library())).during() as seen:
        pass
    found = seen.conditions
    assert found is not None
    assert found.sm_mhz is not None
    assert found.sm_mhz.median == 1980
    assert found.temperature_c is None
    assert found.energy_j == 5.0
    assert found.slowdowns == ["hardware slowdown", "power limit"]
    assert found.throttled == ["hardware slowdown"]


def test_nothing_is_observed_without_the_library() -> None:
    class Broken:
        def nvmlInit(self) -> None:
            raise OSError("no driver")

    watch = Watch(ManagedGpu(0, Broken()))
    assert not watch.observes
    with watch.during() as seen:
        pass
    assert seen.conditions is None


def test_a_throttled_turn_is_repeated_and_then_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    contest, = run_contests([tiny(steps=4)], Rules(("rawnn", "numpy"), "host", rounds=1),
                            Watch(ManagedGpu(0, Library())))
    for entry in contest.entries:
        assert entry.throttled == ["hardware slowdown"]
        assert len(entry.us) == 4
        assert isinstance(entry.conditions, Conditions)
