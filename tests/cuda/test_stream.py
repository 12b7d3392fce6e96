from __future__ import annotations

import pytest

from rawnn.cuda.device import Device
from rawnn.cuda.errors import CallFailed
from rawnn.cuda.stream import Event, Stream
from rawnn.sim import Fault, Faults, Simulation
from tests.sim.work import relu, vector


def test_events_measure_the_work_between_them(device: Device) -> None:
    start, middle, end = (Event(device.driver) for _ in range(3))
    z, a = vector(device, 1.0), vector(device)
    launch = relu(device, z, a)
    start.record(device.stream)
    launch.run(0)
    middle.record(device.stream)
    for _ in range(5):
        launch.run(0)
    end.record(device.stream)
    device.stream.synchronize()
    assert 0 < middle.milliseconds_since(start) < end.milliseconds_since(middle)
    assert end.milliseconds_since(start) == pytest.approx(
        end.milliseconds_since(middle) + middle.milliseconds_since(start))
    for event in (start, middle, end):
        event.close()


def test_an_event_not_reached_has_no_time(device: Device) -> None:
    start, end = Event(device.driver), Event(device.driver)
    start.record(device.stream)
    with pytest.raises(CallFailed, match="cuEventElapsedTime failed with CUDA_ERROR"):
        end.milliseconds_since(start)
    start.close()
    end.close()


def test_waiting_says_for_what(device: Device) -> None:
    device.stream.synchronize("nothing at all")
    simulation = Simulation(faults=Faults(Fault("CUDA_ERROR_ILLEGAL_ADDRESS",
                                                call="cuStreamSynchronize")))
    other = Device(simulation.backend())
    with pytest.raises(CallFailed, match=r"CUDA_ERROR_ILLEGAL_ADDRESS \[700\].*\(epoch 3\)"):
        other.stream.synchronize("epoch 3")
    other.close()


def test_streams_do_not_wait_for_the_default_stream(sim: Simulation, device: Device) -> None:
    stream = Stream(device.driver)
    assert not sim.stream(stream.handle).blocking
    stream.close()
    with pytest.raises(CallFailed, match="cuStreamDestroy"):
        stream.close()
