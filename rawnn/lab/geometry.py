"""The launch geometry (blocks, threads, shared memory, clusters), and checks of its limits."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from rawnn.common.errors import ConfigError, DeviceError
from rawnn.cuda.device import Device, Function
from rawnn.cuda.errors import check
from rawnn.cuda.launch import PORTABLE_CLUSTER, Dim, allow
from rawnn.cuda.occupancy import SIZES
from rawnn.lab.array_exchange import Handle

Extent = int | tuple[int, ...]
_ANY = 65_535
"""Blocks that a grid on any GPU may have along each axis."""


@dataclass(frozen=True)
class Launch:
    """A launch: blocks, threads per block, bytes of dynamic shared memory, blocks per cluster;
    `stream` is None for rawnn's own."""

    grid: Dim
    block: Dim
    shared: int = 0
    cluster: Dim | None = None
    cooperative: bool = False
    programmatic: bool = False
    stream: Handle | None = None

    def __str__(self) -> str:
        more = {"shared": self.shared, "cluster": self.cluster, "cooperative": self.cooperative,
                "programmatic": self.programmatic, "stream": self.stream}
        return ", ".join([str(self.grid), str(self.block),
                          *(f"{name}={value}" for name, value in more.items() if value)])

    def check(self, function: Function, device: Device) -> None:
        """Raise DeviceError, with the fix, if this kernel or GPU cannot run it."""
        threads = prod(self.block)
        most = _of(function, "MAX_THREADS_PER_BLOCK", device)
        if threads > most:
            raise DeviceError(f"{function.expression}: a block {self.block} has {threads:,} "
                              f"threads, and it can have at most {most:,} (its registers and "
                              f"__launch_bounds__ decide): take smaller blocks and more of them")
        for axis, extent in zip("XYZ", self.block, strict=True):
            if extent > (most := device.attribute(f"MAX_BLOCK_DIM_{axis}")):
                raise DeviceError(f"{function.expression}: the block {self.block} has {extent:,} "
                                  f"threads along {axis.lower()}, and it can have at most {most:,} "
                                  f"there: let x have the most")
        for axis, blocks in zip("XYZ", self.grid, strict=True):
            if blocks > _ANY and blocks > (most := device.attribute(f"MAX_GRID_DIM_{axis}")):
                raise DeviceError(f"{function.expression}: the grid {self.grid} has {blocks:,} "
                                  f"blocks along {axis.lower()}, and it can have at most {most:,} "
                                  f"there: let threads do several elements, or use x, which has "
                                  f"the most room")
        limit = device.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        declared = _of(function, "SHARED_SIZE_BYTES", device) if self.shared else 0
        if self.shared + declared > limit:
            declared_text = f" beside the {declared:,} that it declares" if declared else ""
            raise DeviceError(f"{function.expression}: {self.shared:,} bytes of shared memory"
                              f"{declared_text}, and a block has at most {limit:,} here: take "
                              f"smaller tiles")
        if self.cluster and any(g % c for g, c in zip(self.grid, self.cluster, strict=True)):
            raise ConfigError(f"{function.expression}: the grid {self.grid} is no multiple of the "
                              f"cluster {self.cluster}: round the grid up to one")
        if self.cluster and device.capability < (9, 0):
            raise DeviceError(f"{function.expression}: clusters need compute capability 9.0, and "
                              f"{device.info.name} has {'.'.join(map(str, device.capability))}")
        if self.cluster or self.cooperative:
            self._check_together(function, device)
        if self.programmatic and not function.proof.waits:
            raise ConfigError(f"{function.expression} cannot be launched programmatically: "
                              f"{function.proof.reason}; call cudaGridDependencySynchronize() "
                              f"(#include <cuda_device_runtime_api.h>) in it before it reads what "
                              f"the kernel before it writes")

    def _check_together(self, function: Function, device: Device) -> None:
        """Raise DeviceError, with the limit, if a cluster is too large or a cooperative launch has
        more blocks than the GPU holds at once (CUDA driver API, cuLaunchCooperativeKernel)."""
        driver, name = device.driver, function.expression
        allow(driver, function.handle, "MAX_DYNAMIC_SHARED_SIZE_BYTES", self.shared, name)
        if self.cluster and not self._clusters_at_once(self.cluster, function, device):
            fits = next((n for n in reversed(SIZES) if n < prod(self.cluster)
                         and self._clusters_at_once((n, 1, 1), function, device)), 1)
            raise DeviceError(f"{name}: a cluster {self.cluster} has {prod(self.cluster):,} "
                              f"blocks, and of blocks of {prod(self.block):,} threads with "
                              f"{self.shared:,} bytes of shared memory a cluster can have at most "
                              f"{fits} here: take smaller clusters")
        if self.cooperative:
            result = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                function.handle, prod(self.block), self.shared)
            each = check(driver, "cuOccupancyMaxActiveBlocksPerMultiprocessor", result, name)
            multiprocessors = device.attribute("MULTIPROCESSOR_COUNT")
            most = each * multiprocessors
            if prod(self.grid) > most:
                raise DeviceError(f"{name}: a cooperative launch has all its blocks on the GPU at "
                                  f"once, and of the {prod(self.grid):,} of this grid {most:,} fit "
                                  f"({each} on each of {multiprocessors} multiprocessors): take "
                                  f"{most:,} at most, and let each do several parts of the work")

    def _clusters_at_once(self, cluster: Dim, function: Function, device: Device) -> int:
        """How many clusters of that shape the GPU runs at once; 0 if it can run none."""
        driver, size = device.driver, prod(cluster)
        if size > SIZES[-1]:
            return 0
        if size > PORTABLE_CLUSTER:
            allow(driver, function.handle, "NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1,
                  function.expression)
        config = driver.launch_config(cluster, self.block, self.shared, device.stream.handle,
                                      cluster, False, False)
        result = driver.cuOccupancyMaxActiveClusters(function.handle, config)
        return 0 if result[0] else int(result[1])


def _of(function: Function, attribute: str, device: Device) -> int:
    """An attribute of a kernel from the driver."""
    result = device.driver.cuFuncGetAttribute(attribute, function.handle)
    found: int = check(device.driver, "cuFuncGetAttribute", result, function.expression)
    return found


def extents(extent: Extent, what: str) -> Dim:
    """A grid, block or cluster in three dimensions. Raises ConfigError."""
    given = tuple(extent) if isinstance(extent, tuple | list) else (extent,)
    values = [int(v) if isinstance(v, int | np.integer) else 0 for v in given]
    if not 1 <= len(values) <= 3 or min(values) < 1:
        raise ConfigError(f"{what} = {extent!r}: give one to three whole numbers of at least 1, "
                          f"such as (n + 255) // 256 blocks of 256 threads for n elements")
    x, y, z = (*values, 1, 1)[:3]
    return x, y, z


def shared_bytes(shared: Any) -> int:
    """The number of bytes. Raises ConfigError for other values."""
    if not isinstance(shared, int | np.integer) or shared < 0:
        raise ConfigError(f"shared memory is a number of bytes, not {shared!r}")
    return int(shared)
