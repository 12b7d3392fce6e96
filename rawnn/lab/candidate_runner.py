"""Launches a candidate on images of its arrays, in this process or a separate one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Protocol

import numpy as np

from rawnn.common.errors import RawnnError
from rawnn.cuda.device import Device
from rawnn.cuda.errors import check
from rawnn.lab.arrays import Array, chosen_device, default_device
from rawnn.lab.kernel import Kernel, Launcher
from rawnn.lab.kernel_problem import Launching
from rawnn.lab.maps import tensor_map
from rawnn.lab.red_zones import Contents, Images


@contextmanager
def released(release: Callable[[], None]) -> Iterator[None]:
    """Call `release` at the end. After an error, its own failure is ignored: an error of a kernel
    makes every later call fail with the same code."""
    try:
        yield
    except BaseException:
        with suppress(RawnnError):
            release()
        raise
    release()


class Runner(Protocol):
    """Launches a candidate."""

    def run(self, launching: Launching | None, images: Images,
            numbers: Mapping[str, Any]) -> Contents:
        """One launch on fresh memory; returns the bytes of every image afterwards, once all work of
        the GPU, on any stream, is done. Raises RawnnError for a launch that fails or exceeds the
        time limit."""

    def close(self) -> None:
        """Release all resources."""


class InProcess:
    """Launches in this process, in which an error of the kernel makes the GPU unusable."""

    def __init__(self, candidate: Kernel | Callable[..., Any], parameters: Sequence[str],
                 device: Device | None = None) -> None:
        self.candidate, self.parameters = candidate, parameters
        self.device = candidate.device if isinstance(candidate, Kernel) else \
            chosen_device(device, default_device)

    def run(self, launching: Launching | None, images: Images,
            numbers: Mapping[str, Any]) -> Contents:
        with self.placed(images) as arrays:
            self.prepared(launching, arrays, numbers)()
            self.finish()
            found = {name: np.empty_like(image.content) for name, image in images.items()}
            for name, image in images.items():
                self.device.to_host(found[name], arrays[name].address - image.zone,
                                    f"'{name}' after the kernel")
        return found

    @contextmanager
    def placed(self, images: Images) -> Iterator[dict[str, Array]]:
        """The images in device memory, as the arrays between their zones."""
        with ExitStack() as held:
            arrays = {}
            for name, image in images.items():
                address = held.enter_context(self.memory(image.content.nbytes,
                                                         f"'{name}' with its red zones"))
                self.device.to_device(address, image.content, f"'{name}'")
                arrays[name] = Array.at(address + image.zone, image.shape, image.dtype,
                                        self.device)
            yield arrays

    @contextmanager
    def memory(self, nbytes: int, what: str) -> Iterator[int]:
        """Bytes of device memory, freed at the end."""
        allocation = self.device.memory.allocate(nbytes, what)
        with released(lambda: self.device.memory.free(allocation)):
            yield int(allocation.address)

    def prepared(self, launching: Launching | None, arrays: Mapping[str, Array],
                 numbers: Mapping[str, Any]) -> Callable[[], None]:
        """The launch with its arguments."""
        given: dict[str, Any] = {**numbers, **arrays}
        if launching is None or not isinstance(self.candidate, Kernel):
            function, named = self.candidate, {n: given[n] for n in self.parameters}
            return lambda: function(**named)
        for name, values in launching.symbols.items():
            self.candidate.symbol(name)[:] = values
        for name, boxes in launching.maps.items():
            given[name] = tensor_map(arrays[boxes.operand], boxes.box, swizzle=boxes.swizzle)
        return self.launcher(launching).bind(*(given[n] for n in self.parameters))

    def launcher(self, launching: Launching) -> Launcher:
        assert isinstance(self.candidate, Kernel)
        result = self.candidate[launching.grid, launching.block]
        if launching.shared or launching.cluster or launching.cooperative:
            result = result.using(shared=launching.shared, cluster=launching.cluster,
                                  cooperative=launching.cooperative)
        return result

    def finish(self) -> None:
        """Wait for all work of the GPU, on any stream."""
        driver = self.device.driver
        check(driver, "cuCtxSynchronize", driver.cuCtxSynchronize(), "the kernel under check")

    def close(self) -> None:
        pass


