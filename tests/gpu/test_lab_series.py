"""The last steps of the series in examples/lab are right at the size that is timed. How near they
come to the limit is asked by `tools/lab_series.py --check`."""

from __future__ import annotations

import pytest

from rawnn.cuda.device import Device
from rawnn.engine.machine import Opened, machine_of
from tools import lab_series

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("topic", lab_series.SIZES)
def test_the_last_step_is_right_and_timed(device: Device, monkeypatch: pytest.MonkeyPatch,
                                          topic: str) -> None:
    if topic == "gemm" and device.capability != (9, 0):
        pytest.skip("its last step is for compute capability 9.0")
    monkeypatch.setattr(lab_series, "steps_of", lambda name: sorted(
        (lab_series.LAB / name).glob("[1-9]_*.cu"))[-1:])
    opened = Opened(device, machine_of(device), 0.0)
    found, missing = lab_series.measure(opened, [topic], lab_series.SIZES, trials=2)
    steps = found.entries("lab", case=f"lab/{topic}", role="steps")
    assert [bool(step.samples("launch_us")) for step in steps] == [True], missing
