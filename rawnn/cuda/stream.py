"""Streams and timing events."""

from __future__ import annotations

from typing import Any

from rawnn.cuda.errors import check

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: never waits for the legacy default stream
_TIMING = "an event that times an epoch"


class Stream:
    """An ordered queue of device work. `handle` is what the driver's calls take."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self.handle = check(driver, "cuStreamCreate", driver.cuStreamCreate(_NON_BLOCKING),
                            "a non-blocking stream")

    def synchronize(self, context: str = "") -> None:
        """Wait for everything on the stream; an error of a kernel surfaces here."""
        check(self._driver, "cuStreamSynchronize", self._driver.cuStreamSynchronize(self.handle),
              context)

    def close(self) -> None:
        check(self._driver, "cuStreamDestroy", self._driver.cuStreamDestroy(self.handle),
              "a non-blocking stream")


class Event:
    """A point on a stream with a time stamp (resolution about 0.5 us)."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self.handle = check(driver, "cuEventCreate", driver.cuEventCreate(0), _TIMING)

    def record(self, stream: Stream) -> None:
        check(self._driver, "cuEventRecord", self._driver.cuEventRecord(self.handle, stream.handle),
              _TIMING)

    def milliseconds_since(self, start: Event) -> float:
        """Time on the device from `start` to this event; both must have been reached."""
        result = self._driver.cuEventElapsedTime(start.handle, self.handle)
        return float(check(self._driver, "cuEventElapsedTime", result, _TIMING))

    def close(self) -> None:
        check(self._driver, "cuEventDestroy", self._driver.cuEventDestroy(self.handle), _TIMING)
