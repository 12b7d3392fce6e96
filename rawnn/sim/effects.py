"""Effects of the work that streams and graph nodes have in common: fills, copies and launches."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from rawnn.sim.errors import Refused, SimulationError
from rawnn.sim.graphs import Effect
from rawnn.sim.kernels import Kernel
from rawnn.sim.memory import BASE
from rawnn.sim.order import Task
from rawnn.sim.simulation import Simulation

_GRID_LIMITS, _BLOCK_LIMITS = (2**31 - 1, 65535, 65535), (1024, 1024, 64)


class Effects:
    """Makes effects on one simulation's memory. `functions` are the kernels by handle."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.functions: dict[int, Kernel] = {}

    def memset_effect(self, address: int, value: int, nbytes: int) -> Effect:
        memory = self.simulation.memory

        def run(task: Task) -> None:
            region = memory.region(address, nbytes, nbytes, 1, f"destination of {task}")
            memory.write(task, region, "destination")
            region.bytes()[...] = value & 0xFF
            memory.mark_written(region)

        return run

    def copy_effect(self, kind: str, destination: int, source: int, nbytes: int,
                    staged: bool = False) -> Effect:
        """A copy; host bytes are read now if `staged`, else when the copy runs."""
        for side, host, address in (("source", kind[0] == "H", source),
                                    ("destination", kind[-1] == "H", destination)):
            if host and (not address or address >= BASE):
                raise SimulationError(f"copy {kind} of {nbytes:,} bytes: the {side} {address:#x} "
                                      f"is not a host address")
        memory = self.simulation.memory
        taken = ctypes.string_at(source, nbytes) if staged else None

        def run(task: Task) -> None:
            if kind[0] == "D":
                region = memory.region(source, nbytes, nbytes, 1, f"source of {task}")
                memory.read(task, region, "source")
                data = region.bytes().tobytes()
            else:
                data = taken if taken is not None else ctypes.string_at(source, nbytes)
            if kind[-1] == "D":
                region = memory.region(destination, nbytes, nbytes, 1, f"destination of {task}")
                memory.write(task, region, "destination")
                region.bytes()[...] = np.frombuffer(data, np.uint8)
                memory.mark_written(region)
            else:
                ctypes.memmove(destination, data, nbytes)

        return run

    def function(self, handle: Any) -> Kernel:
        kernel = self.functions.get(handle)
        if kernel is None:
            raise Refused("CUDA_ERROR_INVALID_HANDLE")
        return kernel

    def launch_effect(self, function: Any, grid: tuple[int, int, int],
                      block: tuple[int, int, int], shared_bytes: int,
                      parameters: int) -> tuple[Kernel, Effect]:
        """What cuLaunchKernel and cuGraphAddKernelNode have in common: the driver's limits, then
        the arguments' copy."""
        kernel = self.function(function)
        limits = zip((*grid, *block), (*_GRID_LIMITS, *_BLOCK_LIMITS), strict=True)
        threads = block[0] * block[1] * block[2]
        if any(not 0 < n <= most for n, most in limits) or threads > 1024 \
                or not 0 <= shared_bytes <= kernel.shared_limit:
            raise Refused("CUDA_ERROR_INVALID_VALUE")
        if threads > kernel.most_threads:
            raise Refused("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES")
        return kernel, kernel.launch(grid, block, parameters)
