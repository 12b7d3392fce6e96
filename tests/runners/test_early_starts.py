"""Every case in which a kernel may begin before the one ahead of it has ended, of three in a row:
the first writes w, the second writes x, and the third may read either ahead of its wait."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rawnn.cuda.compiling.launch_proof import Proof
from rawnn.graphs.early_starts import may_start_early_on_stream, programmatic_edges
from rawnn.plan.op import AFTER
from rawnn.plan.tensor import Role


def op(name: str, written: str, **attributes: Any) -> Any:
    return SimpleNamespace(own_name=name, attributes=attributes, writes=[(written, "")],
                           operands={"w": "w", "x": "x", "out": written})


@pytest.mark.parametrize("behind", [None, "second", "another"])
@pytest.mark.parametrize("early", [(), ("w",), ("x",)])
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("begins_early", [True, False])
@pytest.mark.parametrize("waits", [True, False])
def test_a_kernel_begins_early_where_nothing_it_reads_may_still_be_written(
        waits: bool, begins_early: bool, ordered: bool, early: tuple[str, ...],
        behind: str | None) -> None:
    attributes = {} if behind is None else {AFTER: behind}
    ops = [op("first", "w"), op("second", "x"), op("third", "y", **attributes)]
    second = Proof(waits=begins_early, triggers=True, ordered=ordered)
    third = Proof(waits=waits, early=early)
    edges = [(), (0,), (1,)]
    found = programmatic_edges(ops, edges, [Proof(waits=True), second, third])
    assert found[:2] == [(), (0,) if begins_early else ()]
    # The second writes x itself; where it is begun early, and triggers at once, w is still written.
    unsafe = early == ("x",) or (bool(early) and begins_early and not ordered)
    assert found[2] == ((1,) if waits and not unsafe and behind != "second" else ())


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_copy_or_a_call_of_a_library_has_full_edges(place: int) -> None:
    proofs: list[Proof | None] = [Proof(waits=True)] * 3
    proofs[place] = None
    ops = [op("first", "w"), op("second", "x"), op("third", "y")]
    found = programmatic_edges(ops, [(), (0,), (1,)], proofs)
    assert found == [(), (0,) if place == 2 else (), (1,) if place == 0 else ()]


@pytest.mark.parametrize("early", [(), ("data",), ("cursor",), ("data", "cursor"), ("weights",),
                                   ("data", "weights"), ("absent",)])
@pytest.mark.parametrize("moved", [(), ("data",), ("cursor",), ("weights",)])
@pytest.mark.parametrize("waits", [True, False])
def test_on_a_stream_only_what_no_kernel_writes_may_be_read_early(
        early: tuple[str, ...], moved: tuple[str, ...], waits: bool) -> None:
    roles = {"data": Role.DATA, "cursor": Role.CURSOR, "weights": Role.PARAMETER}
    kernel = SimpleNamespace(operands={name: name for name in roles}, writes=[("out", "")])
    other = SimpleNamespace(operands={}, writes=[(name, "") for name in moved])

    class Plan:
        ops = (kernel, other)

        def __getitem__(self, name: str) -> Any:
            return SimpleNamespace(role=roles[name])

    may_start: Any = may_start_early_on_stream
    assert may_start(kernel, Plan(), Proof(waits=waits, early=early)) == (
        waits and "weights" not in early and not {*early} & {*moved})
