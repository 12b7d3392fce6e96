"""How long epochs take on the device, between events on its stream."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from rawnn.device.cuda.stream import Event, Stream


class EpochTimes:
    """Epochs given one behind the other share the event between them, so that what the device does
    between two of them counts as well, and so does the time that it waits for the host. `pause`
    says that something else comes between; the next epoch then has a start of its own."""

    def __init__(self, driver: Any, stream: Stream) -> None:
        self._driver, self._stream = driver, stream
        self._closing = ExitStack()
        self._free: list[Event] = []
        self._pairs: list[tuple[Event, Event]] = []
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
        self._free += {id(e): e for pair in self._pairs for e in pair}.values()
        self._pairs = []
        return list(self._milliseconds)

    def close(self) -> None:
        self._closing.close()
