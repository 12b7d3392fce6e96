"""Edges against a brute-force oracle, and execution in every order that the edges allow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rawnn.graphs.unrolling import graph_plans
from rawnn.model.layers import Network
from rawnn.opts import select
from rawnn.plan import OPS
from rawnn.plan.dependencies import dependencies, reason
from rawnn.plan.op import Op
from tests.engine import CAPABLE, random_dataset, step_plan
from tests.plan.execution import arrays_of, execute
from tests.plan.oracle import conflict, reduced_edges

TOGGLES = ("", "fuse", "cublas", "cublas,fuse", "cublas,cudnn,fuse")


@st.composite
def random_ops(draw: st.DrawFn) -> list[Op]:
    """Ops of real kinds whose operands are drawn from few tensors, so that conflicts abound."""
    names = [f"t{i}" for i in range(draw(st.integers(1, 5)))]
    ops = []
    for index in range(draw(st.integers(1, 14))):
        kind = draw(st.sampled_from(sorted(OPS)))
        spec = OPS[kind]
        roles = [r for r in dict.fromkeys((*spec.reads, *spec.writes))
                 if r not in spec.optional or draw(st.booleans())]
        attributes: dict[str, Any] = {"offset": draw(st.integers(0, 2)),
                                      "span": draw(st.integers(1, 4))}
        if kind == "matmul":
            attributes["beta"] = draw(st.sampled_from([0.0, 1.0]))
        operands = {role: draw(st.sampled_from(names)) for role in roles}
        ops.append(Op(kind, f"op{index}", operands, attributes))
    return ops


@settings(max_examples=300, deadline=None, derandomize=True)
@given(random_ops())
def test_edges_of_arbitrary_ops_equal_the_oracle(ops: list[Op]) -> None:
    assert dependencies(ops) == reduced_edges(ops)


def test_the_first_layers_outputs_need_not_wait_for_the_update_that_reads_them() -> None:
    network = Network((29, 18, 7))
    plan = select("none,preload,mma,fuse", network, 4, CAPABLE).apply(
        step_plan(network, 13, 52))[0].unrolled(4)
    names = [op.name for op in plan.ops]
    forward, edges = names.index("fc1.forward@2"), dependencies(plan.ops)
    assert {names[i] for i in edges[forward]} == {"gather@2", "fc1.weight.sgd@1"}
    assert {plan[op.operands["c"]].name for op in plan.find(kind="matmul")
            if op.own_name == "fc1.forward"} == {"a1", "a1'"}


def test_an_op_of_several_steps_is_tied_to_the_ops_of_those_steps() -> None:
    def accuracy(name: str, offset: int, span: int) -> Op:
        operands = {"p": "p", "y": "y", "cursor": "cursor", "correct": "correct"}
        return Op("accuracy", name, operands, {"offset": offset, "span": span})

    epoch = accuracy("epoch", 1, 3)
    assert epoch.writes == (("correct", range(1, 4)),)
    assert "writes correct[cursor+1 to cursor+3]" in str(epoch)
    assert epoch.at_step(4, {}).writes == (("correct", range(5, 8)),)
    ops = [accuracy("0", 0, 1), accuracy("3", 3, 1), epoch, accuracy("4", 4, 1),
           accuracy("2", 2, 1)]
    assert dependencies(ops) == [(), (), (1,), (), (2,)]


@pytest.mark.parametrize("layers", [(5, 3), (5, 4, 3), (6, 5, 4, 3)])
@pytest.mark.parametrize("mode", ["step", "1", "3", "epoch", "while"])
@pytest.mark.parametrize("toggles", TOGGLES)
def test_edges_of_every_graph_equal_the_oracle(toggles: str, mode: str,
                                               layers: tuple[int, ...]) -> None:
    network, steps = Network(layers), 4
    selection = select(f"none,preload,{toggles},streams,graphs={mode}", network, steps, CAPABLE)
    plan, policy = selection.apply(step_plan(network, 2, 2 * steps))
    for graph in graph_plans(plan, policy, steps):
        assert graph.edges() == reduced_edges(graph.plan.ops)
    for graph in graph_plans(plan.without_metrics(), policy, steps):
        assert graph.edges() == reduced_edges(graph.plan.ops)


@pytest.mark.parametrize("mode", ["step", "3", "epoch", "while"])
def test_without_streams_a_graph_is_one_chain(mode: str) -> None:
    selection = select(f"none,preload,graphs={mode}", Network((5, 4, 3)), 4, CAPABLE)
    plan, policy = selection.apply(step_plan(Network((5, 4, 3)), 2, 8))
    for graph in graph_plans(plan, policy, 4):
        edges = graph.edges()
        assert edges == [(), *((i,) for i in range(len(graph.plan.ops) - 1))]
        before = reduced_edges(graph.plan.ops)
        assert all(max(found) < index for index, found in enumerate(before) if found)


def any_order(edges: list[tuple[int, ...]], generator: np.random.Generator) -> list[int]:
    """A random topological order."""
    done: set[int] = set()
    order: list[int] = []
    while len(order) < len(edges):
        ready = [i for i, before in enumerate(edges) if i not in done and done.issuperset(before)]
        order.append(int(generator.choice(ready)))
        done.add(order[-1])
    return order


@settings(max_examples=40, deadline=None, derandomize=True)
@given(layers=st.lists(st.integers(1, 8), min_size=2, max_size=4), steps=st.integers(1, 4),
       batch=st.integers(1, 4), toggles=st.sampled_from(TOGGLES), seed=st.integers(0, 999))
def test_every_order_that_the_edges_allow_gives_the_same_numbers(
    layers: list[int], steps: int, batch: int, toggles: str, seed: int
) -> None:
    data = random_dataset(layers[0], layers[-1], steps * batch, 1, seed)
    network = Network(tuple(layers))
    selection = select(f"none,preload,{toggles}", network, steps, CAPABLE)
    plan = selection.apply(step_plan(network, batch, steps * batch))[0].unrolled(steps)
    initial = network.initial(seed)
    wanted = arrays_of(plan, data, initial)
    execute(plan, wanted)
    found = arrays_of(plan, data, initial)
    execute(plan, found, any_order(dependencies(plan.ops), np.random.default_rng(seed)))
    for name in (*initial, "loss", "correct"):
        np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)


def test_metrics_of_different_steps_do_not_wait_for_each_other() -> None:
    first = Op("cross_entropy", "a", {"p": "p", "y": "y", "cursor": "c", "loss": "l"},
               {"offset": 0})
    second = first.at_step(1, {})
    again = first.at_step(0, {})
    assert dependencies([first, second, again]) == [(), (), (0,)]


def test_an_epoch_of_thousands_of_ops_is_quick() -> None:
    network = Network((784, 10))
    selection = select("none,preload", network, 400, CAPABLE)
    plan = selection.apply(step_plan(network, 128, 51200))[0].unrolled(400)
    edges = dependencies(plan.ops)
    assert len(edges) == len(plan.ops) > 4000
    assert max(map(len, edges)) < 10


@settings(max_examples=100, deadline=None, derandomize=True)
@given(random_ops())
def test_every_edge_has_a_reason_and_nothing_else_has_one(ops: list[Op]) -> None:
    for after, op in enumerate(ops):
        for before in range(after):
            assert bool(reason(ops[before], op)) == conflict(ops[before], op)
