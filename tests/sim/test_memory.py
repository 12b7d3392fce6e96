from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rawnn.common.errors import OutOfMemory
from rawnn.cuda.device import Device
from rawnn.cuda.errors import CallFailed
from rawnn.graphs import Graph
from rawnn.sim import ReadBeforeWrite, Simulation, SimulationError, sim_backend
from rawnn.sim.memory import Memory
from rawnn.sim.order import Task

from .work import read, relu, sgd, vector


def test_what_is_written_is_read(device: Device) -> None:
    z, a = vector(device, -2.0), vector(device)
    relu(device, z, a).run(0)
    assert (read(device, a) == 0).all()
    device.fill(a, 0, 32, "a vector")
    sgd(device, a, z, lr=0.5).run(0)
    assert (read(device, a) == 1).all()


def test_reading_memory_never_written_names_operand_kernel_and_allocation(device: Device) -> None:
    z, a = vector(device), vector(device)
    relu(device, z, a).run(0)
    with pytest.raises(ReadBeforeWrite, match=r"activate<float,float,Relu> \(stream 0x\w+\): "
                                              r"operand 'z'.*sim/work.py:\d+ \(vector\)"):
        device.stream.synchronize()


def test_padding_between_rows_must_not_be_read(device: Device) -> None:
    z, a = vector(device, 1.0), vector(device)
    relu(device, z, a, ldz=4, lda=4, rows=2, cols=3).run(0)
    with pytest.raises(ReadBeforeWrite, match="byte 12 of row 0"):
        read(device, a)


@pytest.mark.parametrize(("count", "message"), [
    (9, r"operand 'z' .* reaches 4 bytes? past the end of the allocation of 32 bytes"),
])
def test_access_past_the_end(device: Device, count: int, message: str) -> None:
    z, a = vector(device, 1.0), vector(device, count=16)
    relu(device, z, a, count=count).run(0)
    with pytest.raises(SimulationError, match=message):
        device.stream.synchronize()


@pytest.mark.parametrize(("address", "message"), [
    (0, "null pointer"), (0x7F0000000000, "not a device address"), (1 << 60, "in no allocation"),
])
def test_address_that_is_none(device: Device, address: int, message: str) -> None:
    a = vector(device)
    relu(device, address, a).run(0)
    with pytest.raises(SimulationError, match=rf"operand 'z'.*{message}"):
        device.stream.synchronize()


def test_operand_that_is_not_aligned(device: Device) -> None:
    z = vector(device, 1.0)
    with pytest.raises(SimulationError, match=r"operand 'z' .* is not aligned to float"):
        relu(device, z + 2, z, count=1).run(0)


def test_use_after_free_and_double_free_name_both_sites(device: Device) -> None:
    allocation = device.memory.allocate(32, "short-lived")
    a = vector(device)
    device.memory.free(allocation)
    relu(device, allocation.address, a).run(0)
    with pytest.raises(SimulationError, match=r"use after free: inside 32 bytes made at .*"
                                              r"test_memory.py.* and freed at .*test_memory.py"):
        device.stream.synchronize()
    with pytest.raises(SimulationError, match="double free of 32 bytes"):
        device.driver.cuMemFree(allocation.address)


def test_free_of_an_address_inside_an_allocation(device: Device) -> None:
    with pytest.raises(SimulationError, match="free of"):
        device.driver.cuMemFree(vector(device) + 4)


def test_host_and_device_addresses_cannot_be_swapped(device: Device) -> None:
    host, z = np.zeros(8, np.float32), vector(device)
    with pytest.raises(SimulationError, match=r"source .* is not a host address"):
        device.driver.cuMemcpyHtoDAsync(host.ctypes.data, z, 32, device.stream.handle)


def test_out_of_memory_and_empty_allocations_are_refused() -> None:
    device = Device(Simulation(memory=1 << 20).backend())
    with pytest.raises(OutOfMemory, match="no room for 2,097,152 bytes"):
        device.memory.allocate(2 << 20, "too much")
    device.memory.allocate(1 << 20, "all of it")
    assert device.driver.cuMemGetInfo() == (0, 0, 1 << 20)
    assert device.driver.cuMemAlloc(0)[0] == 1
    device.close()


def test_copies_on_the_device_and_staged_copies(device: Device, sim: Simulation) -> None:
    host = np.arange(8, dtype=np.float32)
    z, a = vector(device), vector(device)
    device.driver.cuMemcpyHtoDAsync(z, host.ctypes.data, 32, device.stream.handle)
    host[:] = 99  # the driver has staged the bytes
    device.driver.cuMemcpyDtoDAsync(a, z, 32, device.stream.handle)
    assert read(device, a).tolist() == list(range(8))
    device.driver.cuMemcpyDtoDAsync(a, z, 36, device.stream.handle)
    with pytest.raises(SimulationError, match="source of copy on the device"):
        device.stream.synchronize()


def test_leaks_are_listed_with_their_sites() -> None:
    sim = Simulation()
    device = Device(sim.backend())
    device.driver.cuMemAlloc(100)
    device.driver.cuEventCreate(0)
    with pytest.raises(SimulationError, match="primary context"):
        sim.assert_clean()
    device.close()
    with pytest.raises(SimulationError) as caught:
        sim.assert_clean()
    text = str(caught.value)
    assert text.startswith("2 leaks")
    assert "allocation of 100 bytes" in text
    assert text.count("test_memory.py") == 2


def test_no_call_before_init_or_without_a_context(sim: Simulation) -> None:
    driver = sim.backend().driver()
    assert driver.cuDeviceGetCount()[0] == 3
    driver.cuInit(0)
    assert driver.cuDeviceGetCount() == (0, 1)
    assert driver.cuMemAlloc(1)[0] == 201
    assert driver.cuDeviceGet(1)[0] == 101
    assert driver.cuDevicePrimaryCtxRelease(0)[0] == 201


