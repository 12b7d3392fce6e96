"""Properties that a simulated GPU reports: the limits of its architecture, and the size of a real
GPU of it."""

from __future__ import annotations

from rawnn.common.errors import ConfigError, nearest
from rawnn.cuda.compiling.resources import SM_LIMITS

_MULTIPROCESSORS = {(7, 5): 40, (8, 0): 108, (8, 6): 84, (8, 9): 142, (9, 0): 132, (10, 0): 148,
                    (12, 0): 188}
"""T4, A100, A40, L40, H200, B200 and RTX PRO 6000."""

_ALWAYS = {
    "MAX_THREADS_PER_BLOCK": 1024, "WARP_SIZE": 32, "MAX_SHARED_MEMORY_PER_BLOCK": 48 << 10,
    "L2_CACHE_SIZE": 50 << 20, "CLOCK_RATE": 1_980_000, "MEMORY_CLOCK_RATE": 2_619_000,
    "GLOBAL_MEMORY_BUS_WIDTH": 5120, "COOPERATIVE_LAUNCH": 1, "UNIFIED_ADDRESSING": 1,
    "MAX_GRID_DIM_X": 2**31 - 1, "MAX_GRID_DIM_Y": 65535, "MAX_GRID_DIM_Z": 65535,
    "MAX_BLOCK_DIM_X": 1024, "MAX_BLOCK_DIM_Y": 1024, "MAX_BLOCK_DIM_Z": 64,
}  # fmt: skip


def attributes_of(capability: tuple[int, int], memory_pools: bool) -> dict[str, int]:
    """The driver's attributes of a device of a compute capability, by name.

    Raises ConfigError for one whose limits are unknown.
    """
    arch = "sm_{}{}".format(*capability)
    if arch not in SM_LIMITS or capability not in _MULTIPROCESSORS:
        raise ConfigError(f"no GPU of {arch} can be simulated{nearest(arch, SM_LIMITS)}")
    limits = SM_LIMITS[arch]
    return {
        **_ALWAYS,
        "COMPUTE_CAPABILITY_MAJOR": capability[0], "COMPUTE_CAPABILITY_MINOR": capability[1],
        "MULTIPROCESSOR_COUNT": _MULTIPROCESSORS[capability],
        "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": limits.shared_block,
        "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": limits.shared,
        "RESERVED_SHARED_MEMORY_PER_BLOCK": limits.reserved,
        "MAX_REGISTERS_PER_BLOCK": limits.registers,
        "MAX_REGISTERS_PER_MULTIPROCESSOR": limits.registers,
        "MAX_THREADS_PER_MULTIPROCESSOR": limits.threads,
        "MAX_BLOCKS_PER_MULTIPROCESSOR": limits.blocks,
        "CLUSTER_LAUNCH": int(capability >= (9, 0)), "MEMORY_POOLS_SUPPORTED": int(memory_pools),
    }
