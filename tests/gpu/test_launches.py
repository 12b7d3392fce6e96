"""What a launch costs the host of a GPU, beside whatever systems are installed."""

from __future__ import annotations

import pytest

from rawnn.bench.cases.launches import TIMER, measure_launches
from rawnn.bench.conditions import Watch
from rawnn.bench.harness import Harness, place_of
from rawnn.cuda.device import Device
from rawnn.engine.machine import Opened, machine_of

pytestmark = pytest.mark.gpu


def test_all_that_are_installed_launch(device: Device) -> None:
    opened = Opened(device, machine_of(device), 0.0)
    with Harness("launches") as harness:
        harness.watch = Watch.of(opened)
        harness.stand(place_of(opened, TIMER))
        measure_launches(harness, opened, 20, 200)
    ways = harness.results.entries("launches")
    # A system may be broken by what else is installed; ours may not, and none may be wrong.
    assert not [way for way in ways if way.reason and not (
        way.reason.endswith("is not installed")
        or (way.reason.startswith("failed: ") and "rawnn" not in way.variant))]
