"""Library calls as commands: they run on a stream, or are captured into a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rawnn.cuda.stream import Stream


class Prepared(Protocol):
    """A prepared GEMM, softmax or collective: `run` takes a stream, then addresses."""

    @property
    def run(self) -> Callable[..., None]: ...


class LibraryCall:
    """One prepared call with the addresses of its operands, in the order of the plan's `run`."""

    def __init__(self, plan: Prepared, stream: Stream, label: str,
                 operands: dict[str, int]) -> None:
        self._run = plan.run
        self._stream = stream
        self._handle = int(stream.handle)
        self.label = label
        self._index = {name: i for i, name in enumerate(operands)}
        self._addresses = list(operands.values())

    def run(self, offset: int) -> None:
        self._run(self._handle, *self._addresses)

    def add_to(self, graph: Any, dependencies: Sequence[Any], offset: int) -> list[Any]:
        nodes: list[Any] = graph.capture(dependencies, self._stream, lambda: self.run(offset),
                                         self.label)
        return nodes

    def rebind(self, operand: str, address: int) -> None:
        if operand in self._index:
            self._addresses[self._index[operand]] = address


class CollectiveCall(LibraryCall):
    """A call of NCCL that all ranks make together. In a graph it has the priority of the stream
    `urgent`: otherwise the blocks of a large GEMM would leave it no multiprocessor until the last
    of them has begun."""

    def __init__(self, plan: Prepared, stream: Stream, label: str, operands: dict[str, int],
                 urgent: Stream) -> None:
        super().__init__(plan, stream, label, operands)
        self._urgent = urgent

    def add_to(self, graph: Any, dependencies: Sequence[Any], offset: int) -> list[Any]:
        urgent = int(self._urgent.handle)
        nodes: list[Any] = graph.capture_as_child(
            dependencies, self._urgent, lambda: self._run(urgent, *self._addresses), self.label)
        return nodes
