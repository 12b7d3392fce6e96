"""The last steps of the series in examples/lab are as near to the limit as they say: at least 90 %
of a copy of as many bytes, and 95 % of cuBLASLt, in turns and with a cold L2 cache."""

from __future__ import annotations

import pytest

from rawnn.cuda.device import Device
from rawnn.engine.machine import Opened, machine_of
from tools import lab_series

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("topic", "share"), [
    ("reduction", 0.9), ("transpose", 0.9), ("softmax", 0.9), ("gemm", 0.95)])
def test_the_last_step_is_near_the_limit(device: Device, monkeypatch: pytest.MonkeyPatch,
                                         topic: str, share: float) -> None:
    if topic == "gemm" and device.capability != (9, 0):
        pytest.skip("its last step is for compute capability 9.0")
    monkeypatch.setattr(lab_series, "steps_of", lambda name: sorted(
        (lab_series.LAB / name).glob("[1-9]_*.cu"))[-1:])
    opened = Opened(device, machine_of(device), 0.0)
    (found,) = lab_series.measure(opened, [topic], lab_series.SIZES, trials=2).topics
    if not found.beside:
        pytest.skip("; ".join(found.missing))
    reached = found.beside[0].us.median / found.steps[-1].us.median
    assert reached >= share, (found.steps, found.beside)
