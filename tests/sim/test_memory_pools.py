"""Stream-ordered allocation on the simulated GPU."""

from __future__ import annotations

import pytest

from rawnn.cuda.device import Device
from rawnn.cuda.stream import OrderingEvent, Stream
from rawnn.sim import Race, Simulation, SimulationError
from rawnn.sim.errors import Refused
from rawnn.sim.memory import POOL_STEP, Memory
from tests.sim.work import read, relu, vector

MIB = 1 << 20


def test_memory_comes_and_goes_in_the_order_of_the_stream(device: Device) -> None:
    driver, stream = device.driver, device.stream.handle
    z = vector(device, 1.0)
    code, a = driver.cuMemAllocAsync(32, stream)
    assert code == 0
    relu(device, z, a).run(0)
    assert driver.cuMemFreeAsync(a, stream) == (0,)
    device.stream.synchronize()
    with pytest.raises(SimulationError, match="double free"):
        driver.cuMemFreeAsync(a, stream)


def test_an_access_behind_the_free(device: Device) -> None:
    driver, stream = device.driver, device.stream.handle
    z = vector(device, 1.0)
    _, a = driver.cuMemAllocAsync(32, stream)
    driver.cuMemFreeAsync(a, stream)
    relu(device, z, a).run(0)
    with pytest.raises(SimulationError, match="use after free: inside 32 bytes made at"):
        device.stream.synchronize()


def test_two_frees_before_either_has_run(device: Device) -> None:
    _, a = device.driver.cuMemAllocAsync(32, device.stream.handle)
    device.driver.cuMemFreeAsync(a, device.stream.handle)
    with pytest.raises(SimulationError, match="double free"):
        device.driver.cuMemFreeAsync(a, device.stream.handle)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("end", ["allocation", "free"])
def test_another_stream_must_be_ordered_with_both_ends(end: str, seed: int) -> None:
    device = Device(Simulation(seed).backend())
    driver, other = device.driver, Stream(device.driver)
    z = vector(device, 1.0)
    _, a = driver.cuMemAllocAsync(32, device.stream.handle)
    if end == "free":
        mark = OrderingEvent(driver)
        mark.record(device.stream)
        other.wait_for(mark)
    relu(device, z, a, stream=other).run(0)
    if end == "free":
        driver.cuMemFreeAsync(a, device.stream.handle)
    with pytest.raises(SimulationError) as caught:
        driver.cuCtxSynchronize()
    assert isinstance(caught.value, Race) or "use after free" in str(caught.value)


def test_the_pool_keeps_what_its_threshold_says(device: Device) -> None:
    driver, stream = device.driver, device.stream
    _, pool = driver.cuDeviceGetDefaultMemPool(0)
    free = driver.cuMemGetInfo()[1]

    def reserved() -> int:
        return int(driver.cuMemPoolGetAttribute(pool, "RESERVED_MEM_CURRENT")[1])

    def use(nbytes: int) -> None:
        _, a = driver.cuMemAllocAsync(nbytes, stream.handle)
        driver.cuMemFreeAsync(a, stream.handle)
        stream.synchronize()

    use(3 * MIB)
    assert reserved() == 0
    assert driver.cuMemPoolSetAttribute(pool, "RELEASE_THRESHOLD", 2**64 - 1) == (0,)
    use(3 * MIB)
    use(MIB)
    assert reserved() == 4 * MIB
    assert driver.cuMemGetInfo()[1] == free - 4 * MIB
    assert driver.cuMemPoolGetAttribute(pool, "USED_MEM_CURRENT") == (0, 0)
    assert driver.cuMemPoolTrimTo(pool, 0) == (0,)
    assert reserved() == 0
    assert driver.cuMemGetInfo()[1] == free


def test_refusals(device: Device) -> None:
    driver, stream = device.driver, device.stream.handle
    _, pool = driver.cuDeviceGetDefaultMemPool(0)
    assert driver.cuDeviceGetDefaultMemPool(1)[0] == 101
    assert driver.cuMemPoolSetAttribute(pool, "RELEASE_THRESHOLD", -1)[0] == 1
    assert driver.cuMemPoolTrimTo(4711, 0)[0] == 1
    assert driver.cuMemAllocAsync(0, stream)[0] == 1
    assert driver.cuMemFreeAsync(vector(device), stream)[0] == 1
    assert driver.cuMemAllocAsync(32 << 30, stream)[0] == 2
    with pytest.raises(SimulationError, match="no value for the attribute"):
        driver.cuMemPoolGetAttribute(pool, "REUSE_FOLLOW_EVENT_DEPENDENCIES")


def test_a_gpu_without_memory_pools() -> None:
    device = Device(Simulation(memory_pools=False).backend())
    driver = device.driver
    assert driver.cuDeviceGetAttribute("MEMORY_POOLS_SUPPORTED", 0) == (0, 0)
    assert driver.cuMemAllocAsync(32, device.stream.handle)[0] == 801
    assert driver.cuDeviceGetDefaultMemPool(0)[0] == 801
    device.close()


def test_what_is_never_freed_is_a_leak() -> None:
    simulation = Simulation()
    device = Device(simulation.backend())
    device.driver.cuMemAllocAsync(100, device.stream.handle)
    device.close()
    with pytest.raises(SimulationError, match=r"1 leak.*\n.*allocation of 100 bytes"):
        simulation.assert_clean()


def test_cumemfree_takes_pooled_memory_too(device: Device) -> None:
    _, a = device.driver.cuMemAllocAsync(32, device.stream.handle)
    z = vector(device, 1.0)
    relu(device, z, a).run(0)
    assert (read(device, a) == 1).all()
    assert device.driver.cuMemFree(a) == (0,)


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_pool_may_take_all_memory(beyond: int) -> None:
    memory = Memory(3 * POOL_STEP)
    memory.allocate(2 * POOL_STEP, "here", pooled=True)
    if beyond:
        with pytest.raises(Refused, match="OUT_OF_MEMORY"):
            memory.allocate(POOL_STEP + beyond, "here", pooled=True)
    else:
        memory.allocate(POOL_STEP, "here", pooled=True)
        assert memory.used == memory.total
