from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rawnn.common.errors import OutOfMemory
from rawnn.cuda.device import Device
from rawnn.cuda.errors import CallFailed
from rawnn.cuda.memory import ALIGNMENT, Memory
from rawnn.sim import Fault, Faults, Simulation


def test_allocations_are_counted(device: Device) -> None:
    memory = device.memory
    first, second = memory.allocate(1000, "first"), memory.allocate(500, "second")
    assert (memory.current, memory.peak, memory.calls) == (1500, 1500, 2)
    memory.free(first)
    assert (memory.current, memory.peak) == (500, 1500)
    third = memory.allocate(800, "third")
    assert (memory.current, memory.peak, memory.calls) == (1300, 1500, 3)
    memory.reset_peak()
    assert memory.peak == 1300
    memory.free(second)
    memory.free(third)
    assert (memory.current, memory.peak) == (0, 1300)


def test_nothing_takes_one_byte(device: Device) -> None:
    assert device.memory.allocate(0, "nothing").nbytes == 1


def test_free_all_frees_what_is_left(device: Device) -> None:
    kept = [device.memory.allocate(10, f"{i}") for i in range(3)]
    device.memory.free(kept[1])
    device.memory.free_all()
    assert device.memory.current == 0
    device.memory.free_all()


def test_free_all_tries_every_one_even_if_one_fails() -> None:
    simulation = Simulation(faults=Faults(Fault(call="cuMemFree", nth=1)))
    device = Device(simulation.backend())
    for i in range(3):
        device.memory.allocate(10, f"number {i}")
    with pytest.raises(CallFailed, match=r"cuMemFree failed .*\(10 bytes, number 1\)"):
        device.memory.free_all()
    assert simulation.faults.count("cuMemFree") == 3
    device.close()


def test_out_of_memory_is_one_sentence() -> None:
    simulation = Simulation(memory=1 << 20)
    device = Device(simulation.backend())
    with pytest.raises(OutOfMemory, match=r"no room for 2,097,152 bytes \(big\); 1,048,576 of "
                                          r"1,048,576 bytes are free"):
        device.memory.allocate(2 << 20, "big")
    assert (device.memory.current, device.memory.calls) == (0, 0)
    device.close()
    simulation.assert_clean()


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 5000), max_size=12))
def test_an_arena_gives_every_tensor_aligned_memory_of_its_own(sizes: list[int]) -> None:
    simulation = Simulation()
    device = Device(simulation.backend())
    memory: Memory = device.memory
    block, placed = memory.arena([(f"t{i}", n) for i, n in enumerate(sizes)], "test")
    assert memory.calls == 1
    assert list(placed) == [f"t{i}" for i in range(len(sizes))]
    end = block.address
    for size, address in zip(sizes, placed.values(), strict=True):
        assert address % ALIGNMENT == 0
        assert address >= end
        end = address + size
    assert end <= block.address + block.nbytes
    assert block.nbytes <= max(sum(sizes) + ALIGNMENT * len(sizes), 1)
    device.close()
    simulation.assert_clean()
