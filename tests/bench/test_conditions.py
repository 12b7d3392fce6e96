"""What is observed of a GPU while something runs: warm-up, clocks, throttling."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from rawnn.bench import conditions
from rawnn.bench.conditions import Conditions, Watch, nvml_name
from rawnn.bench.harness import Harness
from rawnn.bench.peers import worker
from rawnn.bench.peers.system_comparison import Rules, compare, open_compared, task_of
from rawnn.bench.peers.worker import timed
from tests.bench.measuring import standing, tiny


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


class Library(SimpleNamespace):
    """As much of NVML as is asked; `refuses` are questions that it does not answer."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    nvmlClocksThrottleReasonHwSlowdown = 8
    nvmlClocksThrottleReasonSwPowerCap = 4
    refuses: tuple[str, ...] = ()
    asked: Any = None
    joules = 0

    def __getattribute__(self, name: str) -> Any:
        if name in super().__getattribute__("refuses"):
            raise RuntimeError("Not Supported")
        return super().__getattribute__(name)

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        self.asked = index
        return "gpu"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.asked = uuid
        return "gpu"

    def nvmlDeviceGetClockInfo(self, handle: str, which: int) -> int:
        return 1980 if which == 1 else 3201

    def nvmlDeviceGetTemperature(self, handle: str, which: int) -> int:
        return 41

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return 250_000

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        self.joules += 5
        return self.joules * 1000

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return 8 + 4 + 1


def seen_by(watch: Watch) -> Conditions:
    with watch.during() as observed:
        pass
    return observed


def test_conditions_are_sampled_while_something_runs() -> None:
    found = seen_by(Watch(0, Library()))
    assert found.readings == {"sm_mhz": [1980.0] * 3, "mem_mhz": [3201.0] * 3,
                              "temperature_c": [41.0] * 3, "power_w": [250.0] * 3}
    assert found.energy_j == 5.0
    assert found.slowdowns == ["hardware slowdown", "power limit"]
    assert found.throttled == ["hardware slowdown"]


def test_the_library_is_nvidias_unless_another_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert Watch(2).observes
    assert library.asked == 2
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert not Watch(2).observes


def test_readings_are_the_least_the_middle_and_the_most_and_seconds_those_of_the_block(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a GPU whose power rises by 10 W with each look; a slowdown of one look is kept."""
    watts, reasons, now = iter(range(100, 1000, 10)), iter([4, 64]), iter([5.0, 9.5])
    library = Library()
    library.nvmlClocksThrottleReasonHwThermalSlowdown = 64
    library.nvmlDeviceGetPowerUsage = lambda handle: next(watts) * 1000
    library.nvmlDeviceGetCurrentClocksThrottleReasons = lambda handle: next(reasons, 0)
    monkeypatch.setattr(conditions, "monotonic", lambda: next(now))
    looks = iter([False, False, False, True])
    monkeypatch.setattr(conditions.threading, "Event", lambda: SimpleNamespace(
        wait=lambda seconds: next(looks), set=lambda: None))
    monkeypatch.setattr(conditions.threading, "Thread", lambda target, daemon: SimpleNamespace(
        start=target, join=lambda: None))
    found = seen_by(Watch(0, library))
    assert found.readings["power_w"] == [100.0, 115.0, 130.0]
    assert (found.slowdowns, found.throttled) == (["power limit", "too hot"], ["too hot"])
    assert found.seconds == 4.5


def test_what_a_gpu_does_not_report_is_left_out() -> None:
    found = seen_by(Watch(0, Library(refuses=(
        "nvmlDeviceGetPowerUsage", "nvmlDeviceGetTotalEnergyConsumption",
        "nvmlDeviceGetCurrentClocksThrottleReasons"))))
    assert set(found.readings) == {"sm_mhz", "mem_mhz", "temperature_c"}
    assert (found.energy_j, found.slowdowns) == (None, [])


@pytest.mark.parametrize("watch", [
    Watch(0, Library(refuses=("nvmlInit",))), Watch(None),
    Watch(0, Library(refuses=("nvmlDeviceGetHandleByIndex",)))])
def test_nothing_is_observed_without_the_library_or_a_gpu(watch: Watch) -> None:
    assert not watch.observes
    assert seen_by(watch) == Conditions()


def test_the_gpu_is_the_one_that_cuda_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-abc")
    library = Library()
    assert Watch(1, library).observes
    assert library.asked == "GPU-abc"
    assert Watch(0, library).observes
    assert library.asked == 3


@pytest.mark.parametrize(("ordinal", "visible", "index"), [
    (0, "", "0"), (2, "", "2"), (0, "5", "5"), (1, "5, 6", "6"), (3, "5,6", "3"),
])
def test_cuda_visible_devices_renumbers(ordinal: int, visible: str, index: str) -> None:
    assert nvml_name(ordinal, visible) == index


def test_a_throttled_turn_is_repeated_and_then_marked() -> None:
    """Without CUDA the programs run on the host, while a GPU made up says that it slowed down."""
    with standing("sample") as harness:
        harness.watch = Watch(0, Library())
        compare(harness, [task_of(tiny(steps=4), "sample/3")],
                Rules(("rawnn", "numpy"), "host", rounds=1))
    for entry in harness.results.entries():
        assert entry.notes[-1].startswith("ran on a slowed-down GPU (hardware slowdown)")
        assert len(entry.samples("step_us")) == 4
        assert entry.samples("sm_mhz") == [1980.0] * 3


@pytest.mark.parametrize("way", ["a suite", "a comparison"])
def test_whoever_measures_watches_the_device_that_was_opened(monkeypatch: pytest.MonkeyPatch,
                                                             way: str) -> None:
    """And says where that was, and which peers are left out."""
    seen: list[Any] = []
    watch = Watch(None)
    monkeypatch.setattr(Watch, "of", classmethod(lambda cls, opened: seen.append(opened) or watch))
    said: list[str] = []
    with Harness("made-up", notify=said.append) as harness:
        if way == "a suite":
            harness.open("host", {"step_us": "how"})
        else:
            rules: Any = SimpleNamespace(device="host")
            memory = open_compared(harness, rules, {"jax": "jax is not installed"},
                                   {"step_us": "how"})
            assert memory is None
        assert harness.watch is watch
        assert [opened.device for opened in seen] == [None]
        assert (harness.environment.device, harness.environment.timer) == ("host",
                                                                           {"step_us": "how"})
        records = harness.results.records
        assert [(r.variant, r.status, r.reason) for r in records] == (
            [("jax", "unavailable", "jax is not installed")] if way == "a comparison" else [])
    assert [line for line in said if "jax" in line] == (
        ["jax is not installed; it is left out"] if way == "a comparison" else [])
