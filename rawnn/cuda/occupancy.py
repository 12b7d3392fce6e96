"""Concurrent blocks of a GPU as its driver reports them, and other facts for launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rawnn.common.target import Target, features_of
from rawnn.cuda.compiling.signature import parse_kernels
from rawnn.cuda.errors import check
from rawnn.cuda.fitted_constants import kept

if TYPE_CHECKING:
    from rawnn.cuda.device import Device

SIZES = (1, 2, 4, 8, 16)
"""Cluster sizes that are queried; every GPU with clusters supports those up to 8."""
_NAME = "whole.cu"
_SOURCE = """// Takes a multiprocessor for itself by the shared memory it is launched with.
extern "C" __global__ void whole() {}
"""


def target_of(device: Device) -> Target:
    """The target of an open device. Its features are those of the compute capability that kernels
    are compiled for, the numbers its own. Raises CallFailed if the driver does not answer,
    ConfigError for a broken file of constants.
    """
    attribute = device.attribute
    multiprocessors = attribute("MULTIPROCESSOR_COUNT")
    features = features_of(device.capability)
    shared = attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
    return Target(
        device.info.name, device.capability, multiprocessors, shared,
        attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        attribute("MAX_REGISTERS_PER_MULTIPROCESSOR"),
        attribute("MAX_THREADS_PER_MULTIPROCESSOR"),
        blocks_at_once(device, shared) if "clusters" in features else {1: multiprocessors},
        features, attribute("CLOCK_RATE") / 1e3, kept(device.info.name))


def blocks_at_once(device: Device, shared_bytes: int) -> dict[int, int]:
    """Cluster size -> blocks that run at the same time, with `shared_bytes` of dynamic shared
    memory each."""
    driver, stream = device.driver, device.stream
    device.load(_SOURCE, _NAME, parse_kernels(_SOURCE), ("whole",))
    function = device.function(_NAME, "whole").handle
    for name, value in (("MAX_DYNAMIC_SHARED_SIZE_BYTES", shared_bytes),
                        ("NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1)):
        check(driver, "cuFuncSetAttribute", driver.cuFuncSetAttribute(function, name, value),
              f"{name} for the blocks that run at once")
    found = {}
    for size in SIZES:
        config = driver.launch_config((size, 1, 1), (32, 1, 1), shared_bytes, stream.handle,
                                      (size, 1, 1), False, False)
        clusters = check(driver, "cuOccupancyMaxActiveClusters",
                         driver.cuOccupancyMaxActiveClusters(function, config),
                         f"clusters of {size} blocks with {shared_bytes:,} bytes each")
        found[size] = size * int(clusters)
    return found
