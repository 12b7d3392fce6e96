"""Two streams: one fetches the next batch while the other computes the current step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Protocol

from rawnn.cuda.launch import Command
from rawnn.cuda.stream import OrderingEvent, Stream
from rawnn.engine.runners.lowering import Addresses, HostArrays, Lowering
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Role


class Steps(Protocol):
    """A program that can run the ops of one step."""

    def step(self, index: int) -> None: ...

    def close(self) -> None: ...


def fetching(plan: Plan) -> list[Op]:
    """The ops that only fill batch tensors: copies from the host, or gathers."""
    return [op for op in plan.ops
            if op.writes and all(plan[name].role is Role.BATCH for name, _ in op.writes)]


def buffer_plans(plan: Plan) -> tuple[Plan, Plan]:
    """The step on each of the two pairs of batch buffers."""
    batch = [t for t in plan.tensors.values() if t.role is Role.BATCH]
    second: Mapping[str, str] = {t.name: t.name + "'" for t in batch}
    other = replace(
        plan.with_tensors(*(replace(t, name=second[t.name]) for t in batch)),
        ops=tuple(replace(op, operands={r: second.get(n, n) for r, n in op.operands.items()})
                  for op in plan.ops),
    )
    return plan, other


class OverlappedProgram:
    """Alternates between two pairs of batch buffers. A second stream fills one pair while the
    compute stream works on the other:

        copies   | batch 0 | batch 1 |  wait  | batch 2 |
        compute            | step 0    | step 1    | step 2 ...

    A step waits for the event after its fetch; a fetch waits for the event after the step that last
    used its buffers. Batch s+1 is requested as soon as step s is on the compute stream, so that a
    host that waits for step s does not delay it.
    """

    def __init__(self, lowering: Lowering, plan: Plan, addresses: Addresses, host: HostArrays,
                 steps: int, make: Callable[[Plan], Steps]) -> None:
        """`make` turns a plan without its fetching ops into a program on the compute stream."""
        device = lowering.device
        self._compute, self._steps = device.stream, steps
        self._closing = ExitStack()
        try:
            self._copies = Stream(device.driver)
            self._closing.callback(self._copies.close)
            # Memory is freed in the order of the compute stream. If a call failed between a copy
            # and its event, the copy may still be running.
            self._closing.callback(self._copies.synchronize, "closing")
            self._fetches: list[list[Command]] = []
            self._programs: list[Steps] = []
            self._fetched, self._done = ([self._event(device.driver) for _ in range(2)]
                                         for _ in range(2))
            for buffer in buffer_plans(plan):
                fetches = fetching(buffer)
                self._fetches.append([
                    c for op in fetches
                    for c in lowering.commands(op, buffer, addresses, host, self._copies)
                ])
                program = make(replace(buffer, ops=tuple(o for o in buffer.ops if o not
                                                         in fetches)))
                self._closing.callback(program.close)
                self._programs.append(program)
        except BaseException:
            self._closing.close()
            raise

    def _event(self, driver: object) -> OrderingEvent:
        event = OrderingEvent(driver)
        self._closing.callback(event.close)
        return event

    def step(self, index: int) -> None:
        buffer = index % 2
        if index == 0:  # the compute stream wrote what fetches read
            for event in self._done:
                event.record(self._compute)
            self._fetch(0)
        self._compute.wait_for(self._fetched[buffer])
        self._programs[buffer].step(index)
        self._done[buffer].record(self._compute)
        if index + 1 < self._steps:
            self._fetch(index + 1)

    def _fetch(self, index: int) -> None:
        buffer = index % 2
        self._copies.wait_for(self._done[buffer])
        for command in self._fetches[buffer]:
            command.run(index)
        self._fetched[buffer].record(self._copies)

    def run(self, steps: int) -> None:
        for index in range(steps):
            self.step(index)

    def close(self) -> None:
        self._closing.close()
