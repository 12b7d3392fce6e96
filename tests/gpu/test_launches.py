"""What a launch costs the host of a GPU, beside whatever systems are installed."""

from __future__ import annotations

import pytest

from rawnn.bench.launches import measure
from rawnn.cuda.device import Device
from rawnn.engine.machine import Opened, machine_of

pytestmark = pytest.mark.gpu


def test_all_that_are_installed_launch(device: Device) -> None:
    """What ours may cost is asked by `rawnn bench launches --check`."""
    result = measure(Opened(device, machine_of(device), 0.0), 20, 200)
    # A system may be broken by what else is installed; ours may not, and none may be wrong.
    assert not [way for way in result.ways if way.reason and not (
        way.reason.endswith("is not installed")
        or (way.reason.startswith("failed: ") and "rawnn" not in way.name))]
