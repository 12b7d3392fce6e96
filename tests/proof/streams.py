"""A plan on two streams, ordered by events: what the engine has no need of, but the proof has.

Ops alternate between the streams. An op waits for each op of the other stream that it depends on,
unless an earlier wait or the order of its own stream implies that already.
"""

from __future__ import annotations

from rawnn.cuda.errors import check
from rawnn.cuda.launch import Command
from rawnn.cuda.stream import Event, Stream
from rawnn.engine.runners.gpu import GpuRunner
from rawnn.engine.runners.lowering import Addresses, HostArrays, Lowering
from rawnn.engine.runners.programs import StreamProgram
from rawnn.plan.dependencies import dependencies
from rawnn.plan.plan import Plan


class TwoStreamProgram(StreamProgram):
    """An epoch on the device's stream and a second one; the wait number `dropped` is left out."""

    def __init__(self, lowering: Lowering, plan: Plan, addresses: Addresses, host: HostArrays,
                 second: Stream, dropped: int | None) -> None:
        self._device, self._plan, self._dropped = lowering.device, plan, dropped
        self._streams = (self._device.stream, second)
        self._events: list[Event] = []
        self.waits = 0
        self._variants: list[list[list[Command]]] = []
        for stream in self._streams:
            self._device.stream = stream
            self._variants.append([lowering.commands(op, plan, addresses, host)
                                   for op in plan.ops])
        self._device.stream = self._streams[0]

    def run(self, steps: int) -> None:
        count = len(self._plan.ops)
        ops = [op.at_step(step, {}) for step in range(steps) for op in self._plan.ops]
        seen = [[-1, -1], [-1, -1]]  # what each stream has waited for, by stream
        clocks: list[list[int]] = []
        for index, before in enumerate(dependencies(ops)):
            here = index % 2
            for other in sorted(before, reverse=True):
                if other % 2 != here and seen[here][other % 2] < other:
                    self._wait(here, other)
                    seen[here] = [max(pair) for pair in zip(seen[here], clocks[other],
                                                            strict=True)]
            for command in self._variants[here][index % count]:
                command.run(index // count)
            seen[here][here] = index
            clocks.append(list(seen[here]))
            event = Event(self._device.driver)
            self._events.append(event)
            event.record(self._streams[here])
        self._wait(0, len(ops) - 1 - len(ops) % 2)

    def _wait(self, here: int, other: int) -> None:
        """Let stream `here` wait for op number `other`."""
        number, self.waits = self.waits, self.waits + 1
        if number != self._dropped:
            driver = self._device.driver
            check(driver, "cuStreamWaitEvent", driver.cuStreamWaitEvent(
                self._streams[here].handle, self._events[other].handle, 0))

    def close(self) -> None:
        for event in self._events:
            event.close()
        self._events = []


class TwoStreamRunner(GpuRunner):
    """The engine's runner with its training epoch on two streams; a policy without graphs, with
    an arena."""

    dropped: int | None = None

    def _steps(self, plan: Plan) -> TwoStreamProgram:
        second = Stream(self._device.driver)
        self._closing.callback(second.close)
        program = TwoStreamProgram(self._lowering, plan, self._addresses, self._host, second,
                                   self.dropped)
        self._closing.callback(program.close)
        return program

    @property
    def waits(self) -> int:
        return self._train.waits  # type: ignore[attr-defined]
