"""Library calls as commands: addresses in the plan's order, and the stream that each way takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rawnn.cuda.libs.calls import CollectiveCall, LibraryCall

OWN, URGENT = SimpleNamespace(handle=7), SimpleNamespace(handle=9)


class Graph:
    """Runs what is captured at once, and says how it was."""

    def __init__(self) -> None:
        self.captured: list[Any] = []

    def capture(self, after: Any, stream: Any, enqueue: Any, label: str) -> list[str]:
        enqueue()
        self.captured.append(("nodes", after, stream, label))
        return ["a node"]

    def capture_as_child(self, after: Any, stream: Any, enqueue: Any, label: str) -> list[str]:
        enqueue()
        self.captured.append(("a child", after, stream, label))
        return ["a child"]


@pytest.mark.parametrize(("urgent", "stream", "kind"), [(False, OWN, "nodes"),
                                                        (True, URGENT, "a child")])
def test_a_call_has_its_operands_in_order_on_a_stream_and_in_a_graph(
        urgent: bool, stream: Any, kind: str) -> None:
    ran: list[tuple[int, ...]] = []
    plan: Any = SimpleNamespace(run=lambda *arguments: ran.append(arguments))
    operands = {"a": 1, "b": 2, "c": 3}
    own: Any = OWN
    call = CollectiveCall(plan, own, "a call", operands, stream) if urgent else \
        LibraryCall(plan, own, "a call", operands)
    call.run(5)
    for operand, address in (("b", 20), ("none", 0), ("c", 30)):
        call.rebind(operand, address)
    call.run(6)
    graph = Graph()
    assert call.add_to(graph, ("x",), 5) == ["a child" if urgent else "a node"]
    assert graph.captured == [(kind, ("x",), stream, "a call")]
    assert ran == [(7, 1, 2, 3), (7, 1, 20, 30), (stream.handle, 1, 20, 30)]
