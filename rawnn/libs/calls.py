"""Library calls as commands: they run on a stream, or are captured into a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rawnn.cuda.stream import Stream
from rawnn.libs.matmul import MatmulPlan
from rawnn.libs.softmax import SoftmaxPlan


class LibraryCall:
    """One prepared product or softmax with the addresses of its operands, in the order in which
    the plan's `run` takes them."""

    def __init__(self, plan: MatmulPlan | SoftmaxPlan, stream: Stream, label: str,
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
