"""Effects that stream work and graph nodes share: fills, copies and launches."""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any, NamedTuple

import numpy as np

from rawnn.cuda.compiling.resources import occupancy
from rawnn.cuda.driver import Dim
from rawnn.sim.bindings import Binding
from rawnn.sim.errors import Refused, SimulationError
from rawnn.sim.graphs import Effect
from rawnn.sim.kernels import LoadedKernel
from rawnn.sim.memory import BASE, POISON
from rawnn.sim.order import Task
from rawnn.sim.simulation import Simulation

_GRID_LIMITS, _BLOCK_LIMITS = (2**31 - 1, 65535, 65535), (1024, 1024, 64)


def milliseconds(ran: int) -> float:
    """Simulated time: every task takes a microsecond."""
    return ran * 1e-3


class Geometry(NamedTuple):
    """The geometry of a launch: grid in blocks, block in threads, dynamic shared memory in
    bytes."""

    grid: Dim
    block: Dim
    shared_bytes: int


class Effects:
    """Creates effects on the memory of one simulation. `functions` are the kernels by handle."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.functions: dict[int, LoadedKernel] = {}

    def memset_effect(self, address: int, value: int, nbytes: int) -> Effect:
        memory = self.simulation.memory

        def run(task: Task) -> None:
            region = memory.region(address, nbytes, nbytes, 1, f"destination of {task}")
            memory.write(task, region, "destination")
            region.bytes()[...] = value & 0xFF
            memory.mark_written(region)

        return run

    def copy_effect(self, kind: str, destination: int, source: int, nbytes: int,
                    staged: bool = False, unchanged: bool = False) -> Effect:
        """A copy; host bytes are read now if `staged`, else when the copy runs. With `unchanged`
        they
        must not change in between: SimulationError otherwise."""
        for side, host, address in (("source", kind[0] == "H", source),
                                    ("destination", kind[-1] == "H", destination)):
            if host and (not address or address >= BASE):
                raise SimulationError(f"copy {kind} of {nbytes:,} bytes: the {side} {address:#x} "
                                      f"is not a host address")
        memory = self.simulation.memory
        snapshot = ctypes.string_at(source, nbytes) if staged or unchanged else None

        def run(task: Task) -> None:
            if kind[0] == "D":
                region = memory.region(source, nbytes, nbytes, 1, f"source of {task}")
                memory.read(task, region, "source")
                data = region.bytes().tobytes()
            elif staged and snapshot is not None:
                data = snapshot
            else:
                data = ctypes.string_at(source, nbytes)
                if unchanged and data != snapshot:
                    raise SimulationError(
                        f"{task}: the {nbytes:,} bytes of page-locked memory at {source:#x} were "
                        f"changed between the call and the copy, which reads them when it runs: "
                        f"wait for an event behind the copy first"
                    )
            if kind[-1] == "D":
                region = memory.region(destination, nbytes, nbytes, 1, f"destination of {task}")
                memory.write(task, region, "destination")
                region.bytes()[...] = np.frombuffer(data, np.uint8)
                memory.mark_written(region)
            else:
                ctypes.memmove(destination, data, nbytes)

        return run

    @staticmethod
    def scribble_host(address: int, nbytes: int) -> None:
        """Make the bytes undefined until a copy to them is done."""
        ctypes.memset(address, POISON, nbytes)

    def function(self, handle: Any) -> LoadedKernel:
        kernel = self.functions.get(handle)
        if kernel is None:
            raise Refused("CUDA_ERROR_INVALID_HANDLE")
        return kernel

    def launch_effect(self, function: Any, grid: Dim, block: Dim, shared_bytes: int,
                      parameters: int, cluster: Dim | None = None,
                      cooperative: bool = False) -> tuple[LoadedKernel, Binding, Geometry]:
        """The common part of launches and kernel nodes: the driver's limits, then a copy of the
        arguments. Returns (kernel, effect, geometry)."""
        kernel = self.function(function)
        limits = zip((*grid, *block), (*_GRID_LIMITS, *_BLOCK_LIMITS), strict=True)
        threads = block[0] * block[1] * block[2]
        if any(not 0 < n <= most for n, most in limits) or threads > 1024 \
                or not 0 <= shared_bytes <= kernel.shared_limit:
            raise Refused("CUDA_ERROR_INVALID_VALUE")
        if threads > kernel.most_threads:
            raise Refused("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES")
        self.check_cluster(kernel, grid, cluster)
        geometry = Geometry(grid, block, shared_bytes)
        if cooperative:
            self.check_cooperative(kernel, geometry)
        return kernel, kernel.launch(grid, block, shared_bytes, parameters), geometry

    def check_cluster(self, kernel: LoadedKernel, grid: Dim, cluster: Dim | None) -> None:
        """Refuse a cluster that is too large for the kernel or does not divide its grid."""
        if cluster is None:
            return
        if self.simulation.compute_capability < (9, 0):
            raise Refused("CUDA_ERROR_NOT_SUPPORTED")
        if min(cluster) < 1 or prod(cluster) > kernel.largest_cluster \
                or any(blocks % size for blocks, size in zip(grid, cluster, strict=True)):
            raise Refused("CUDA_ERROR_INVALID_CLUSTER_SIZE")

    def check_cooperative(self, kernel: LoadedKernel, geometry: Geometry) -> None:
        """Refuse more blocks than can be resident on the GPU."""
        if prod(geometry.grid) > self.simulation.attributes["MULTIPROCESSOR_COUNT"] \
                * self.blocks_at_once(kernel, prod(geometry.block), geometry.shared_bytes):
            raise Refused("CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE")

    def blocks_at_once(self, kernel: LoadedKernel, threads: int, shared_bytes: int) -> int:
        """Blocks of a kernel that are resident on a multiprocessor."""
        major, minor = self.simulation.compute_capability
        return occupancy(f"sm_{major}{minor}", threads=threads, registers=kernel.registers,
                         shared=shared_bytes + kernel.static_shared).blocks
