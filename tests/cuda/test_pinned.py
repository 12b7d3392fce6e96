from __future__ import annotations

import numpy as np
import pytest

from rawnn.common.errors import OutOfMemory
from rawnn.cuda.device import Device
from rawnn.cuda.errors import CallFailed
from rawnn.cuda.pinned import PinnedBuffer, PinnedMemory
from rawnn.sim import Fault, Simulation, SimulationError
from tests.sim.work import read, vector


def test_copies_from_page_locked_memory(device: Device) -> None:
    pinned = PinnedMemory(device.driver)
    host = pinned.copy_of(np.arange(8, dtype=np.float32), "staging")
    address = vector(device)
    device.to_device(address, host, "a vector")
    assert read(device, address).tolist() == list(range(8))
    assert pinned.current == 32
    pinned.close()
    pinned.close()
    assert pinned.current == 0


def test_an_array_must_fit(device: Device) -> None:
    buffer = PinnedBuffer(device.driver, 32, "staging")
    assert buffer.array((2, 4), np.float32).shape == (2, 4)
    with pytest.raises(ValueError, match="staging: an array of 36 bytes does not fit in 32"):
        buffer.array((9,), np.float32)
    buffer.close()
    buffer.close()


def test_memory_changed_before_the_copy_ran_is_seen(device: Device) -> None:
    host = PinnedMemory(device.driver).copy_of(np.zeros(8, np.float32), "staging")
    address = vector(device)
    device.driver.cuMemcpyHtoDAsync(address, host.ctypes.data, 32, device.stream.handle)
    host[3] = 1.0
    with pytest.raises(SimulationError, match=r"32 bytes of page-locked memory at .* were changed"):
        device.stream.synchronize()


def test_what_is_copied_to_page_locked_memory_is_there_once_waited_for(device: Device) -> None:
    pinned = PinnedMemory(device.driver)
    host = pinned.empty((8,), np.float32, "metrics")
    device.to_host_later(host, vector(device, 2.0), "a vector")
    assert np.isnan(host).all()
    device.stream.synchronize()
    assert (host == 2.0).all()
    pinned.close()


def test_page_locked_memory_is_freed_behind_all_work(device: Device, sim: Simulation) -> None:
    buffer, address = PinnedBuffer(device.driver, 32, "staging"), vector(device)
    buffer.array((8,), np.float32)[:] = 3.0
    device.driver.cuMemcpyHtoDAsync(address, buffer.address, 32, device.stream.handle)
    assert sim.scheduler.pending
    buffer.close()
    assert not sim.scheduler.pending
    assert (read(device, address) == 3.0).all()


def test_a_copy_across_the_end_of_page_locked_memory(device: Device) -> None:
    buffer = PinnedBuffer(device.driver, 32, "staging")
    with pytest.raises(SimulationError, match="reaches past page-locked memory of 32 bytes"):
        device.driver.cuMemcpyHtoDAsync(vector(device), buffer.address + 4, 32,
                                        device.stream.handle)


def test_what_is_not_freed_is_a_leak() -> None:
    simulation = Simulation()
    device = Device(simulation.backend())
    PinnedBuffer(device.driver, 32, "staging")
    device.close()
    with pytest.raises(SimulationError, match=r"page-locked memory .*test_pinned.py"):
        simulation.assert_clean()


def test_no_room(device: Device, sim: Simulation) -> None:
    sim.faults.add(Fault("CUDA_ERROR_OUT_OF_MEMORY", call="cuMemHostAlloc"))
    with pytest.raises(OutOfMemory, match=r"no room for 1,024 bytes of page-locked memory "
                                          r"\(batches\); leave out 'pinned'"):
        PinnedMemory(device.driver).empty((256,), np.float32, "batches")


def test_other_errors_say_the_call_and_the_purpose(device: Device, sim: Simulation) -> None:
    pinned = PinnedMemory(device.driver)
    pinned.empty((2,), np.float32, "first")
    pinned.empty((2,), np.float32, "second")
    sim.faults.add(Fault(call="cuMemHostAlloc", nth=2))
    with pytest.raises(CallFailed, match=r"cuMemHostAlloc failed with .* \(8 bytes, third\)"):
        pinned.empty((2,), np.float32, "third")
    sim.faults.add(Fault(call="cuMemFreeHost"))
    with pytest.raises(CallFailed, match=r"cuMemFreeHost failed with .* \(8 bytes, "):
        pinned.close()
    assert sim.faults.count("cuMemFreeHost") == 2  # the other one was freed all the same


def test_driver_refusals(device: Device) -> None:
    assert device.driver.cuMemHostAlloc(0, 0)[0] == 1
    assert device.driver.cuMemHostAlloc(8, 8)[0] == 1
    assert device.driver.cuMemFreeHost(4711)[0] == 1
