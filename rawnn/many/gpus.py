"""Several GPUs of this machine, each driven by a thread of its own: a context is current in the
thread that opened it, and one GPU is waited for while others work."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import ParamSpec, TypeVar

from rawnn.common.errors import ConfigError, RawnnError
from rawnn.engine.machine import Opened, devices_of, names_several, open_device

P = ParamSpec("P")
R = TypeVar("R")
POLL_SECONDS = 0.1


class Gpu:
    """A GPU by its name, such as "gpu:1". `opened` is for calls in its thread, except `info` of its
    device."""

    opened: Opened

    def __init__(self, name: str) -> None:
        self.name = name
        self._thread = ThreadPoolExecutor(1, f"rawnn {name}")

    def submit(self, act: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> Future[R]:
        """Have `act` called in this GPU's thread, behind what was submitted before. The message of
        an error begins with the GPU's name."""

        def call() -> R:
            try:
                return act(*arguments, **named)
            except RawnnError as error:
                if not str(error).startswith(f"{self.name}: "):
                    error.args = (f"{self.name}: {error}",)
                raise

        return self._thread.submit(call)

    def open(self, notify: Callable[[str], None]) -> Future[None]:
        """Open it, once."""

        def opening() -> None:
            self.opened = open_device(self.name, notify)

        return self.submit(opening)

    def close(self) -> None:
        """Close the device, and end the thread behind what was submitted; a second call does
        nothing."""
        with suppress(RuntimeError):  # the thread has ended
            if hasattr(self, "opened"):
                self._thread.submit(self.opened.close)
        self._thread.shutdown()


def result_of(future: Future[R]) -> R:
    """What a thread returned or raised. The main thread runs handlers of signals meanwhile: one
    that waits for a lock without a limit wakes for signals of other processes alone."""
    while not future.done():
        wait([future], POLL_SECONDS)
    return future.result()


def open_gpus(device: str, notify: Callable[[str], None]) -> tuple[Gpu, ...]:
    """The GPUs that `device` names ("gpu:0,1", "gpu:all"), opened; () where it names one device.
    Raises DeviceError, and ConfigError for GPUs of different kinds."""
    if not names_several(device):
        return ()
    is_all, names, messages = device.endswith(":all"), devices_of(device), list[str]()
    gpus = [Gpu("gpu:0" if is_all else names[0])]
    try:
        result_of(gpus[0].open(messages.append))
        first = gpus[0].opened.device
        assert first is not None
        if is_all:
            names = tuple(f"gpu:{number}" for number in range(first.count))
        gpus += [Gpu(name) for name in names[1:]]
        for opening in [gpu.open(messages.append) for gpu in gpus[1:]]:
            result_of(opening)
        for gpu in gpus[1:]:
            own = gpu.opened.device
            assert own is not None
            if (own.info.name, own.info.multiprocessors) != \
                    (first.info.name, first.info.multiprocessors):
                raise ConfigError(f"{gpus[0].name} is {first.info.name} and {gpu.name} "
                                  f"{own.info.name}: name GPUs of one kind, on which a network has "
                                  f"the same bits")
    except BaseException:
        for gpu in gpus:
            gpu.close()
        raise
    for message in dict.fromkeys(messages):
        notify(message)
    return tuple(gpus)
