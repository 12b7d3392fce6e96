"""The time of epochs on the device, between events on its stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from rawnn.cuda.device import Device
from rawnn.cuda.stream import Event, Stream

if TYPE_CHECKING:
    from rawnn.engine.runners.programs import Program


MAX_EPOCHS_PER_SPAN = 16
"""Epochs timed together. An event after an epoch takes 2 to 4 us on an H200, 3 % of 64 steps of a
small network, and keeps the next epoch's first kernel from starting early."""


class EpochTimes:
    """Times epochs that are enqueued back to back in spans of up to `epochs_per_span`, from the
    start of the first to the end of the last; each epoch gets an equal share. The very first epoch
    is timed by itself. Transitions between epochs therefore count, and so does time in which the
    device waits for the host.

    `pause` ends a span before other work; the next epoch gets a start event of its own. Work
    within `attributed_to_last` counts to the epoch before it, however much later it runs.
    """

    def __init__(self, driver: Any, stream: Stream) -> None:
        self._driver, self._stream = driver, stream
        self._closing = ExitStack()
        self.epochs_per_span = MAX_EPOCHS_PER_SPAN
        self._free: list[Event] = []
        self._spans: list[tuple[Event, Event, int]] = []  # start, end, number of epochs
        self._also: list[tuple[int, Event, Event]] = []  # epoch from 0, start, end
        self._start: Event | None = None
        self._waiting = self._epochs = 0
        self._milliseconds: list[float] = []

    def begin(self) -> None:
        if self._start is None:
            self._start = self._recorded()

    def end(self) -> None:
        self._waiting += 1
        self._epochs += 1
        if self._waiting >= self.epochs_per_span or self._epochs == 1:
            self._stop()

    def pause(self) -> None:
        if self._waiting:
            self._stop()
        self._start = None

    @contextmanager
    def attributed_to_last(self) -> Iterator[None]:
        self.pause()
        start = self._recorded()
        yield
        self._also.append((self._epochs - 1, start, self._recorded()))

    def _stop(self) -> None:
        """End the span here; the next one starts at the same event."""
        assert self._start is not None
        end = self._recorded()
        self._spans.append((self._start, end, self._waiting))
        self._start, self._waiting = end, 0

    def _recorded(self) -> Event:
        event = self._free.pop() if self._free else self._new_event()
        event.record(self._stream)
        return event

    def _new_event(self) -> Event:
        event = Event(self._driver)
        self._closing.callback(event.close)
        return event

    def milliseconds(self) -> list[float]:
        """The time of every epoch so far; waits for the last."""
        self.pause()
        self._stream.synchronize("epoch")
        for start, end, epochs in self._spans:
            self._milliseconds += [end.milliseconds_since(start) / epochs] * epochs
        for epoch, start, end in self._also:
            self._milliseconds[epoch] += end.milliseconds_since(start)
        events = [event for start, end, _ in self._spans for event in (start, end)]
        events += [event for _, start, end in self._also for event in (start, end)]
        self._free += {id(event): event for event in events}.values()
        self._spans, self._also = [], []
        return list(self._milliseconds)

    def close(self) -> None:
        self._closing.close()


def microseconds(device: Device, program: Program, steps: int) -> float:
    """Microseconds of one of the `steps` steps that a program runs on the device; closes the
    program."""
    with ExitStack() as closing:
        closing.callback(program.close)
        start, end = (Event(device.driver) for _ in range(2))
        closing.callback(start.close)
        closing.callback(end.close)
        program.run(steps)  # warm-up
        start.record(device.stream)
        program.run(steps)
        end.record(device.stream)
        device.stream.synchronize("timing steps")
        return end.milliseconds_since(start) * 1e3 / steps
