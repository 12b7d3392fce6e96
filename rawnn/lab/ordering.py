"""Proves the order of a user's graph by the simulated device's happens-before check, from the
declared or derived accesses of nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rawnn.lab.nodes import Node, Span, every
from rawnn.sim.graphs import Executable, GraphData
from rawnn.sim.graphs import Node as Simulated
from rawnn.sim.order import Task
from rawnn.sim.simulation import Simulation

if TYPE_CHECKING:
    from rawnn.lab.graph import Graph

ROUNDS = 2
"""Iterations of a loop's body: the second follows the first."""


def prove(graph: Graph) -> None:
    """Raises rawnn.sim.Race for two unordered nodes."""
    simulation = Simulation()
    spans = [s for node in every(graph.nodes) for s in (*node.reads, *node.writes)]
    where = _placed(simulation, spans)
    data = _graph(graph, graph.nodes, simulation, where)
    defaults = {node.condition: 0 for node in every(graph.nodes) if node.condition}
    simulation.launcher.launch(Executable(data, defaults=defaults), "the graph", "here", ())
    simulation.scheduler.run_all()


def _placed(simulation: Simulation, spans: Sequence[Span]) -> Callable[[Span], int]:
    """The addresses of spans in simulated memory: overlapping ones share an allocation."""
    blocks: list[list[int]] = []
    for span in sorted(spans, key=lambda s: s.address):
        end = span.address + span.nbytes
        if blocks and span.address < blocks[-1][1]:
            blocks[-1][1] = max(blocks[-1][1], end)
        else:
            blocks.append([span.address, end])
    bases = []
    for first, end in blocks:
        base = simulation.memory.allocate(end - first, f"the array at {first:#x}")
        region = simulation.memory.region(base, end - first, end - first, 1, "the array")
        simulation.memory.mark_written(region)
        bases.append((first, end, base))

    def place(span: Span) -> int:
        first, _, base = next(b for b in bases if b[0] <= span.address < b[1])
        return base + span.address - first

    return place


def _graph(graph: Graph, nodes: Sequence[Node], simulation: Simulation,
           where: Callable[[Span], int], is_body: bool = False) -> GraphData:
    data = GraphData(simulation.new_handle(), is_body=is_body)
    for node, edges in zip(nodes, graph.edges(nodes), strict=True):
        data.nodes.append(Simulated(
            node.kind if node.kind in ("if", "while") else "kernel", node.label, edges.full,
            effect=_effect(node, simulation, where, is_body),
            child=_graph(graph, node.body, simulation, where, True) if node.body else None,
            handle=node.condition, programmatic=edges.programmatic, waits=node.proof.waits,
            triggers=node.proof.triggers))
    return data


def _effect(node: Node, simulation: Simulation, where: Callable[[Span], int],
            is_body: bool) -> Callable[[Task], None]:
    rounds = 0

    def touch(task: Task) -> None:
        nonlocal rounds
        memory = simulation.memory
        for spans, access in ((node.reads, memory.read), (node.writes, memory.write)):
            for span in spans:
                if span.nbytes:
                    access(task, memory.region(where(span), span.nbytes, span.nbytes, 1,
                                               f"'{span.name}' of {task}"), span.name)
        if node.kind == "condition":
            rounds += 1
            last = is_body and rounds >= ROUNDS
            simulation.launcher.set(node.condition, 0 if last else 1)

    return touch
