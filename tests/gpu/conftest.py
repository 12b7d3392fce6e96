"""The GPU that a module's tests share."""

from __future__ import annotations

import pytest

import rawnn
from rawnn.common.errors import DeviceError
from rawnn.cuda.device import Device
from rawnn.engine.machine import machine_of
from rawnn.opts.registry import Machine


@pytest.fixture(scope="module")
def device(gpu: Device) -> Device:
    """In place of the simulated one."""
    return gpu


@pytest.fixture(scope="module")
def machine(device: Device) -> Machine:
    """What toggles know of it."""
    return machine_of(device)


@pytest.fixture
def default_gpu() -> None:
    """For tests that leave it to rawnn which device it opens."""
    try:
        rawnn.empty(1)
    except DeviceError as error:
        pytest.skip(str(error))
