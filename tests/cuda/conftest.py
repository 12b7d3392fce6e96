"""A simulated GPU for a test; it must be left clean."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rawnn.cuda.device import Device
from rawnn.sim import Simulation


@pytest.fixture
def sim() -> Iterator[Simulation]:
    simulation = Simulation()
    yield simulation
    if not simulation.errors and not simulation.faults.failed:
        simulation.assert_clean()


@pytest.fixture
def device(sim: Simulation) -> Iterator[Device]:
    opened = Device(sim.backend())
    yield opened
    opened.close()
