"""The simulated driver's graphs, and their expansion into tasks at a launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rawnn.sim.errors import Refused, SimulationError
from rawnn.sim.order import Scheduler, Task

MOST_ITERATIONS = 1_000_000
Effect = Callable[[Task], None]


@dataclass(eq=False)
class Node:
    """One node: `effect` for work, `child` for a child graph, `child` and `handle` for a
    conditional node ("if" or "while").

    dependencies: indices of earlier nodes in the same graph.
    programmatic: those kernel nodes to which it has programmatic edges; `waits` and `triggers` say
        what the kernels do about them.
    fixed: what an update may not change.
    kernel, geometry, cluster, cooperative: for a kernel node.
    check_cluster: raises if the cluster is not the one that the work needs.
    """

    kind: str
    label: str
    dependencies: tuple[int, ...]
    effect: Effect | None = None
    child: GraphData | None = None
    handle: int = 0
    host_memory: bool = False
    fixed: object = None
    programmatic: tuple[int, ...] = ()
    waits: bool = False
    triggers: bool = False
    kernel: Any = None
    geometry: Any = None
    cluster: tuple[int, int, int] | None = None
    check_cluster: Callable[[tuple[int, int, int] | None], None] = lambda cluster: None
    cooperative: bool = False

    @property
    def conditional(self) -> bool:
        return self.kind in ("if", "while")


@dataclass(eq=False)
class GraphData:
    """Nodes in the order in which they were added, which is topological. `number` is the handle by
    which messages name the graph; `conditionals` maps each conditional handle created on this graph
    to its default value."""

    number: int
    nodes: list[Node] = field(default_factory=list)
    conditionals: dict[int, int] = field(default_factory=dict)
    is_body: bool = False
    handles: list[int] = field(default_factory=list)
    """Handle of each node; a clone's nodes have none."""

    def clone(self) -> GraphData:
        nodes = [replace(n, child=n.child.clone() if n.child else None) for n in self.nodes]
        return GraphData(self.number, nodes, dict(self.conditionals), self.is_body)

    def same_topology(self, other: GraphData) -> bool:
        """Whether an executable graph of this one can be updated with `other`: the same kinds of
        nodes in the same order with the same edges, with changes only to what kernels, copies and
        fills work on. A conditional node's handle is one of its parameters, and may not change."""
        return len(self.nodes) == len(other.nodes) and all(
            (a.kind, a.dependencies, a.programmatic, a.fixed, a.handle)
            == (b.kind, b.dependencies, b.programmatic, b.fixed, b.handle)
            and (a.child is None or b.child is None or a.child.same_topology(b.child))
            for a, b in zip(self.nodes, other.nodes, strict=True)
        )

    @property
    def has_conditionals(self) -> bool:
        return any(n.conditional or (n.child and n.child.has_conditionals)
                   for n in self.nodes)

    def all_conditionals(self) -> dict[int, int]:
        """Defaults of the conditional handles of this graph and of all graphs in it."""
        found = dict(self.conditionals)
        for node in self.nodes:
            if node.child:
                found.update(node.child.all_conditionals())
        return found

    def node_handles(self) -> list[int]:
        """Handles of all conditional nodes, in this graph and in all graphs in it."""
        found = [n.handle for n in self.nodes if n.conditional]
        for node in self.nodes:
            if node.child:
                found += node.child.node_handles()
        return found

    def check_instantiable(self) -> None:
        """Refuse what cuGraphInstantiate refuses: a conditional handle without a node, and in the
        body of one a copy from or to pageable host memory. Raises SimulationError for a kernel in
        clusters of another size than its work needs."""
        if sorted(self.all_conditionals()) != sorted(self.node_handles()):
            raise Refused("CUDA_ERROR_INVALID_VALUE")
        self._check_bodies(False)

    def _check_bodies(self, inside: bool) -> None:
        for node in self.nodes:
            node.check_cluster(node.cluster)
            if inside and node.host_memory:
                raise Refused("CUDA_ERROR_NOT_SUPPORTED")
            if node.child:
                node.child._check_bodies(inside or node.conditional)

    def reachable(self, tails: Sequence[int]) -> set[int]:
        """Indices of `tails` and of all nodes that they wait for."""
        found: set[int] = set()
        todo = list(tails)
        while todo:
            index = todo.pop()
            if index not in found:
                found.add(index)
                todo += self.nodes[index].dependencies
                todo += self.nodes[index].programmatic
        return found


@dataclass(eq=False)
class Executable:
    """An instantiated graph. `last` is the end of its latest launch, for which the next one waits;
    `launches` counts them."""

    graph: GraphData
    last: Task | None = None
    launches: int = 0
    defaults: dict[int, int] = field(default_factory=dict)


