"""Nodes of a user's graph: their accesses, and their dependencies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from rawnn.common.errors import ConfigError, check_type
from rawnn.cuda.compiling.launch_proof import Proof
from rawnn.cuda.device import Device
from rawnn.graphs.graph import Graph as DriverGraph
from rawnn.lab.array_exchange import imported
from rawnn.lab.arrays import Array
from rawnn.lab.kernel import Launcher


@dataclass(frozen=True)
class Span:
    """Bytes of device memory that a node accesses, under the node's name for them."""

    name: str
    address: int
    nbytes: int

    def overlaps(self, other: Span) -> bool:
        return self.address < other.address + other.nbytes \
            and other.address < self.address + self.nbytes


Add = Callable[[DriverGraph, Sequence[Any], Sequence[Any], dict[int, int]], Any]


@dataclass(eq=False)
class Node:
    """One node of a graph. `reads` and `writes` follow from its arguments, unless `touches`
    declares them; `after` adds edges."""

    kind: str
    label: str
    reads: tuple[Span, ...]
    writes: tuple[Span, ...]
    add: Add
    keep: object = None
    body: list[Node] = field(default_factory=list)
    proof: Proof = field(default_factory=Proof)
    programmatic: bool = False
    early: tuple[Span, ...] = ()
    condition: int = 0
    launcher: Launcher | None = None
    streams: tuple[int, ...] = ()
    behind: list[Node] = field(default_factory=list)
    is_explicit: bool = False

    def after(self, *nodes: Node) -> Node:
        """Also wait for these nodes."""
        self.behind += nodes
        return self

    def touches(self, reads: Sequence[Any] = (), writes: Sequence[Any] = ()) -> Node:
        """Declare the arrays that it reads and writes: for a non-const pointer that is only read,
        or for an array behind a pointer in a struct."""
        for name, arrays in (("reads", reads), ("writes", writes)):
            check_type(name, arrays, (list, tuple), "a list of arrays")
        self.reads = tuple(span_of(f"array {n + 1}", a) for n, a in enumerate(reads))
        self.writes = tuple(span_of(f"array {n + 1}", a) for n, a in enumerate(writes))
        self.is_explicit = True
        return self

    @property
    def all_reads(self) -> tuple[Span, ...]:
        return (*self.reads, *(s for node in self.body for s in node.all_reads))

    @property
    def all_writes(self) -> tuple[Span, ...]:
        return (*self.writes, *(s for node in self.body for s in node.all_writes))

    def why(self, before: Node) -> str:
        """Why it has to wait for a node; "" if no common access requires it."""
        def shared(these: Sequence[Span], those: Sequence[Span]) -> list[str]:
            return list(dict.fromkeys(a.name for a in these for b in those if a.overlaps(b)))

        wrote = shared(before.all_writes, (*self.all_reads, *self.all_writes))
        read = [n for n in shared(before.all_reads, self.all_writes) if n not in wrote]
        return "; ".join(f"{what} {', '.join(names)}" for what, names in
                         (("wrote", wrote), ("read", read)) if names)

    def __str__(self) -> str:
        return self.label


@dataclass(frozen=True)
class Edges:
    """The nodes that a node waits for, by index: for their ends, and, if the kernel begins early
    and waits by itself, for their triggers."""

    full: tuple[int, ...]
    programmatic: tuple[int, ...]


def edges_of(nodes: Sequence[Node], derive: bool) -> list[Edges]:
    """For each node the indices of those that it waits for, without implied edges: the explicit
    ones, and with `derive` those from accesses to the same bytes. Raises ConfigError for one that
    would wait for a later node."""
    places = {id(node): index for index, node in enumerate(nodes)}
    below: list[int] = []
    found: list[Edges] = []
    for index, node in enumerate(nodes):
        wanted = set[int]()
        for other in node.behind:
            if places.get(id(other), index) >= index:
                raise ConfigError(f"{node} is to wait for {other}, which is not ahead of it in the "
                                  f"same block")
            wanted.add(places[id(other)])
        if derive:
            wanted |= {i for i in range(index) if node.why(nodes[i])}
        direct, covered = [], 0
        for i in sorted(wanted, reverse=True):
            if not covered >> i & 1:
                direct.append(i)
                covered |= below[i]
        below.append(covered | 1 << index)
        early = tuple(i for i in sorted(direct)
                      if node.programmatic and _may_start_before(node, nodes[i], found[i]))
        found.append(Edges(tuple(i for i in sorted(direct) if i not in early), early))
    return found


def _may_start_before(node: Node, before: Node, edges: Edges) -> bool:
    """Whether a kernel that waits by itself may begin before the node ahead has ended: as
    rawnn.graphs.early_starts decides for the engine."""
    if before.kind != "kernel":
        return False
    return not node.early or (
        before.proof.allows_early_reads(bool(edges.programmatic))
        and not any(a.overlaps(b) for a in node.early for b in before.writes))


def every(nodes: Sequence[Node]) -> Iterator[Node]:
    """All nodes, each followed by those of its body."""
    for node in nodes:
        yield node
        yield from every(node.body)


def span_of(name: str, array: Any, device: Device | None = None) -> Span:
    """The bytes of an array; one of another library needs the `device`."""
    if isinstance(array, Array):
        return Span(name, array.address, array.nbytes)
    if isinstance(array, np.ndarray):
        return Span(name, array.ctypes.data, array.nbytes)
    if device is None:
        raise ConfigError(f"'{name}' is no array")
    found = imported(array, name, device, False)
    return Span(name, found.address, prod(found.shape) * found.dtype.itemsize)
