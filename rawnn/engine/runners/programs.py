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
    """Runs steps of the epoch. Only enqueues work."""

    def run(self, steps: int) -> None: ...

    def close(self) -> None: ...


class StreamProgram:
    """Launches commands one by one, in the plan's order; every tensor has an address."""

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
        """One step, including ops that are deferred over several steps."""
        for command in self._commands:
            command.run(index)
        for command in self._deferred_of(1):
            command.run(index)

    def run(self, steps: int) -> None:
        """The first `steps` steps of the epoch, then the ops deferred over all of them."""
        for index in range(steps):
            for command in self._commands:
                command.run(index)
        for command in self._deferred_of(steps) if steps else ():
            command.run(0)

    def _deferred_of(self, steps: int) -> list[Command]:
        """The commands of ops that are deferred over `steps` steps."""
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
    """A WholeProgram whose op includes the epoch boundary. `next_epoch` returns the number of the
    coming epoch, from 0."""

    def __init__(self, lowering: Lowering, plan: Plan, addresses: Addresses, host: HostArrays,
                 next_epoch: Callable[[], int]) -> None:
        super().__init__(lowering, plan, addresses, host)
        self._next_epoch = next_epoch

    def run(self, steps: int) -> None:
        self.step(self._next_epoch())


class AllocatingProgram(StreamProgram):
    """A StreamProgram that, in every step, allocates temporaries without an address before the op
    that first writes them, and frees them after the op that last uses them. It is the baseline:
    `arena` and a pool avoid this cost."""

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
                if self._last.get(tensor) != allocation.address:  # a pool returns the same address
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
        """Free the allocations of a step that failed."""
        with ExitStack() as freeing:
            for allocation in self._live.values():
                freeing.callback(self._allocator.free, allocation)
            self._live = {}


def _lifetimes(plan: Plan) -> tuple[dict[str, int], dict[str, int]]:
    """Index of the first and of the last op that uses each tensor."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for index, op in enumerate(plan.ops):
        for tensor in op.tensors:
            first.setdefault(tensor, index)
            last[tensor] = index
    return first, last


def make_program(lowering: Lowering, plan: Plan, addresses: Addresses, host: HostArrays,
                 allocator: Allocator | None) -> StreamProgram:
    """A program on the device's stream. `allocator` places temporaries at each use; it is None if
    all of them have an address."""
    if allocator is None:
        return StreamProgram(lowering, plan, addresses, host)
    return AllocatingProgram(lowering, plan, addresses, host, allocator)