class Launcher:
    """Turns launches into tasks. `values` are the conditional handles' values, which kernels set
    while a graph runs."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.values: dict[int, int] = {}

    def launch(self, executable: Executable, label: str, where: str,
               predecessors: Sequence[Task]) -> Task:
        """Add the launch; returns the task that is done when all of the graph is."""
        executable.launches += 1
        name = f"launch {executable.launches}"
        graph, defaults = executable.graph, executable.defaults  # updates affect later launches

        def start(task: Task) -> None:
            self.values.update(defaults)
            self._expand(graph, task, end, name)

        end = Task(f"end of {label}", where, None, counted=False)
        begin = Task(label, where, start, counted=False)
        after = [*predecessors, executable.last] if executable.last else predecessors
        self._scheduler.add(begin, after)
        self._scheduler.add(end, (), held=True)
        executable.last = end
        return end

    def _expand(self, graph: GraphData, begin: Task, end: Task, launch: str) -> None:
        """Add the tasks of a graph after `begin`, and release `end` after them."""
        scheduler = self._scheduler
        tails: list[Task] = []
        inner: set[int] = set()
        producers = {p for node in graph.nodes for p in node.programmatic}
        openings: dict[int, Task] = {}
        for index, node in enumerate(graph.nodes):
            where = f"node {index} of graph {graph.number:#x}, {launch}"
            before = [tails[d] for d in node.dependencies] or [begin]
            inner.update(node.dependencies)
            if node.programmatic or index in producers:
                if node.programmatic and not node.dependencies:
                    before = []
                openings[index], before = self._programmatic(node, tails, openings, before, where)
            if node.child is None:
                tails.append(scheduler.add(Task(node.label, where, node.effect), before))
            else:
                after = Task(f"end of {node.label}", where, None, counted=False)
                scheduler.add(after, (), held=True)
                if node.kind == "while":
                    run = self._loop(node, after, where)
                elif node.kind == "if":
                    run = self._if(node, after, where)
                else:
                    run = self._once(node.child, after, launch)
                scheduler.add(Task(node.label, where, run, counted=False), before)
                tails.append(after)
            if node.programmatic and not node.waits:
                for producer in node.programmatic:
                    tails[index].unwaited += (tails[producer],)
                    tails[producer].unwaited += (tails[index],)
        for index, tail in enumerate(tails):
            if index not in inner:
                scheduler.link(tail, end)
        scheduler.release(end, begin)

    def _programmatic(self, node: Node, tails: Sequence[Task], openings: dict[int, Task],
                      before: Sequence[Task], where: str) -> tuple[Task, list[Task]]:
        """Tasks of a kernel at either end of a programmatic edge: what its consumers start after,
        and what its own accesses come after.

        It starts after its full edges and after the task that opens each programmatic edge. If it
        waits, its accesses are then ordered after the producers' ends; otherwise they are not. It
        opens its own edges right after its start if it triggers, else at its end, which comes after
        its wait. In either case a consumer is ordered after its writes only once it waits.
        """
        add = self._scheduler.add
        begun = add(Task(f"start of {node.label}", where, None, counted=False),
                    [*before, *(openings[p] for p in node.programmatic)])
        if not (node.programmatic and node.waits):
            return begun, [begun]
        waited = add(Task(f"wait of {node.label}", where, None, counted=False),
                     [begun, *(tails[p] for p in node.programmatic)])
        return begun if node.triggers else waited, [waited]

    def _if(self, node: Node, end: Task, where: str) -> Effect:
        body, handle = node.child, node.handle
        assert body is not None

        def decide(task: Task) -> None:
            if self.values[handle]:
                self._expand(body, task, end, f"body of {node.label}, {where}")
            else:
                self._scheduler.release(end, task)

        return decide

    def _once(self, graph: GraphData, end: Task, launch: str) -> Effect:
        return lambda task: self._expand(graph, task, end, launch)

    def _loop(self, node: Node, end: Task, where: str) -> Effect:
        body, handle, rounds = node.child, node.handle, 0
        assert body is not None

        def decide(task: Task) -> None:
            nonlocal rounds
            if not self.values[handle]:
                self._scheduler.release(end, task)
                return
            rounds += 1
            if rounds > MOST_ITERATIONS:
                raise SimulationError(
                    f"{node.label} ({where}) has gone round {MOST_ITERATIONS:,} times: nothing "
                    f"sets its conditional handle to 0"
                )
            again = Task(node.label, where, decide, counted=False)
            self._scheduler.add(again, (), held=True)
            self._expand(body, task, again, f"round {rounds} of {node.label}")

        return decide

    def set(self, handle: int, value: int) -> None:
        """cudaGraphSetConditional. Raises SimulationError for a handle of no running graph."""
        if handle not in self.values:
            raise SimulationError(f"a kernel sets the conditional handle {handle:#x}, which no "
                                  f"launched graph has")
        self.values[handle] = value


def dependency_indices(owner: dict[Any, tuple[GraphData, int]], graph: GraphData,
                       dependencies: Sequence[Any]) -> tuple[int, ...]:
    """Node handles as indices; refuses nodes of another graph, and duplicates."""
    found = []
    for node in dependencies:
        at = owner.get(node)
        if at is None or at[0] is not graph:
            raise Refused("CUDA_ERROR_INVALID_VALUE")
        found.append(at[1])
    if len(set(found)) != len(found):
        raise Refused("CUDA_ERROR_INVALID_VALUE")
    return tuple(found)
