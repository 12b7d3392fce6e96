"""Several GPUs of this machine, each driven by a thread of its own: a context is current in the
thread that opened it, and one GPU is waited for while others work."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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

    def close(self, waits: bool = True) -> None:
        """Close the device, and end the thread behind what was submitted; without `waits` at once,
        while the thread goes on. A second call does nothing else than to wait."""

        def closing() -> None:
            if hasattr(self, "opened"):
                self.opened.close()

        with suppress(RuntimeError):  # the thread has ended
            self._thread.submit(closing)
        self._thread.shutdown(waits)


def close_all(gpus: Iterable[Gpu]) -> None:
    """Close GPUs, all at the same time."""
    for waits in (False, True):
        for gpu in gpus:
            gpu.close(waits)


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
    from rawnn.cuda.compiling.batch import SharedResults  # not needed on the host

    is_all, names, messages = device.endswith(":all"), devices_of(device), list[str]()
    gpus, results = [Gpu(name) for name in (("gpu:0",) if is_all else names)], SharedResults()
    try:
        for opening in [gpu.open(messages.append) for gpu in gpus]:
            result_of(opening)
        first = gpus[0].opened.device
        assert first is not None
        if is_all:
            gpus += [Gpu(f"gpu:{number}") for number in range(1, first.count)]
            for opening in [gpu.open(messages.append) for gpu in gpus[1:]]:
                result_of(opening)
        for gpu in gpus:
            own = gpu.opened.device
            assert own is not None
            own.results = results
            if (own.info.name, own.info.multiprocessors) != \
                    (first.info.name, first.info.multiprocessors):
                raise ConfigError(f"{gpus[0].name} is {first.info.name} and {gpu.name} "
                                  f"{own.info.name}: name GPUs of one kind, on which a network has "
                                  f"the same bits")
    except BaseException:
        close_all(gpus)
        raise
    for message in dict.fromkeys(messages):
        notify(message)
    return tuple(gpus)
