"""What tests of graphs share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rawnn.cuda.device import Device
from rawnn.graphs import Graph


@pytest.fixture
def graph(device: Device) -> Iterator[Graph]:
    """An empty graph, closed behind the test."""
    made = Graph(device.driver, device.context)
    yield made
    made.close()
