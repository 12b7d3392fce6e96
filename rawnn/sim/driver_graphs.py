"""The simulated driver's graph calls: construction, capture, instantiation and launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rawnn.sim.errors import Refused
from rawnn.sim.faults import seam
from rawnn.sim.graphs import Effect, Executable, GraphData, Node, dependency_indices
from rawnn.sim.kernels import Kernel
from rawnn.sim.simulation import Capture, Simulation

_INVALID = "CUDA_ERROR_INVALID_VALUE"


class GraphCalls:
    """The graph calls of `rawnn.cuda.driver.Driver`. A graph or executable graph that was
    destroyed is refused with CUDA_ERROR_INVALID_VALUE."""

    library = "cuda"
    simulation: Simulation

    @property
    def functions(self) -> dict[int, Kernel]:
        """Kernels by function handle."""
        found: dict[int, Kernel] = self.simulation.__dict__.setdefault("functions", {})
        return found

    def memset_effect(self, address: int, value: int, nbytes: int) -> Effect:
        raise AttributeError

    def _graph(self, handle: Any) -> GraphData:
        found: GraphData = self.simulation.find(handle, "graph", _INVALID)
        return found
