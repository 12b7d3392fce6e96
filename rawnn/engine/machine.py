"""Finds out what this machine can run, and opens the device that a run asks for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import rawnn
from rawnn.common.errors import ConfigError, DeviceError, RawnnError
from rawnn.common.target import Machine

if TYPE_CHECKING:
    from rawnn.cuda.device import Device

Notify = Callable[[str], None]


@dataclass(frozen=True)
class Opened:
    """A device ready for use, or None to train on the host; `milliseconds` is the time to open it.
    Leaving a `with` closes the device."""

    device: Device | None
    machine: Machine
    milliseconds: float

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the device, if there is one. Errors are ignored: an earlier failure may have broken
        the context, and the errors that follow from it add nothing."""
        if self.device:
            with suppress(RawnnError):
                self.device.close()


def devices_of(device: str) -> tuple[str, ...]:
    """The devices that `device` names, each by itself: "gpu:0,1" are "gpu:0" and "gpu:1". "gpu:all"
    is left as it is: how many there are is known once a driver is loaded."""
    kind, _, numbers = device.partition(":")
    return tuple(f"{kind}:{int(number)}" for number in numbers.split(",")) \
        if numbers.replace(",", "").isdecimal() else (device,)


def names_several(device: str) -> bool:
    """Whether `device` names several GPUs, or all there are."""
    return len(devices_of(device)) > 1 or device.endswith(":all")


def open_device(wanted: str, notify: Notify, ordinal: int = 0) -> Opened:
    """Open the device that `Config.device` names.

    "auto" takes a GPU if there is one, else the host. "auto" and "gpu" mean GPU `ordinal`. Raises
    DeviceError if a GPU that is asked for is missing, ConfigError for several.
    """
    started = perf_counter()
    if names_several(wanted):
        raise ConfigError(f"device = '{wanted}': only train_many (rawnn many) spreads networks "
                          f"over several GPUs; python -m rawnn launch -n "
                          f"{max(2, len(devices_of(wanted)))} trains one network on them, and all "
                          f"else takes one, as in gpu:0")
    if wanted == "host":
        return Opened(None, Machine("--device host was asked for"), 0.0)
    if wanted.partition(":")[0] == "sim":
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


def start_opening(device: str) -> None:
    """Begin to create the contexts of all GPUs that `device` names, side by side in threads;
    `open_device` waits for its own. Nothing is reported here."""
    kind, _, numbers = device.partition(":")
    if kind not in ("auto", "gpu"):
        return
    from rawnn.cuda.driver_start import start_driver

    start_driver(None if numbers == "all" else map(int, (numbers or "0").split(",")))


def open_gpu(ordinal: int, notify: Notify) -> Device:
    """The GPU `ordinal` through the real driver. The process keeps its context, so that opening it
    again takes no time. Raises DeviceError."""
    from rawnn.cuda.backend import real_backend
    from rawnn.cuda.device import Device
    from rawnn.cuda.driver_start import release_context

    start_opening(f"gpu:{ordinal}")
    try:
        return Device(real_backend(), ordinal, notify)
    except DeviceError:
        release_context(ordinal)
        raise


def machine_of(device: Device) -> Machine:
    """What toggles need to know about an open device."""
    major, minor = (int(part) for part in device.info.cuda.split("."))
    return Machine(None, device.capability, major * 1000 + minor * 10,
                   device.backend.provides, device.info.memory_pools, device.info.name,
                   device.target)


def since_import() -> float:
    """Seconds since rawnn was first imported into this process."""
    return perf_counter() - rawnn.IMPORTED_AT
