"""What a launch costs the host of a GPU, beside whatever systems are installed."""

from __future__ import annotations

import pytest

from rawnn.bench.launches import BESIDE, measure
from rawnn.cuda.device import Device
from rawnn.engine.machine import Opened, machine_of

pytestmark = pytest.mark.gpu


def test_all_that_are_installed_launch_and_ours_cost_little_more(device: Device) -> None:
    result = measure(Opened(device, machine_of(device), 0.0), 20, 200)
    # A system may be broken by what else is installed; ours may not, and none may be wrong.
    assert not [way for way in result.ways if way.reason and not (
        way.reason.endswith("is not installed")
        or (way.reason.startswith("failed: ") and "rawnn" not in way.name))]
    medians = {way.name: way.us.median for way in result.ways if way.us}
    # Half of this is asked for; a busy host is no fault of ours.
    assert medians["rawnn"] < medians[BESIDE] + 1.0, medians
    assert medians["rawnn, bound"] < medians[BESIDE] + 0.2, medians
