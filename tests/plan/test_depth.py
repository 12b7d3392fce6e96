"""The time that a plan takes grows with the depth of the network, not with its square: building,
toggles, what an epoch begins with, graphs and their edges."""

from __future__ import annotations

from dataclasses import replace
from time import process_time

import pytest

from rawnn.graphs.unrolling import GraphPlan, graph_plans
from rawnn.model.layers import Network
from rawnn.model.optimizers import Optimizer
from rawnn.opts import select
from rawnn.persistent.choose import choose
from rawnn.plan import epoch_plans
from rawnn.plan.plan import Plan
from rawnn.plan.recipe import Recipe
from tests.engine import CAPABLE, step_plan

BATCH, STEPS = 128, 468
USUAL = 0.03
"""Seconds that `loop` takes where a second is promised."""


def planned(layers: int, opt: str) -> tuple[Plan, list[GraphPlan], float]:
    """The plan of a step with so many layers, its graphs, and the processor's seconds."""
    started = process_time()
    network = Network((784, *[32] * (layers - 1), 10))
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
    return step, graphs, process_time() - started


def loop() -> float:
    """The processor's seconds for some Python, which a busy machine makes slower, too."""
    network, started = Network((784, 10)), process_time()
    made = {f"fc{n}": replace(network, layers=(784, n + 1)) for n in range(12_000)}
    sum(len(name) for name in sorted(made, key=lambda name: made[name].layers))
    return process_time() - started


def slower() -> float:
    """By how much the machine is slower than the usual one, now."""
    return max(min(loop() for _ in range(5)) / USUAL, 1.0)


@pytest.mark.parametrize("opt", ["none", "best", "best,bf16", "best,fp8", "cublas,cudnn,fuse"])
def test_400_layers_take_a_second(opt: str) -> None:
    assert len(planned(400, opt)[0].ops) >= 3 * 400 - 3
    # Other processes share the caches.
    assert min(planned(400, opt)[2] for _ in range(3)) < slower()


def test_whether_one_kernel_does_the_step_is_soon_known_where_it_may_fit() -> None:
    """By blocks of 16 outputs at batch 128, 100 layers fit in eight micro-batches only."""
    assert min(planned(100, "best")[2] for _ in range(2)) < 3 * slower()


@pytest.mark.parametrize("opt", ["none", "best"])
def test_5000_layers_take_seconds(opt: str) -> None:
    assert planned(5000, opt)[2] < 15 * slower()


def test_best_unrolls_fewer_steps_where_these_have_more_nodes() -> None:
    def steps(depth: int) -> object:
        network = Network((784, *[32] * (depth - 1), 10))
        return select("best", network, 10_000, CAPABLE, batch=BATCH).values["graphs"]

    assert [steps(depth) for depth in (2, 6, 16, 400, 5000)] == [200, 200, 80, 3, 1]


def test_best_makes_no_graph_of_millions_of_nodes() -> None:
    for layers in (40, 400):
        _, graphs, _ = planned(layers, "best")
        assert all(len(graph.plan.ops) <= 20_000 for graph in graphs)
        assert sum(graph.plan.steps * graph.launches for graph in graphs) == STEPS
