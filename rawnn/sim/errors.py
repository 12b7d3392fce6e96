"""Errors of the simulated device, and how it refuses a call."""

from __future__ import annotations

from rawnn.common.errors import RawnnError


class SimulationError(RawnnError):
    """Work that a GPU would get wrong, perhaps silently: an access outside an allocation, a read of
    uninitialised memory, a use after free, two unordered operations on the same bytes, arguments
    that do not fit the kernel, a leak."""


class Race(SimulationError):
    """Two unordered operations access the same bytes, and one of them writes."""


class ReadBeforeWrite(SimulationError):
    """An operation reads bytes that nothing has written."""


class Refused(Exception):
    """Raised inside a simulated call, which then returns the result code named `code`."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code
