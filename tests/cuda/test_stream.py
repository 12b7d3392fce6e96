from __future__ import annotations

import pytest

from rawnn.cuda.device import Device
from rawnn.cuda.errors import CallFailed
from rawnn.cuda.stream import Event, OrderingEvent, Stream
from rawnn.sim import Fault, Faults, Simulation
from tests.sim.work import read, relu, vector


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


def test_a_mark_orders_two_streams(device: Device) -> None:
    other, mark = Stream(device.driver), OrderingEvent(device.driver)
    z, a, b = vector(device, 1.0), vector(device), vector(device)
    relu(device, z, a, stream=other).run(0)
    mark.record(other)
    device.stream.wait_for(mark)
    relu(device, a, b).run(0)
    assert (read(device, b) == 1).all()
    assert mark.reached()
    mark.close()
    other.close()


def test_a_mark_says_whether_it_was_reached(device: Device) -> None:
    mark = OrderingEvent(device.driver)
    assert mark.reached()  # never recorded: nothing to wait for
    z, a = vector(device, 1.0), vector(device)
    for _ in range(5):
        relu(device, z, a).run(0)
    mark.record(device.stream)
    asked = [mark.reached() for _ in range(6)]
    assert asked == sorted(asked)
    assert not asked[0]
    assert asked[-1]
    mark.record(device.stream)
    mark.synchronize()
    assert mark.reached()
    mark.close()


@pytest.mark.parametrize("call", ["cuEventCreate", "cuEventRecord", "cuEventQuery",
                                  "cuEventSynchronize", "cuStreamWaitEvent", "cuEventDestroy"])
def test_a_mark_says_what_failed(call: str, sim: Simulation, device: Device) -> None:
    sim.faults.add(Fault(call=call))

    def use() -> None:
        mark = OrderingEvent(device.driver)
        mark.record(device.stream)
        device.stream.wait_for(mark)
        mark.reached()
        mark.synchronize()
        mark.close()

    with pytest.raises(CallFailed, match=rf"{call} failed .*\(an event that orders two streams\)"):
        use()
