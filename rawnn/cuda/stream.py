"""Streams, and events that measure time or only order work."""

from __future__ import annotations

from typing import Any

from rawnn.cuda.errors import check

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: never waits for the legacy default stream
_DISABLE_TIMING = 2  # CU_EVENT_DISABLE_TIMING: cheaper to record and to wait for
_ORDERING = "an event that orders two streams"
_TIMING = "an event that times an epoch"


class Stream:
    """An ordered queue of device work. `handle` is the argument of the driver's calls. Blocks of
    kernels on an `urgent` stream get the next free multiprocessors."""

    def __init__(self, driver: Any, urgent: bool = False) -> None:
        self._driver, self.urgent, self.priority = driver, urgent, 0
        if not urgent:
            self.handle = check(driver, "cuStreamCreate", driver.cuStreamCreate(_NON_BLOCKING),
                                "a non-blocking stream")
            return
        _, self.priority = check(driver, "cuCtxGetStreamPriorityRange",
                                 driver.cuCtxGetStreamPriorityRange(), "an urgent stream")
        self.handle = check(driver, "cuStreamCreateWithPriority",
                            driver.cuStreamCreateWithPriority(_NON_BLOCKING, self.priority),
                            "an urgent stream")

    def synchronize(self, context: str = "") -> None:
        """Wait for everything on the stream; an error of a kernel surfaces here."""
        check(self._driver, "cuStreamSynchronize", self._driver.cuStreamSynchronize(self.handle),
              context)

    def wait_for(self, event: Event | OrderingEvent) -> None:
        """Let later work on this stream wait until `event`, as recorded last, is reached; the host
        does not wait. An event that was never recorded delays nothing."""
        check(self._driver, "cuStreamWaitEvent",
              self._driver.cuStreamWaitEvent(self.handle, event.handle, 0), _ORDERING)

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


class OrderingEvent:
    """A point on a stream that others wait for or query. It has no time stamp."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self.handle = check(driver, "cuEventCreate", driver.cuEventCreate(_DISABLE_TIMING),
                            _ORDERING)

    def record(self, stream: Stream) -> None:
        check(self._driver, "cuEventRecord", self._driver.cuEventRecord(self.handle, stream.handle),
              _ORDERING)

    def reached(self) -> bool:
        """Whether all work on the stream before the last `record` is done."""
        result = self._driver.cuEventQuery(self.handle)
        if result[0] and self._driver.error_text(result[0])[0] == "CUDA_ERROR_NOT_READY":
            return False
        check(self._driver, "cuEventQuery", result, _ORDERING)
        return True

    def synchronize(self) -> None:
        """Wait on the host until the point is reached."""
        check(self._driver, "cuEventSynchronize", self._driver.cuEventSynchronize(self.handle),
              _ORDERING)

    def close(self) -> None:
        check(self._driver, "cuEventDestroy", self._driver.cuEventDestroy(self.handle), _ORDERING)