rectangles = st.tuples(st.integers(0, 40), st.integers(1, 12), st.integers(0, 6),
                       st.integers(1, 5))


@example((0, 2, 18, 2), (2, 4, 1, 3))  # a row one pitch ahead of the other's first
@example((0, 2, 15, 2), (2, 4, 1, 3))  # a row one pitch behind the other's last
@given(rectangles, rectangles)
def test_regions_share_bytes_exactly_when_their_rows_do(first: tuple[int, ...],
                                                        second: tuple[int, ...]) -> None:
    memory = Memory(1 << 20)
    base = memory.allocate(256, "here")
    made, bytes_of = [], []
    for start, width, gap, rows in (first, second):
        made.append(memory.region(base + start, width, width + gap, rows, "test"))
        bytes_of.append({start + row * (width + gap) + i for row in range(rows)
                         for i in range(width)})
    assert made[0].shares_bytes_with(made[1]) == bool(bytes_of[0] & bytes_of[1])
    assert made[1].shares_bytes_with(made[0]) == bool(bytes_of[0] & bytes_of[1])


def test_what_scratch_memory_held_may_not_be_read() -> None:
    """Of a region that was read before, and of one that is a part of the scratch memory."""
    memory = Memory(1 << 20)
    base = memory.allocate(64, "here")
    whole, part, other = (memory.region(base + at, size, size, 1, "test")
                          for at, size in ((0, 32), (8, 8), (32, 32)))
    for region in (whole, other):
        memory.mark_written(region)
    task = Task("reader", "test", lambda task: None)
    for region in (whole, part, other):
        memory.read(task, region, "x")
    memory.scribble(whole)
    for region in (whole, part):
        with pytest.raises(ReadBeforeWrite, match="operand 'x' is read before it was written"):
            memory.read(task, region, "x")
    memory.read(task, other, "x")


def test_a_failed_call_is_worded_as_the_drivers(device: Device) -> None:
    with pytest.raises(CallFailed, match=r"cuStreamSynchronize failed with "
                                         r"CUDA_ERROR_INVALID_HANDLE \[400\]: invalid resource"):
        device._check("cuStreamSynchronize", 0x5)


@pytest.mark.parametrize("size", [1, 7, 32, 255])
@pytest.mark.parametrize("beyond", [-1, 0, 1, 2, 300])
def test_a_byte_beyond_an_allocation_is_one_too_many(device: Device, size: int, beyond: int
                                                     ) -> None:
    """Filled byte by byte from its start, or its last byte and more."""
    address = device.memory.allocate(size, "bytes").address
    count = size + beyond
    if not count:
        return
    for first in {0, size - 1}:
        nbytes = count - first
        if nbytes <= 0:
            continue
        device.fill(address + first, 0, nbytes, "bytes")
        if beyond <= 0:
            device.stream.synchronize()
        else:
            words = "1 byte" if beyond == 1 else f"{beyond} bytes"
            with pytest.raises(SimulationError, match=f"reaches {words} past the end"):
                device.stream.synchronize()
            return


@pytest.mark.parametrize(("past", "words"), [
    (-1, "reaches 1 byte past the end"), (0, "out of bounds: 0 bytes past the end"),
    (1, "out of bounds: 1 byte past the end"), (255, "out of bounds: 255 bytes past the end")])
def test_an_access_is_said_to_begin_in_an_allocation_or_behind_it(device: Device, past: int,
                                                                  words: str) -> None:
    address = device.memory.allocate(100, "bytes").address
    device.fill(address + 100 + past, 0, 2, "bytes")
    with pytest.raises(SimulationError, match=words):
        device.stream.synchronize()


def test_a_kernel_that_ran_before_is_checked_again_once_memory_is_freed(device: Device) -> None:
    z, a = device.memory.allocate(32, "z"), vector(device)
    device.fill(z.address, 0, 32, "z")
    work = relu(device, z.address, a)
    graph = Graph(device.driver, device.context)
    graph.capture((), device.stream, lambda: work.run(0), "relu")
    again = graph.instantiate("relu")
    again.launch(device.stream)
    work.run(0)
    device.stream.synchronize()
    device.memory.free(z)
    again.launch(device.stream)
    with pytest.raises(SimulationError, match=r"operand 'z' .*use after free"):
        device.stream.synchronize()
    again.close()
    graph.close()


def test_addresses_are_aligned_as_the_driver_says_and_no_more() -> None:
    memory = Memory(1 << 20)
    for nbytes in (1, 256, 257, 511, 512, 1024, 4097):
        assert memory.allocate(nbytes, "here") % 512 == 256


def test_the_latest_of_what_was_freed_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rawnn.sim.memory._REMEMBERED", 2)
    memory = Memory(1 << 20)
    freed = [memory.allocate(100, f"line {i}") for i in range(4)]
    for address in freed:
        memory.free(address, "end")
    for i, address in enumerate(freed):
        words = f"double free of 100 bytes at .* made at line {i}" if i > 1 else "free of .* at end"
        with pytest.raises(SimulationError, match=words):
            memory.free(address, "end")


@pytest.mark.parametrize("memory", [1 << 20, 4 << 20])
def test_a_simulated_gpu_has_the_memory_that_it_is_given(memory: int) -> None:
    device = Device(sim_backend(memory=memory))
    assert device.info.memory == memory
    held = device.memory.allocate(memory // 2, "a half")
    with pytest.raises(OutOfMemory):
        device.memory.allocate(memory // 2 + 256, "more than the other half")
    device.memory.free(held)
    device.memory.free(device.memory.allocate(memory, "all of it"))
    device.close()
