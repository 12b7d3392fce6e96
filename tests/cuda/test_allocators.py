"""What all allocators have in common, and what each does with the driver."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rawnn.common.errors import DeviceError, OutOfMemory
from rawnn.cuda.allocators import AllocationLog, Allocator, Arena, Pool, StreamOrdered
from rawnn.cuda.device import Device
from rawnn.cuda.stream import Stream
from rawnn.sim import Race, Simulation
from tests.cuda.failing import each_call_fails
from tests.sim.work import relu, vector

MIB = 1 << 20


def stream_ordered(device: Device) -> StreamOrdered:
    return StreamOrdered(device.driver, 0, device.memory, device.stream)


MAKERS: dict[str, Callable[[Device], Allocator]] = {
    "each-use": lambda device: device.memory,
    "arena": lambda device: Arena(device.memory, 64 << 10, "all of it"),
    "pool": lambda device: Pool(device.driver, device.memory, device.stream),
    "async": stream_ordered,
}
FIRST_EPOCH_ONLY = ("arena", "pool", "async")


def step(device: Device, allocator: Allocator) -> None:
    """A chain of three kernels whose results live as briefly as they can."""
    values = allocator.allocate(32, "values")
    device.fill(values.address, 0, 32, "values")
    for index in range(3):
        following = allocator.allocate(32, f"result {index}")
        relu(device, values.address, following.address).run(0)
        allocator.free(values)
        values = following
    allocator.free(values)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", MAKERS)
def test_the_same_work_with_every_allocator(name: str, seed: int) -> None:
    simulation = Simulation(seed)
    device = Device(simulation.backend())
    allocator = MAKERS[name](device)
    for _ in range(4):
        step(device, allocator)
    device.stream.synchronize()
    statistics = allocator.statistics()
    assert statistics.current == 0 if name != "each-use" else device.memory.current == 0
    assert statistics.peak == 64
    allocator.close()
    allocator.close()
    assert device.memory.current == 0
    device.close()
    simulation.assert_clean()


@pytest.mark.parametrize("name", MAKERS)
def test_the_log_shows_who_asks_the_driver_in_every_epoch(name: str, device: Device) -> None:
    sink = io.StringIO()
    log = device.memory.log = AllocationLog(sink)
    allocator = MAKERS[name](device)
    for epoch in range(1, 4):
        log.begin_epoch(epoch)
        for index in range(1, 3):
            log.step = index
            step(device, allocator)
        device.stream.synchronize()
    log.begin_epoch(0)
    calls = [log.calls[epoch] for epoch in (1, 2, 3)]
    if name in FIRST_EPOCH_ONLY:
        assert sum(log.calls.values()) == 1
        assert calls[1:] == [0, 0]
    else:
        assert calls == [16, 16, 16]
    log.close()
    text = sink.getvalue()
    assert text.splitlines()[0].split() == ["time", "ms", "epoch", "step", "call", "bytes", "held",
                                            "address", "purpose"]
    assert text.endswith(log.summary() + "\n")
    device.memory.log = None
    allocator.close()


def test_lines_and_summary_of_a_log() -> None:
    sink, now = io.StringIO(), iter([1.0, 1.001, 1.5, 2.0, 2.5, 3.0])
    log = AllocationLog(sink, lambda: next(now))
    log.record("cuMemAlloc", 4096, 4096, 0x7F0000000000, "images")
    for epoch in (1, 2, 3, 4):
        log.begin_epoch(epoch)
        if epoch == 1:
            log.step = 2
            log.record("cuMemAlloc", 512, 4608, 0x7F0000001000, "z1")
            log.record("cuMemFree", -512, 4096, 0x7F0000001000, "z1")
    lines = sink.getvalue().splitlines()
    assert lines[1].split() == ["1.000", "-", "-", "cuMemAlloc", "+4,096", "4,096",
                                "0x7f0000000000", "images"]
    assert lines[3].split() == ["1000.000", "1", "2", "cuMemFree", "-512", "4,096",
                                "0x7f0000001000", "z1"]
    assert len({line.index("0x7f") for line in lines[1:]}) == 1
    assert log.summary() == \
        "driver calls: 1 outside the epochs; in epoch 1: 2, epochs 2-4: none"


@pytest.mark.parametrize(("counts", "message"), [
    ({}, "0 outside the epochs"), ({1: 3}, "0 outside the epochs; in epoch 1: 3"),
    ({1: 3, 2: 3, 3: 3}, "0 outside the epochs; in epochs 1-3: 3 each"),
    ({1: 4, 2: 3, 3: 0}, "0 outside the epochs; in epoch 1: 4, epoch 2: 3, epoch 3: none"),
])
def test_summaries(counts: dict[int, int], message: str) -> None:
    log = AllocationLog(io.StringIO())
    log.calls.update(counts)
    log.begin_epoch(max(counts, default=0))
    assert log.summary() == f"driver calls: {message}"


# -- the arena ------------------------------------------------------------------------------------
def test_an_arena_begins_anew_when_all_is_free(device: Device) -> None:
    arena = Arena(device.memory, 1024, "two of them")
    first, second = arena.allocate(256, "first"), arena.allocate(255, "second")
    assert second.address == first.address + 512  # 256 bytes and room to spare
    with pytest.raises(OutOfMemory, match=r"the arena of 1,024 bytes \(two of them\) has no room "
                                          r"for 256 bytes \(third\): 256 are left"):
        arena.allocate(256, "third")
    arena.free(first)
    arena.free(first)
    arena.used_on(second, device.stream)
    assert arena.statistics().free == 256
    arena.free(second)
    assert arena.allocate(1023, "all").address == first.address
    assert arena.release_cached() == 0
    assert arena.statistics().reserved == device.memory.current == 1024
    arena.close()


# -- the driver's pool ----------------------------------------------------------------------------
def test_the_driver_keeps_the_pool_across_synchronizations(device: Device) -> None:
    driver = device.driver
    pool = driver.cuDeviceGetDefaultMemPool(0)[1]
    driver.cuMemPoolSetAttribute(pool, "RELEASE_THRESHOLD", 12345)
    allocator = stream_ordered(device)
    for _ in range(3):
        allocator.free(allocator.allocate(3 * MIB, "three"))
        device.stream.synchronize()
        assert allocator.statistics().reserved == 4 * MIB
    assert device.memory.current == 0
    assert device.memory.peak == 3 * MIB
    assert allocator.release_cached() == 4 * MIB
    allocator.free(allocator.allocate(MIB, "freed when the stream gets there"))
    driver.cuMemPoolTrimTo(pool, 0)
    assert allocator.statistics().reserved == 2 * MIB
    assert allocator.release_cached() == 2 * MIB
    left = allocator.allocate(MIB, "left")
    allocator.free(replace(left, purpose="what lay at its place before"))
    assert device.memory.current == MIB
    allocator.close()
    allocator.close()
    assert driver.cuMemPoolGetAttribute(pool, "RELEASE_THRESHOLD") == (0, 12345)
    assert driver.cuMemPoolGetAttribute(pool, "RESERVED_MEM_CURRENT") == (0, 0)


def test_growth_and_giving_back_are_logged(device: Device) -> None:
    sink = io.StringIO()
    device.memory.log = AllocationLog(sink)
    allocator = stream_ordered(device)
    for nbytes in (MIB, MIB, 3 * MIB):
        allocator.free(allocator.allocate(nbytes, "some"))
    statistics = allocator.statistics()
    assert (statistics.hits, statistics.misses) == (1, 2)
    allocator.close()
    rows = [line.split()[3:6] for line in sink.getvalue().splitlines()[1:]]
    assert rows == [["cuMemAllocAsync", "+2,097,152", "2,097,152"],
                    ["cuMemAllocAsync", "+2,097,152", "4,194,304"],
                    ["cuMemPoolTrimTo", "-4,194,304", "0"]]


def test_a_device_without_memory_pools_is_refused() -> None:
    device = Device(Simulation(memory_pools=False).backend())
    with pytest.raises(DeviceError, match="'async' cannot be used here: it needs a GPU and driver "
                                          "with memory pools"):
        stream_ordered(device)
    device.close()
    device.driver.simulation.assert_clean()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("declared", [True, False])
def test_memory_of_the_drivers_pool_that_two_streams_use(declared: bool, seed: int) -> None:
    device = Device(Simulation(seed).backend())
    other, allocator = Stream(device.driver), stream_ordered(device)
    z = vector(device, 1.0)
    shared = allocator.allocate(32, "shared", other)
    relu(device, z, shared.address, stream=other).run(0)
    other.synchronize()
    for _ in range(4):
        relu(device, z, shared.address).run(0)
    if declared:
        allocator.used_on(shared, device.stream)
    allocator.free(shared)
    if declared:
        device.driver.cuCtxSynchronize()
        allocator.close()
        other.close()
        device.close()
        device.driver.simulation.assert_clean()
    else:
        with pytest.raises(Exception) as caught:  # noqa: PT011
            device.driver.cuCtxSynchronize()
        assert isinstance(caught.value, Race) or "use after free" in str(caught.value)


def run_all(simulation: Simulation) -> None:
    device = Device(simulation.backend())
    try:
        other = Stream(device.driver)
        try:
            allocator = stream_ordered(device)
            try:
                first = allocator.allocate(32, "first")
                allocator.used_on(first, other)
                allocator.used_on(first, device.stream)
                allocator.free(first)
                allocator.allocate(32, "second", other)
                allocator.statistics()
            finally:
                allocator.close()
        finally:
            other.close()
    finally:
        device.close()


def test_every_call_can_fail_and_nothing_is_left_behind() -> None:
    each_call_fails(run_all)


def test_out_of_memory_in_the_drivers_pool() -> None:
    device = Device(Simulation(memory=4 * MIB).backend())
    allocator: Any = stream_ordered(device)
    with pytest.raises(OutOfMemory, match=r"cuMemAllocAsync failed .* no room for 5,242,880 bytes"):
        allocator.allocate(5 * MIB, "too large")
    allocator.close()
    device.close()
