"""A simulated GPU: the CUDA driver, NVRTC, cuBLASLt, cuDNN and NCCL behind the same interfaces as
the real ones, for `--device sim` and for tests.

It checks what a GPU does not: accesses against allocations and uninitialised memory, arguments
against the kernel's declaration, and the order of every two accesses to the same bytes, in whatever
order they happened to run. Kernels' effects are their ops' NumPy references.
"""

from __future__ import annotations

from rawnn.cuda.backend import Backend
from rawnn.sim.errors import Race, ReadBeforeWrite, SimulationError
from rawnn.sim.faults import Fault, Faults
from rawnn.sim.kernel_references import register
from rawnn.sim.simulation import Leak, Simulation

__all__ = ["Fault", "Faults", "Leak", "Race", "ReadBeforeWrite", "Simulation", "SimulationError",
           "register", "sim_backend"]


def sim_backend(seed: int = 0, faults: Faults | None = None,
                compute_capability: tuple[int, int] = (9, 0), memory: int = 16 << 30) -> Backend:
    """The libraries of a new simulated GPU; parameters as for Simulation."""
    return Simulation(seed, faults, compute_capability, memory).backend()
