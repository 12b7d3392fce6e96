"""What limits are measured with, made ready on an open GPU: kernels, graphs and copies that can be
timed for any number of rounds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.common.target import Target
from rawnn.cuda.device import Device, Function
from rawnn.cuda.errors import check
from rawnn.cuda.launch import Arguments, KernelLaunch, Value
from rawnn.cuda.pinned import PinnedBuffer
from rawnn.cuda.stream import Event
from rawnn.graphs.graph import ExecutableGraph, Graph
from rawnn.ptx.limits import microbenchmarks as probes
from rawnn.ptx.limits.microbenchmarks import PROBES, Probe

Timed = Callable[[int], float]
"""Rounds -> the milliseconds that they take on the device."""

FILL = 0x3C
"""Every byte of what is read: floats of 0.0115. Memory of zeros may be read faster than other."""


class Repeated:
    """A kernel made ready: called with a number of rounds, it takes so many milliseconds. `values`
    are its other arguments, among them the addresses of what it reads and writes; `counter` is
    whether the one of that name has to be 0 ahead of each launch."""

    def __init__(self, probing: ProbeDevice, launch: KernelLaunch, values: dict[str, Value],
                 counter: bool) -> None:
        self._on, self._launch, self._counter = probing, launch, counter
        self.values = values

    def __call__(self, rounds: int) -> float:
        self._launch.arguments.set("rounds", rounds)
        what = f"limits, {self._launch.label}"
        if self._counter:
            self._on.device.fill(int(self.values["counter"]), 0, 4, what)
        return self._on.between(self._launch.launch, what)


class ProbeDevice:
    """An open device with all probes compiled that it can run. Use as a context manager; what its
    methods make lives as long as the stack that they are given."""

    def __init__(self, device: Device) -> None:
        self.device, self.driver = device, device.driver
        self.target: Target = device.target()
        self._closing = ExitStack()
        self._start, self._end = Event(self.driver), Event(self.driver)
        for event in (self._start, self._end):
            self._closing.callback(event.close)
        if device.backend.name == "sim":
            _register_references()
        some = [p for p in PROBES if not p.lacks(self.target)]
        for source, specific in dict.fromkeys((p.source, p.specific) for p in some):
            device.compile(source, tuple(p.expression for p in some if p.source == source),
                           specific=specific)
        if self.target.has("programmatic launches"):
            device.compile(probes.NOTHING.source, (probes.NOTHING.expression,), programmatic=True)

    def __enter__(self) -> ProbeDevice:
        return self

    def __exit__(self, *exception: object) -> None:
        self._closing.close()

    def between(self, enqueue: Callable[[], None], what: str) -> float:
        """Milliseconds on the device of what is enqueued."""
        stream = self.device.stream
        self._start.record(stream)
        enqueue()
        self._end.record(stream)
        stream.synchronize(what)
        return self._end.milliseconds_since(self._start)

    def _function(self, probe: Probe, programmatic: bool = False) -> Function:
        return self.device.function(probe.source, probe.expression, programmatic)

    def buffer(self, stack: ExitStack, nbytes: int, purpose: str, fill: int | None = FILL) -> int:
        """The address of device memory, set byte by byte."""
        memory = self.device.memory
        found = memory.allocate(nbytes, purpose)
        stack.callback(memory.free, found)
        if fill is not None:
            self.device.fill(found.address, fill, nbytes, purpose)
        return found.address

    # -- kernels --------------------------------------------------------------------------------
    def kernel(self, stack: ExitStack, probe: Probe, blocks: int, values: dict[str, Value], *,
               cluster: int = 1, counter: bool = False, shared: int | None = None,
               words: NDArray[np.uint32] | None = None) -> Repeated:
        """A probe's kernel of `blocks` blocks. Its `sums` are given memory, its `counter` is 0
        ahead of each launch, `words` are what it multiplies."""
        function = self._function(probe)
        given = {p.name for p in function.signature.parameters}
        values = dict(values)
        purpose = f"limits, {probe.expression}"
        if "sums" in given:
            values["threads"] = blocks * probe.threads
            values["sums"] = self.buffer(stack, 4 * blocks * probe.threads, purpose, None)
        if counter:
            values["counter"] = self.buffer(stack, 4, purpose, 0)
        if words is not None:
            values["words"] = self.buffer(stack, words.nbytes, purpose, None)
            self.device.to_device(int(values["words"]), words, purpose)
        arguments = Arguments(function.signature, {**values, "rounds": 1})
        launch = KernelLaunch(
            self.driver, self.device.stream, function.handle, probe.expression, (blocks, 1, 1),
            (probe.threads, 1, 1), arguments, probe.shared if shared is None else shared,
            (cluster, 1, 1) if cluster > 1 else None, cooperative=probe.cooperative)

        return Repeated(self, launch, values, counter)

    def memory(self, stack: ExitStack, probe: Probe, blocks: int, nbytes: int) -> Repeated:
        """A probe that walks over memory."""
        values: dict[str, Value] = {"count": nbytes // 16}
        names = {p.name for p in self._function(probe).signature.parameters}
        for name in ("x", "y"):
            if name in names:
                values[name] = self.buffer(stack, nbytes, f"limits, {nbytes:,} bytes")
        if "value" in names:
            values["value"] = 0.5
        return self.kernel(stack, probe, blocks, values)

    def exchange(self, stack: ExitStack, blocks: int, size: int, quads: int) -> Repeated:
        """Exchanges of `quads` times 16 bytes in clusters of `size` blocks."""
        return self.kernel(stack, probes.EXCHANGES, blocks, {"size": size, "quads": quads},
                           cluster=size, shared=probes.exchange_bytes(size, quads))

    # -- launches -------------------------------------------------------------------------------
    def _nothing(self, blocks: int, early: bool) -> KernelLaunch:
        function = self._function(probes.NOTHING, early)
        return KernelLaunch(self.driver, self.device.stream, function.handle, "nothing",
                            (blocks, 1, 1), (32 if blocks == 1 else probes.THREADS, 1, 1),
                            Arguments(function.signature, {}))

    def launches(self, stack: ExitStack) -> Timed:
        """As many launches on a stream as there are rounds."""
        launch = self._nothing(1, False).launch

        def enqueue(rounds: int) -> None:
            for _ in range(rounds):
                launch()

        return lambda rounds: self.between(lambda: enqueue(rounds), "limits, launches")

    def _chain(self, stack: ExitStack, blocks: int, nodes: int, early: bool) -> ExecutableGraph:
        graph = Graph(self.driver, self.device.context, f"a chain of {nodes} nodes")
        try:
            launch, last = self._nothing(blocks, early), list[Any]()
            for _ in range(nodes):
                last = launch.add_to(graph, [], 0, last) if early \
                    else launch.add_to(graph, last, 0)
            made = graph.instantiate(f"a chain of {nodes} nodes")
        finally:
            graph.close()
        stack.callback(made.close)
        made.upload(self.device.stream)
        return made

    def chains(self, stack: ExitStack, blocks: int, nodes: tuple[int, int], early: bool) -> Timed:
        """Graphs that are chains of empty kernels, one of each number of `nodes`."""
        graphs = {n: self._chain(stack, blocks, n, early) for n in nodes}
        return lambda rounds: self.between(
            lambda: graphs[rounds].launch(self.device.stream), "limits, graph nodes")

    def graph_launches(self, stack: ExitStack) -> Timed:
        """As many launches of a graph of one node as there are rounds."""
        graph, stream = self._chain(stack, 1, 1, False), self.device.stream

        def enqueue(rounds: int) -> None:
            for _ in range(rounds):
                graph.launch(stream)

        return lambda rounds: self.between(lambda: enqueue(rounds), "limits, launches of graphs")

    # -- copies ---------------------------------------------------------------------------------
    def copies(self, stack: ExitStack, nbytes: int, up: bool) -> Timed:
        """As many copies from page-locked memory to the device (`up`), or back, as there are
        rounds."""
        purpose = f"limits, copies of {nbytes:,} bytes"
        host = PinnedBuffer(self.driver, nbytes, purpose)
        stack.callback(host.close)
        host.array((nbytes,), np.uint8)[:] = FILL
        there, stream = self.buffer(stack, nbytes, purpose), self.device.stream.handle
        call, first, second = (("cuMemcpyHtoDAsync", there, host.address) if up else
                               ("cuMemcpyDtoHAsync", host.address, there))
        copy = getattr(self.driver, call)

        def enqueue(rounds: int) -> None:
            for _ in range(rounds):
                check(self.driver, call, copy(first, second, nbytes, stream), purpose)

        return lambda rounds: self.between(lambda: enqueue(rounds), purpose)


def _register_references() -> None:
    """Register the NumPy references of the probes, by which a simulated GPU computes."""
    from rawnn.sim import register

    for probe in PROBES:
        m = probe.meaning
        register(probe.name, m.reference, m.shapes, reads=m.reads, writes=m.writes)
