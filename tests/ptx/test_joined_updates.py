"""The updates of several layers in one launch: each weight comes out as by a launch of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rawnn.ptx.kernels import kernel_for
from rawnn.ptx.tiles import Product, blocks
from rawnn.step.ops.updates import MOST_LAYERS
from rawnn.step.plan import Plan
from rawnn.step.tensor import Role
from tests.ptx.twin.cases import ADAM, MOMENTUM, taken_early
from tests.ptx.twin.plans import Case, Memory, build, check
from tests.ptx.twin.twin import compiler

KIND = "weight_updates"
CASES: dict[str, Case] = {
    "bf16 with Adam": Case((33, 41, 24, 37), 50, "preload,bf16,mma=sync,fuse", choice=1,
                           options=ADAM),
    "bf16 in clusters, momentum": Case((33, 70, 24), 200, "preload,bf16,mma=sync,fuse", choice=11,
                                       options=MOMENTUM),
    "bf16 by chance": Case((33, 41, 24), 50, "preload,bf16,sr,mma=sync,fuse", choice=1),
    "fp16": Case((33, 41, 24), 50, "preload,fp16,mma=sync,fuse", choice=1),
    "three tf32, no biases": Case((37, 50, 34), 60, "preload,mma=sync,fuse", choice=12,
                                  network={"bias": False}),
    "wgmma": Case((72, 136, 9), 150, "preload,bf16,mma,fuse", choice=6, options=ADAM),
    "scaled float16": Case((72, 136, 9), 150, "preload,mma,fuse", choice=3),
}


def by(case: Case, name: str, fuse: str) -> tuple[Plan, Memory]:
    """The plan and what is in memory behind it, with the updates' kernels on the twin."""
    with taken_early(name):
        plan = replace(case, opt=case.opt.replace("fuse", fuse), steps=1).plan()
    names = tuple(kernel_for(op).name for op in plan.ops if op.kind.startswith("weight_"))
    memory = Memory(plan, 5)
    assert check(build([plan], names), memory, 3, names)
    return plan, memory


@pytest.mark.skipif(compiler() is None, reason="no g++ on PATH")
@pytest.mark.parametrize("name", CASES)
def test_weights_are_those_of_a_launch_for_each_layer_in_the_same_tile(
        name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rawnn.ptx.joined_updates.worth", lambda *given: True)
    plan, found = by(CASES[name], name, "fuse")
    apart, wanted = by(CASES[name], name, "fuse=-updates")
    (op,) = plan.find(kind=KIND)
    assert not apart.find(kind=KIND)
    kept = [t.name for t in plan.tensors.values()
            if t.role in (Role.PARAMETER, Role.COPY, Role.STATE) and t.name in op.operands.values()]
    assert len(kept) >= 2
    for tensor in kept:
        assert found.view(tensor).tobytes() == wanted.view(tensor).tobytes(), tensor


def test_more_layers_than_an_op_has_are_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rawnn.ptx.joined_updates.worth", lambda *given: True)
    layers = tuple(range(20, 20 + MOST_LAYERS + 2))
    plan = Case(layers, 33, "preload,bf16,mma=sync,fuse", steps=1).plan()
    counts = [sum(role.startswith("w") for role in op.operands) for op in plan.find(kind=KIND)]
    assert sorted(counts) == [4, 5]


@pytest.mark.parametrize("given", [{"bm": 16, "bn": 32}, {"bm": 64, "bn": 64}])
def test_tiles_of_a_product_are_those_of_all_results(given: dict[str, Any]) -> None:
    single = [Product("tn", m, n, 100, 2) for m, n in ((33, 70), (64, 64), (1, 1))]
    both = replace(single[0], others=tuple((p.m, p.n) for p in single[1:]))
    assert blocks(both, **given) == sum(blocks(p, **given) for p in single)
