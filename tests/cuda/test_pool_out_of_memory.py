"""The caching allocator where memory is out, or a call fails."""

from __future__ import annotations

import numpy as np
import pytest

from rawnn.common.errors import OutOfMemory
from rawnn.cuda.allocators import Pool
from rawnn.cuda.device import Device
from rawnn.cuda.stream import Stream
from rawnn.sim import Simulation
from tests.cuda.failing import each_call_fails
from tests.sim.work import relu, vector

KIB, MIB = 1 << 10, 1 << 20


def test_out_of_memory_gives_back_what_is_cached_and_tries_once_more() -> None:
    device = Device(Simulation(memory=8 * MIB).backend())
    pool = Pool(device.driver, device.memory, device.stream)
    pool.free(pool.allocate(5 * MIB, "first"))
    kept = pool.allocate(100, "kept")
    large = pool.allocate(5 * MIB + 512 * KIB, "larger")
    assert pool.statistics().retries == 0  # fits in the first
    pool.free(large)
    with pytest.raises(OutOfMemory, match=r"no room for 8,388,608 bytes \(pool, for too large\)"):
        pool.allocate(7 * MIB, "too large")
    assert pool.statistics().retries == 1
    assert pool.statistics().reserved == 2 * MIB  # the small segment, which is in use
    pool.free(kept)
    assert pool.allocate(7 * MIB, "now").nbytes == 7 * MIB
    assert pool.statistics().retries == 2
    pool.close()
    device.close()
    device.driver.simulation.assert_clean()


def test_out_of_memory_with_nothing_cached_is_not_tried_again() -> None:
    device = Device(Simulation(memory=4 * MIB).backend())
    pool = Pool(device.driver, device.memory, device.stream)
    with pytest.raises(OutOfMemory):
        pool.allocate(5 * MIB, "too large")
    assert device.driver.simulation.faults.count("cuMemAlloc") == 1
    assert pool.statistics().retries == 0


def test_out_of_memory_waits_for_other_users_of_what_is_cached() -> None:
    device = Device(Simulation(memory=8 * MIB).backend())
    other = Stream(device.driver)
    pool = Pool(device.driver, device.memory, device.stream)
    z = vector(device, 1.0)
    shared = pool.allocate(3 * MIB, "shared")
    pool.used_on(shared, other)
    for _ in range(9):
        relu(device, z, shared.address, stream=other).run(0)
    pool.free(shared)
    assert pool.allocate(5 * MIB, "larger").nbytes == 5 * MIB
    pool.close()
    other.close()
    device.close()
    device.driver.simulation.assert_clean()


def run_all(simulation: Simulation) -> None:
    """Everything a pool does; what it holds is released whatever happens."""
    device = Device(simulation.backend())
    try:
        other = Stream(device.driver)
        pool = Pool(device.driver, device.memory, device.stream)
        try:
            z = pool.allocate(32, "z")
            device.to_device(z.address, np.ones(8, np.float32), "z")
            first = pool.allocate(32, "first")
            pool.used_on(first, other)
            relu(device, z.address, first.address, stream=other).run(0)
            pool.free(first)
            relu(device, z.address, pool.allocate(32, "second").address).run(0)
            third = pool.allocate(32, "third", other)
            pool.free(third)
            pool.allocate(32, "fourth")
            fifth = pool.allocate(32, "fifth")
            for _ in range(4):
                relu(device, z.address, fifth.address, stream=other).run(0)
            pool.used_on(fifth, other)
            pool.free(fifth)
            pool.release_cached()
        finally:
            try:
                pool.close()
            finally:
                other.close()
    finally:
        device.close()


def test_every_call_can_fail_and_nothing_is_left_behind() -> None:
    assert {"cuEventRecord", "cuEventQuery", "cuEventSynchronize"} <= set(each_call_fails(run_all))
