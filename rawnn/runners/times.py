"""How long epochs take on the device, between events on its stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from rawnn.device.cuda.device import Device
from rawnn.device.cuda.stream import Event, Stream

if TYPE_CHECKING:
    from rawnn.runners.programs import Program


class EpochTimes:
    """Epochs given one behind the other share the event between them, so that what the device does
    between two of them counts as well, and so does the time that it waits for the host. `pause`
    says that something else comes between; the next epoch then has a start of its own. What is done
    within `also` counts to the epoch before, however much later it is."""

    def __init__(self, driver: Any, stream: Stream) -> None:
        self._driver, self._stream = driver, stream
        self._closing = ExitStack()
        self._free: list[Event] = []
        self._pairs: list[tuple[Event, Event]] = []
        self._also: list[tuple[int, Event, Event]] = []  # the epochs, counted from 0
        self._last: Event | None = None
        self._milliseconds: list[float] = []

    def begin(self) -> None:
        if self._last is None:
            self._last = self._recorded()

    def end(self) -> None:
        start, self._last = self._last, self._recorded()
        assert start is not None
        self._pairs.append((start, self._last))

    def pause(self) -> None:
        self._last = None

    @contextmanager
    def also(self) -> Iterator[None]:
        start = self._recorded()
        yield
        epochs = len(self._milliseconds) + len(self._pairs)
        self._also.append((epochs - 1, start, self._recorded()))
        self.pause()

    def _recorded(self) -> Event:
        event = self._free.pop() if self._free else self._made()
        event.record(self._stream)
        return event

    def _made(self) -> Event:
        event = Event(self._driver)
        self._closing.callback(event.close)
        return event

    def milliseconds(self) -> list[float]:
        """Of every epoch so far; waits for the last."""
        self._stream.synchronize("epoch")
        self.pause()
        self._milliseconds += [end.milliseconds_since(start) for start, end in self._pairs]
        for epoch, start, end in self._also:
            self._milliseconds[epoch] += end.milliseconds_since(start)
        pairs = (*self._pairs, *(events for _, *events in self._also))
        self._free += {id(event): event for pair in pairs for event in pair}.values()
        self._pairs, self._also = [], []
        return list(self._milliseconds)

    def close(self) -> None:
        self._closing.close()


def microseconds(device: Device, program: Program, steps: int) -> float:
    """What a step of a program takes on the device, of so many that it runs; closes the program."""
    with ExitStack() as closing:
        closing.callback(program.close)
        start, end = (Event(device.driver) for _ in range(2))
        closing.callback(start.close)
        closing.callback(end.close)
        program.run(steps)  # which warms up
        start.record(device.stream)
        program.run(steps)
        end.record(device.stream)
        device.stream.synchronize("timing steps")
        return end.milliseconds_since(start) * 1e3 / steps
