"""A plan as executable CUDA graphs: its ops become nodes, with the edges that reads and writes
require."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Protocol

from numpy.typing import NDArray

from rawnn.cuda.device import Device
from rawnn.cuda.launch import Command, KernelLaunch
from rawnn.graphs.early_starts import Prover, early_edges
from rawnn.graphs.graph import ExecutableGraph, Graph
from rawnn.graphs.unrolling import GraphPlan
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan

Addresses = Mapping[str, int]
HostArrays = Mapping[str, NDArray[Any]]


class Lowers(Prover, Protocol):
    """Lowers an op to commands (rawnn.engine.runners.lowering)."""

    device: Device

    def commands(self, op: Op, plan: Plan, addresses: Addresses,
                 host: HostArrays) -> list[Command]: ...

class GraphProgram:
    """An epoch as launches of executable graphs, with the cursor in device memory. If the graphs
    move the cursor, it is reset before them; otherwise it stays at the first step."""

    def __init__(self, lowering: Lowers, graphs: list[GraphPlan], addresses: Addresses,
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
                ahead = [c for op in part.host_ops
                         for c in lowering.commands(op, part.plan, addresses, host)]
                self._launches.append((executable, ahead, part.launches))
        except BaseException:
            self._closing.close()
            raise

    def _build(self, lowering: Lowers, part: GraphPlan, addresses: Addresses,
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
                for command in ahead:  # only if one graph is launched for every step
                    command.run(step)
                executable.launch(stream)

    def close(self) -> None:
        self._launches = []
        self._closing.close()


class RepeatProgram:
    """A one-step graph repeated as child nodes; it evaluates the test set in runs with graphs."""

    def __init__(self, lowering: Lowers, plan: Plan, steps: int, addresses: Addresses,
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


def fill(graph: Graph, lowering: Lowers, part: GraphPlan, addresses: Addresses,
         host: HostArrays, condition: int) -> None:
    """Add the ops of a plan to a graph, with the edges that their reads and writes require.

    In an unrolled plan the same op recurs at many offsets; its command is made once and added
    with each offset baked in (the 936 nodes of `best` in 30 ms). Edges are programmatic where
    allowed.
    """
    made: dict[tuple[str, ...], list[Command]] = {}
    for op in part.plan.ops:
        if op.recurrence not in made:
            made[op.recurrence] = lowering.commands(_with_condition(op, condition), part.plan,
                                                    addresses, host)
    edges = part.edges()
    early = early_edges(part.plan, edges, lowering)
    tails: list[list[object]] = []
    for index, op in enumerate(part.plan.ops):
        after = [node for i in edges[index] if i not in early[index] for node in tails[i]]
        programmatic_after = [node for i in early[index] for node in tails[i]]
        commands = made[op.recurrence]
        tail: list[object] = []
        if programmatic_after:
            kernel, = commands
            assert isinstance(kernel, KernelLaunch)
            tail = kernel.add_to(graph, after, op.offset, programmatic_after)
        elif op.kind == "upload":  # its copies are independent of each other
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
