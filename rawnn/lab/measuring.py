"""Measures launches between two events in a graph, each on inputs of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from rawnn.cuda.errors import check
from rawnn.cuda.stream import Event
from rawnn.graphs import Graph
from rawnn.lab.arrays import Array
from rawnn.lab.candidate_runner import InProcess, released
from rawnn.lab.integrity import Integrity, Refused
from rawnn.lab.kernel import Kernel
from rawnn.lab.kernel_problem import Launching
from rawnn.lab.red_zones import Contents, Images

Sample = tuple[Images, Mapping[str, Any], Collection[str]]
"""Images, numbers, and the names of arrays with input."""
Touch = tuple[int, int, int | None]
"""A memory operation before a sample: address, bytes, and the source of a copy (None: a fill)."""
_POISON = 0xFF  # as a float: NaN
_CARVE_OUT = "PERSISTING_L2_CACHE_SIZE"


class Stopwatch(InProcess):
    """Launches in this process, and measures the time."""

    def measure(self, launching: Launching | None, samples: Sequence[Sample], warm: bool
                ) -> tuple[list[float], list[Contents]]:
        """Microseconds of one launch for each of `samples` (images, numbers and the names of arrays
        with input), and the bytes at the end of each sample, which show work that a candidate
        defers. Raises Refused for a candidate that sets a part of the L2 cache aside, in which a
        cold sample would find its inputs, or that replaces what measures it.

        A kernel's samples are one graph. Each is two events with the launch between them, after a
        copy of its inputs and a fill of its outputs (`warm`: what fits is then in L2), or after a
        fill of memory twice as large as L2. A function's samples run one by one, until all streams
        are idle, and include the host's time.
        """
        integrity = Integrity()
        with ExitStack() as held:
            held.enter_context(self._without_carve_out())
            arrays = [held.enter_context(self.placed(images)) for images, _, _ in samples]
            flush = held.enter_context(self.memory(self._flush_bytes(), "what the L2 cache is "
                                                    "filled with"))
            events = [(self._event(held), self._event(held)) for _ in samples]
            cold: list[Touch] = [(flush, self._flush_bytes(), None)]
            before = [self._warmth(held, placed, sample) if warm else cold
                      for placed, sample in zip(arrays, samples, strict=True)]
            runs = [self.prepared(launching, placed, numbers)
                    for placed, (_, numbers, _) in zip(arrays, samples, strict=True)]
            places = [{name: placed[name].address - image.zone for name, image in images.items()}
                      for placed, (images, _, _) in zip(arrays, samples, strict=True)]
            if launching is None:
                found = []
                for run, (begin, end), touches, (images, _, _), place in zip(
                        runs, events, before, samples, places, strict=True):
                    self._alone(run, begin, end, touches)
                    found.append(self._read(images, place))
                self._refuse_carve_out()
            else:
                saved = [{name: held.enter_context(self.memory(
                    image.content.nbytes, f"'{name}' at the end of a sample"))
                    for name, image in images.items()} for images, _, _ in samples[:-1]]
                copies = [[(to, place[name], images[name].content.nbytes)
                           for name, to in copied.items()]
                          for copied, place, (images, _, _) in zip(saved, places, samples,
                                                                   strict=False)]
                self._in_a_graph(held, runs, events, before, copies)
                self.finish()
                found = [self._read(images, place) for (images, _, _), place in zip(
                    samples, [*saved, places[-1]], strict=True)]
            integrity.require()
            times = [end.milliseconds_since(begin) * 1e3 for begin, end in events]
        return times, found

    def _read(self, images: Images, places: Mapping[str, int]) -> Contents:
        """The bytes of arrays with their zones, which begin at these addresses."""
        found = {name: np.empty_like(image.content) for name, image in images.items()}
        for name, content in found.items():
            self.device.to_host(content, places[name], f"'{name}' after the kernel")
        return found

    def _carve_out(self) -> int:
        """Bytes of L2 that are set aside for persisting accesses, which no fill evicts; 0 if the
        GPU does not support it."""
        code, nbytes = self.device.driver.cuCtxGetLimit(_CARVE_OUT)
        return 0 if code else int(nbytes)

    def _refuse_carve_out(self) -> None:
        nbytes = self._carve_out()
        if nbytes:
            raise Refused(f"the function under the clock sets {nbytes:,} bytes of the L2 cache "
                          f"aside for persisting accesses, which no fill evicts: its inputs would "
                          f"be there before a cold sample begins")

    @contextmanager
    def _without_carve_out(self) -> Iterator[None]:
        """Within this context no part of L2 is set aside, and data there are evicted normally."""
        driver, before = self.device.driver, self._carve_out()

        def set_aside(nbytes: int) -> None:
            check(driver, "cuCtxSetLimit", driver.cuCtxSetLimit(_CARVE_OUT, nbytes),
                  "the L2 cache set aside")

        if before:
            set_aside(0)
            check(driver, "cuCtxResetPersistingL2Cache", driver.cuCtxResetPersistingL2Cache(),
                  "the L2 cache set aside")
        with released(lambda: set_aside(before) if self._carve_out() != before else None):
            yield

    def empty(self, samples: int) -> list[float]:
        """Microseconds of an empty kernel, measured in the same way."""
        kernel = Kernel("__global__ void nothing() {}", "nothing", device=self.device)
        here = Stopwatch(kernel, ())
        return here.measure(Launching((1, 1, 1), (1, 1, 1)), [({}, {}, ())] * samples, False)[0]

    def free(self) -> int:
        """Bytes of free device memory."""
        return self.device.free_memory()

    def _flush_bytes(self) -> int:
        if self.device.backend.name == "sim":
            return 1  # it has no cache
        return 2 * self.device.attribute("L2_CACHE_SIZE")

    def _event(self, held: ExitStack) -> Event:
        event = Event(self.device.driver)
        held.enter_context(released(event.close))
        return event

    def _warmth(self, held: ExitStack, arrays: Mapping[str, Array],
                sample: Sample) -> list[Touch]:
        """The operations that bring a sample's arrays into the cache: copies of inputs, fills of
        outputs."""
        touches: list[Touch] = []
        for name, array in arrays.items():
            source = None
            if name in sample[2]:
                source = held.enter_context(self.memory(array.nbytes, f"the input '{name}'"))
                inside = np.ascontiguousarray(sample[0][name].inside())
                self.device.to_device(source, inside, f"'{name}'")
            touches.append((array.address, array.nbytes, source))
        return touches

    def _alone(self, run: Callable[[], None], begin: Event, end: Event,
               touches: Sequence[Touch]) -> None:
        driver, stream = self.device.driver, self.device.stream
        for address, nbytes, source in touches:
            if source is None:
                self.device.fill(address, _POISON, nbytes, "poison")
            else:
                check(driver, "cuMemcpyDtoDAsync", driver.cuMemcpyDtoDAsync(
                    address, source, nbytes, stream.handle), "the inputs of a sample")
        self.finish()
        begin.record(stream)
        run()
        self.finish()
        end.record(stream)

    def _in_a_graph(self, held: ExitStack, runs: Sequence[Any],
                    events: Sequence[tuple[Event, Event]], before: Sequence[list[Touch]],
                    behind: Sequence[Sequence[tuple[int, int, int]]]) -> None:
        """`behind` are copies at the end of each sample but the last: to, from, bytes."""
        device = self.device
        graph = Graph(device.driver, device.context, "the samples of a kernel")
        try:
            last: list[Any] = []
            for run, (begin, end), touches, copies in zip(runs, events, before, [*behind, ()],
                                                          strict=True):
                for address, nbytes, source in touches:
                    last = [graph.add_memset(last, address, _POISON, nbytes, "poison")
                            if source is None else
                            graph.add_memcpy(last, "DtoD", address, source, nbytes,
                                             "the inputs of a sample")]
                last = [graph.add_event(last, begin, "the begin of a sample")]
                last = [run.add_to(graph, last)]
                last = [graph.add_event(last, end, "the end of a sample")]
                for target, address, nbytes in copies:
                    last = [graph.add_memcpy(last, "DtoD", target, address, nbytes,
                                             "a result at the end of its sample")]
            executable = graph.instantiate("the samples of a kernel")
        finally:
            graph.close()
        held.enter_context(released(executable.close))
        executable.upload(device.stream)
        self.finish()
        executable.launch(device.stream)
