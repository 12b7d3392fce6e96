"""The work that a plan takes grows with the depth of the network, not with its square: building,
toggles, what an epoch begins with, graphs and their edges. Lines that run are counted, which a busy
machine does not change."""

from __future__ import annotations

import sys

import pytest

from rawnn.graphs.unrolling import GraphPlan, graph_plans
from rawnn.model.layers import Network
from rawnn.model.optimizers import Optimizer
from rawnn.opts import select
from rawnn.persistent.choose import choose
from rawnn.plan import epoch_plans
from rawnn.plan.plan import Plan
from rawnn.plan.recipe import Recipe
from tests.calls import count_lines
from tests.engine import CAPABLE, step_plan
from tests.slices import sliced

BATCH, STEPS = 128, 468
LINES = 4_000_000
"""Lines for 100 layers that may fit in one kernel; two thirds of them run."""


def planned(layers: int, opt: str, width: int = 32) -> tuple[Plan, list[GraphPlan]]:
    """The plan of a step with so many layers, and its graphs."""
    network = Network((784, *[width] * (layers - 1), 10))
    choose.cache_clear()
    selection = select(f"none,{opt}", network, STEPS, CAPABLE, batch=BATCH,
                       recipe=Recipe(BATCH, Optimizer(lr=0.1)))
    step, policy = selection.apply(step_plan(network, BATCH, BATCH * STEPS))
    epoch_plans.start(step, network, 0)
    epoch_plans.refresh(step)
    step.without_metrics()
    graphs = graph_plans(step, policy, STEPS) if policy.graph else [GraphPlan(step, STEPS)]
    for graph in graphs:
        graph.edges()
    return step, graphs


def lines_for(layers: int, opt: str, width: int = 32) -> int:
    return count_lines(lambda: planned(layers, opt, width))


@pytest.mark.parametrize(("opt", "limit"), sliced([
    ("none", 2.05), ("best", 2.4), ("cublas,cudnn,fuse", 2.05), ("best,bf16", 2.4),
    ("best,fp8", 2.4)], 2))
def test_a_layer_more_takes_the_same_work_at_any_depth(opt: str, limit: float) -> None:
    """200 more take twice the work of 100 more; `best` also unrolls another number of steps."""
    planned(10, opt)  # what is read once a process
    # So wide that one kernel has no room for any of them.
    few, more, most = (lines_for(layers, opt, 512) for layers in (100, 200, 400))
    assert 1.5 < (most - more) / (more - few) < limit, (few, more, most)


def test_whether_one_kernel_does_the_step_is_soon_known_where_it_may_fit() -> None:
    """By blocks of 16 outputs at batch 128, 100 layers fit in eight micro-batches only."""
    assert lines_for(100, "best") < LINES


@pytest.mark.parametrize("opt", ["none", "best"])
def test_there_may_be_more_layers_than_calls_within_calls(opt: str) -> None:
    layers = sys.getrecursionlimit() + 200
    assert len(planned(layers, opt)[0].ops) >= 3 * layers - 3


def test_best_unrolls_fewer_steps_where_these_have_more_nodes() -> None:
    def steps(depth: int) -> object:
        network = Network((784, *[32] * (depth - 1), 10))
        return select("best", network, 10_000, CAPABLE, batch=BATCH).values["graphs"]

    assert [steps(depth) for depth in (2, 6, 16, 400, 5000)] == [200, 200, 80, 3, 1]


def test_best_makes_no_graph_of_millions_of_nodes() -> None:
    for layers in (40, 400):
        _, graphs = planned(layers, "best")
        assert all(len(graph.plan.ops) <= 20_000 for graph in graphs)
        assert sum(graph.plan.steps * graph.launches for graph in graphs) == STEPS
