"""Programs: a plan bound to memory, able to run an epoch. One class per way of running."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Protocol

from rawnn.cuda.allocators import Allocator
from rawnn.cuda.compiling.programmatic import Proof
from rawnn.cuda.launch import Command, KernelLaunch
from rawnn.cuda.memory import Allocation
from rawnn.engine.runners.lowering import Addresses, HostArrays, Lowering
from rawnn.graphs import ExecutableGraph, Graph
from rawnn.graphs.programmatic import programmatic_edges
from rawnn.graphs.unrolling import GraphPlan
from rawnn.plan.joining import DEFERRED
from rawnn.plan.op import Op
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


class TurningProgram(WholeProgram):
    """The same whose op also does what stands between two epochs. `coming` says which epoch comes,
    counted from 0."""

    def __init__(self, lowering: Lowering, plan: Plan, addresses: Addresses, host: HostArrays,
                 coming: Callable[[], int]) -> None:
        super().__init__(lowering, plan, addresses, host)
        self._coming = coming

    def run(self, steps: int) -> None:
        self.step(self._coming())


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


class GraphProgram:
    """An epoch as launches of executable graphs, with the cursor in device memory. `moves` says
    that they move it: then it is set back ahead of them, and otherwise stands at the first step."""

    def __init__(self, lowering: Lowering, graphs: list[GraphPlan], addresses: Addresses,
                 host: HostArrays, label: str) -> None:
        self._device = lowering.device
        self._cursor = addresses["cursor"]
        self._closing = ExitStack()
        self._launches: list[tuple[ExecutableGraph, list[Command], int]] = []
        self.moves = any(name == "cursor" for part in graphs for op in part.plan.ops
                         for name, _ in op.writes)
        self.nodes = self.edges = 0
        try:
            for part in graphs:
                executable = self._build(lowering, part, addresses, host, label)
                ahead = [c for op in part.ahead
                         for c in lowering.commands(op, part.plan, addresses, host)]
                self._launches.append((executable, ahead, part.launches))
        except BaseException:
            self._closing.close()
            raise

    def _build(self, lowering: Lowering, part: GraphPlan, addresses: Addresses,
               host: HostArrays, label: str) -> ExecutableGraph:
        device = self._device
        graph = Graph(device.driver, device.context, label)
        with ExitStack() as building:
            building.callback(graph.close)
            target, condition = graph, 0
            if part.loop:
                condition = graph.conditional()
                _, target = graph.add_while((), condition, f"{label}, loop")
            fill(target, lowering, part, addresses, host, condition)
            nodes, edges = target.size()
            self.nodes, self.edges = self.nodes + nodes, self.edges + edges
            executable = graph.instantiate(label)
            self._closing.callback(executable.close)
        executable.upload(device.stream)
        return executable

    def run(self, steps: int) -> None:
        device, stream = self._device, self._device.stream
        if self.moves:
            device.fill(self._cursor, 0, 4, "cursor")
        for executable, ahead, launches in self._launches:
            for step in range(launches):
                for command in ahead:  # only where one graph is launched for every step
                    command.run(step)
                executable.launch(stream)

    def close(self) -> None:
        self._launches = []
        self._closing.close()


class RepeatProgram:
    """A one-step graph repeated as child nodes: how the test set is measured beside a graph."""

    def __init__(self, lowering: Lowering, plan: Plan, steps: int, addresses: Addresses,
                 chain: bool) -> None:
        device = self._device = lowering.device
        with ExitStack() as closing, ExitStack() as building:
            body = Graph(device.driver, device.context, f"{plan.name}, one batch")
            building.callback(body.close)
            fill(body, lowering, GraphPlan(plan.advancing(), 1, chain=chain), addresses, {}, 0)
            graph = Graph(device.driver, device.context, plan.name)
            building.callback(graph.close)
            last = [graph.add_memset((), addresses["cursor"], 0, 4, "cursor")]
            for step in range(steps):
                last = [graph.add_child(last, body, f"{plan.name}, batch {step}")]
            self._executable = graph.instantiate(plan.name)
            closing.callback(self._executable.close)
            building.close()
            self._executable.upload(device.stream)
            self._closing = closing.pop_all()

    def run(self, steps: int) -> None:
        self._executable.launch(self._device.stream)

    def close(self) -> None:
        self._closing.close()


def fill(graph: Graph, lowering: Lowering, part: GraphPlan, addresses: Addresses,
         host: HostArrays, condition: int) -> None:
    """Add the ops of a plan to a graph, with the edges that their reads and writes require.

    In an unrolled plan the same op recurs at many offsets; its command is made once and added
    with each offset baked in (the 936 nodes of `best` in 30 ms). Edges that may be programmatic
    are.
    """
    made: dict[tuple[str, tuple[str, ...]], tuple[list[Command], Proof | None]] = {}
    keys = [(op.own_name, tuple(op.operands.values())) for op in part.plan.ops]
    for key, op in zip(keys, part.plan.ops, strict=True):
        if key not in made:
            wanted = _with_condition(op, condition)
            made[key] = (lowering.commands(wanted, part.plan, addresses, host),
                         lowering.proof(op, part.plan))
    edges = part.edges()
    early = programmatic_edges(part.plan.ops, edges, [made[key][1] for key in keys])
    tails: list[list[object]] = []
    for index, (op, key) in enumerate(zip(part.plan.ops, keys, strict=True)):
        after = [node for i in edges[index] if i not in early[index] for node in tails[i]]
        overtaken = [node for i in early[index] for node in tails[i]]
        commands, _ = made[key]
        tail: list[object] = []
        if overtaken:
            kernel, = commands
            assert isinstance(kernel, KernelLaunch)
            tail = kernel.add_to(graph, after, op.offset, overtaken)
        elif op.kind == "upload":  # its copies do not depend on each other
            for command in commands:
                tail += command.add_to(graph, after, op.offset)
        else:
            for command in commands:
                after = tail = command.add_to(graph, after, op.offset)
        tails.append(tail)


def _with_condition(op: Op, condition: int) -> Op:
    if "handle" not in op.attributes:
        return op
    attributes: Mapping[str, object] = {**op.attributes, "handle": condition}
    return Op(op.kind, op.name, op.operands, attributes, op.impl)


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

