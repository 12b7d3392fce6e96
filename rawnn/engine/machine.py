"""Finding out what this machine can run, and opening the device that a run asks for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import rawnn
from rawnn.common.errors import DeviceError, RawnnError
from rawnn.common.target import Machine

if TYPE_CHECKING:
    from rawnn.cuda.device import Device

Notify = Callable[[str], None]


@dataclass(frozen=True)
class Opened:
    """A device ready for use, or None with the host in its place; `milliseconds` is what opening
    cost. At the end of a `with` the device is closed."""

    device: Device | None
    machine: Machine
    milliseconds: float

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the device, if there is one. What failed before may have broken its context, of
        which more than that failure says nothing new."""
        if self.device:
            with suppress(RawnnError):
                self.device.close()


def open_device(wanted: str, notify: Notify, ordinal: int = 0) -> Opened:
    """Open the device that `Config.device` names.

    "auto" takes a GPU or else the host; it and "gpu" mean the first, or the one of the `ordinal`.
    Raises DeviceError for a GPU asked for by name that is not there.
    """
    started = perf_counter()
    if wanted == "host":
        return Opened(None, Machine("--device host was asked for"), 0.0)
    if wanted == "sim":
        from rawnn.cuda.device import Device
        from rawnn.sim import sim_backend

        device = Device(sim_backend(), 0, notify)
    else:
        try:
            device = open_gpu(int(wanted.partition(":")[2] or ordinal), notify)
        except DeviceError as error:
            from rawnn.cuda.errors import CallFailed

            if wanted != "auto":
                if isinstance(error, CallFailed) or "--device host" in str(error):
                    raise
                raise type(error)(f"{error}; --device host trains on the CPU") from None
            return Opened(None, Machine(str(error)), (perf_counter() - started) * 1e3)
    if device.backend.caution:
        notify(device.backend.caution)
    return Opened(device, machine_of(device), (perf_counter() - started) * 1e3)


def open_gpu(ordinal: int, notify: Notify) -> Device:
    """The GPU `ordinal` through the real driver. Raises DeviceError."""
    from rawnn.cuda.backend import real_backend
    from rawnn.cuda.device import Device

    return Device(real_backend(), ordinal, notify)


def machine_of(device: Device) -> Machine:
    """What toggles need to know of an open device."""
    major, minor = (int(part) for part in device.info.cuda.split("."))
    return Machine(None, device.capability, major * 1000 + minor * 10,
                   device.backend.provides, device.info.memory_pools, device.info.name,
                   device.target)


def since_import() -> float:
    """Seconds since rawnn was first imported into this process."""
    return perf_counter() - rawnn.IMPORTED_AT
