import subprocess
from collections.abc import Sequence

import pytest

from rawnn.bench.clocks import ClockSample, ClockSampler, smi_index, summarize


def test_a_reading_is_parsed_and_asks_for_the_right_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-abc")
    asked: list[Sequence[str]] = []

    def smi(arguments: Sequence[str]) -> str:
        asked.append(arguments)
        return "1980, 2619, 41, 125.51\n"

    sample = ClockSampler(1, smi).sample()
    assert sample == ClockSample(sm_mhz=1980, mem_mhz=2619, temperature_c=41, power_w=125.51)
    assert asked[0][-2:] == ["-i", "GPU-abc"]


def test_quantities_the_gpu_does_not_report_are_none() -> None:
    sample = ClockSampler(0, lambda a: "1980, [N/A], 41, [Not Supported]\n").sample()
    assert sample == ClockSample(sm_mhz=1980, temperature_c=41)


@pytest.mark.parametrize("answer", [
    FileNotFoundError("nvidia-smi"), subprocess.CalledProcessError(9, "nvidia-smi"),
    subprocess.TimeoutExpired("nvidia-smi", 10), "", "1980, 2619\n",
])
def test_without_a_reading_it_stops_asking(answer: str | Exception) -> None:
    calls = 0

    def smi(arguments: Sequence[str]) -> str:
        nonlocal calls
        calls += 1
        if isinstance(answer, Exception):
            raise answer
        return answer

    sampler = ClockSampler(0, smi)
    assert sampler.sample() is None
    assert sampler.sample() is None
    assert calls == 1


@pytest.mark.parametrize(("ordinal", "visible", "index"), [
    (0, "", "0"), (2, "", "2"), (0, "5", "5"), (1, "5, 6", "6"), (3, "5,6", "3"),
])
def test_cuda_visible_devices_renumbers(ordinal: int, visible: str, index: str) -> None:
    assert smi_index(ordinal, visible) == index


def test_the_summary_skips_what_was_not_read() -> None:
    found = summarize([ClockSample(sm_mhz=1000), None, ClockSample(sm_mhz=1200, power_w=80)])
    assert set(found) == {"sm_mhz", "power_w"}
    assert (found["sm_mhz"].min, found["sm_mhz"].median, found["sm_mhz"].max) == (1000, 1100, 1200)
    assert summarize([None]) == {}
