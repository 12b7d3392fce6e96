"""The GPU that a module's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rawnn.device.cuda.device import Device
from rawnn.errors import DeviceError
from rawnn.opts.registry import Machine
from rawnn.run.machine import machine_of, open_gpu


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    """The first GPU, opened for a module and closed behind it; without one its tests skip."""
    try:
        opened = open_gpu(0, print)
    except DeviceError as error:
        pytest.skip(str(error))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def machine(device: Device) -> Machine:
    """What toggles know of it."""
    return machine_of(device)
