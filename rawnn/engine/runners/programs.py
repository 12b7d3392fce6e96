"""Programs: a plan bound to memory, able to run an epoch. One class per way of running."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol

from rawnn.cuda.allocators import Allocator
from rawnn.cuda.launch import Command
from rawnn.cuda.memory import Allocation
from rawnn.engine.runners.lowering import Addresses, HostArrays, Lowering
from rawnn.plan.merging import DEFERRED
from rawnn.plan.plan import Plan


class Program(Protocol):
    """Runs steps of the epoch; enqueues only."""

    def run(self, steps: int) -> None: ...

    def close(self) -> None: ...


class StreamProgram:
    """Launch by launch, in the plan's order, with every tensor in place already."""

    def __init__(self, lowering: Lowering, plan: Plan, addresses: Addresses,
                 host: HostArrays) -> None:
        self._commands = [c for op in plan.ops if op.kind not in DEFERRED
                          for c in lowering.commands(op, plan, addresses, host)]

        def deferred(steps: int) -> list[Command]:
            return [c for op in plan.ops if op.kind in DEFERRED
                    for c in lowering.commands(DEFERRED[op.kind](op, steps), plan, addresses, host)]

        self._make_deferred = deferred
        self._deferred: dict[int, list[Command]] = {}

    def step(self, index: int) -> None:
        """One step, with all that it reports."""
        for command in self._commands:
            command.run(index)
        for command in self._deferred_of(1):
            command.run(index)

    def run(self, steps: int) -> None:
        """The first so many steps of the epoch; at their end what need not be done step by step."""
        for index in range(steps):
            for command in self._commands:
                command.run(index)
        for command in self._deferred_of(steps) if steps else ():
            command.run(0)

    def _deferred_of(self, steps: int) -> list[Command]:
        """The commands that do for so many steps what need not be done step by step."""
        if steps not in self._deferred:
            self._deferred[steps] = self._make_deferred(steps)
        return self._deferred[steps]

    def close(self) -> None:
        self._commands, self._deferred = [], {}


class WholeProgram(StreamProgram):
    """An epoch whose steps are one op: the plan spans all of them, and runs once."""

    def run(self, steps: int) -> None:
        self.step(0)


class EpochProgram(WholeProgram):
    """The same whose op also does what stands between two epochs. `next_epoch` says which epoch
    comes, counted from 0."""

    def __init__(self, lowering: Lowering, plan: Plan, addresses: Addresses, host: HostArrays,
                 next_epoch: Callable[[], int]) -> None:
        super().__init__(lowering, plan, addresses, host)
        self._next_epoch = next_epoch

    def run(self, steps: int) -> None:
        self.step(self._next_epoch())


class AllocatingProgram(StreamProgram):
    """As StreamProgram, but temporaries without an address are allocated ahead of the op that first
    writes them and freed behind the one that last touches them, in every step: the baseline, whose
    cost `arena` takes away, or a pool."""

    def __init__(self, lowering: Lowering, plan: Plan, addresses: Addresses,
                 host: HostArrays, allocator: Allocator) -> None:
        self._allocator, self._log = allocator, lowering.device.memory.log
        self._plan = plan
        self._schedule: list[tuple[list[str], list[Command], list[str]]] = []
        self._users: dict[str, list[tuple[Command, str]]] = {}
        self._live: dict[str, Allocation] = {}
        self._last: dict[str, int] = {}
        nowhere = {n: 0 for n, t in plan.tensors.items()
                   if t.role.temporary and n not in addresses}
        first, last = _lifetimes(plan)
        for index, op in enumerate(plan.ops):
            commands = lowering.commands(op, plan, {**addresses, **nowhere}, host)
            for role, tensor in op.operands.items():
                if tensor in nowhere:
                    self._users.setdefault(tensor, []).extend((c, role) for c in commands)
            born = [t for t in nowhere if first.get(t) == index]
            dead = [t for t in nowhere if last.get(t) == index]
            self._schedule.append((born, commands, dead))

    def step(self, index: int) -> None:
        if self._log is not None:
            self._log.step = index + 1
        for born, commands, dead in self._schedule:
            for tensor in born:
                allocation = self._allocator.allocate(self._plan[tensor].nbytes, tensor)
                self._live[tensor] = allocation
                if self._last.get(tensor) != allocation.address:  # a pool gives the same again
                    self._last[tensor] = allocation.address
                    for command, operand in self._users[tensor]:
                        command.rebind(operand, allocation.address)
            for command in commands:
                command.run(index)
            for tensor in dead:
                self._allocator.free(self._live.pop(tensor))

    def run(self, steps: int) -> None:
        for index in range(steps):
            self.step(index)

    def close(self) -> None:
        """Free what a failed step left allocated."""
        with ExitStack() as freeing:
            for allocation in self._live.values():
                freeing.callback(self._allocator.free, allocation)
            self._live = {}


def _lifetimes(plan: Plan) -> tuple[dict[str, int], dict[str, int]]:
    """Index of the first and of the last op that touches each tensor."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for index, op in enumerate(plan.ops):
        for tensor in op.tensors:
            first.setdefault(tensor, index)
            last[tensor] = index
    return first, last


def make_program(lowering: Lowering, plan: Plan, addresses: Addresses, host: HostArrays,
                 allocator: Allocator | None) -> StreamProgram:
    """A program on the device's stream; `allocator` gives temporaries their memory at each use,
    None where all have an address."""
    if allocator is None:
        return StreamProgram(lowering, plan, addresses, host)
    return AllocatingProgram(lowering, plan, addresses, host, allocator)

