"""What is read of a GPU's clocks between runs, with a stand-in for NVML."""

from types import SimpleNamespace
from typing import Any

import pytest

from rawnn.bench.clocks import ClockSample, ManagedGpu, nvml_name, summarize


class Library(SimpleNamespace):
    """NVML with one GPU; `refuses` are questions that it does not answer."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = "sm", "mem", "core"
    nvmlClocksThrottleReasonSwPowerCap = 4
    nvmlClocksThrottleReasonHwThermalSlowdown = 64
    refuses: tuple[str, ...] = ()
    asked: Any = None

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

    def nvmlDeviceGetClockInfo(self, gpu: str, which: str) -> int:
        assert gpu == "gpu"
        return {"sm": 1980, "mem": 2619}[which]

    def nvmlDeviceGetTemperature(self, gpu: str, which: str) -> int:
        assert (gpu, which) == ("gpu", "core")
        return 41

    def nvmlDeviceGetPowerUsage(self, gpu: str) -> int:
        return 125510

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: str) -> int:
        return 4 + 64 + 1


def test_a_reading_is_of_the_right_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-abc")
    library = Library()
    gpu = ManagedGpu(1, library)
    assert gpu.sample() == ClockSample(sm_mhz=1980, mem_mhz=2619, temperature_c=41, power_w=125.51)
    assert gpu.slowdowns() == {"power limit", "too hot"}
    assert library.asked == "GPU-abc"
    assert ManagedGpu(0, library).observes
    assert library.asked == 3


def test_quantities_the_gpu_does_not_report_are_none() -> None:
    library = Library(refuses=("nvmlDeviceGetPowerUsage", "nvmlDeviceGetTemperature",
                               "nvmlDeviceGetCurrentClocksThrottleReasons"))
    gpu = ManagedGpu(0, library)
    assert gpu.sample() == ClockSample(sm_mhz=1980, mem_mhz=2619)
    assert gpu.slowdowns() == set()
    assert gpu.energy() is None  # which this library does not know


@pytest.mark.parametrize("refused", ["nvmlInit", "nvmlDeviceGetHandleByIndex"])
def test_without_the_library_or_the_gpu_there_is_no_reading(refused: str) -> None:
    gpu = ManagedGpu(0, Library(refuses=(refused,)))
    assert not gpu.observes
    assert gpu.sample() is None


@pytest.mark.parametrize(("ordinal", "visible", "index"), [
    (0, "", "0"), (2, "", "2"), (0, "5", "5"), (1, "5, 6", "6"), (3, "5,6", "3"),
])
def test_cuda_visible_devices_renumbers(ordinal: int, visible: str, index: str) -> None:
    assert nvml_name(ordinal, visible) == index


def test_the_summary_skips_what_was_not_read() -> None:
    found = summarize([ClockSample(sm_mhz=1000), None, ClockSample(sm_mhz=1200, power_w=80)])
    assert set(found) == {"sm_mhz", "power_w"}
    assert (found["sm_mhz"].min, found["sm_mhz"].median, found["sm_mhz"].max) == (1000, 1100, 1200)
    assert summarize([None]) == {}
