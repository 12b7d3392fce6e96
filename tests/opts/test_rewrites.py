"""What each toggle makes of the plan and the policy, and that none changes what is computed."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from rawnn.common.errors import ConfigError
from rawnn.graphs.unrolling import graph_plans
from rawnn.model.layers import Network
from rawnn.model.optimizers import Optimizer
from rawnn.opts import select
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy
from tests.catalogue import VARIANTS, Variant, sets_of
from tests.engine import CAPABLE, dataset_for, measuring_plan, random_dataset, step_plan
from tests.plan.execution import arrays_of, epoch
from tests.slices import sliced

SIMPLE = ("preload", "arena", "nosync", "report=2", "cublas", "cudnn", "fuse")
SUBSETS = [c for n in range(len(SIMPLE) + 1) for c in combinations(SIMPLE, n)]
GRAPHS = ("", "graphs=step", "graphs=1", "graphs=3", "graphs=epoch", "graphs=while")
LINEAR, DEEP = Network((12, 4)), Network((12, 7, 5, 4))
BATCH, STEPS = 3, 4


def baseline(network: Network) -> Plan:
    return replace(step_plan(network, BATCH, BATCH * STEPS), target=CAPABLE.target)


def rewritten(text: str, network: Network = DEEP, evaluate: bool = False) -> tuple[Plan, Policy]:
    plan = measuring_plan(network, BATCH, BATCH * STEPS) if evaluate else baseline(network)
    return select(f"none,{text}", network, STEPS, CAPABLE).apply(plan)


def ops(text: str, network: Network = DEEP, evaluate: bool = False) -> list[str]:
    plan, _ = rewritten(text, network, evaluate)
    return [op.kind + ("" if op.impl == "naive" else f"/{op.impl}") for op in plan.ops]


@pytest.mark.parametrize(("text", "policy"), [
    ("", Policy()), ("preload,cublas,cudnn,fuse", Policy()),
    ("arena", Policy(allocator="arena")), ("pool", Policy(allocator="pool")),
    ("async", Policy(allocator="async")), ("pinned", Policy(pinned=True)),
    ("streams", Policy(streams=True)), ("pdl", Policy(pdl=True)), ("nosync", Policy(sync="report")),
    ("report=7", Policy(report=7)),
    ("graphs", Policy("report", 1, "arena", graph="step", graph_steps=1)),
    ("preload,graphs", Policy("report", 1, "arena", graph="unroll", graph_steps=16)),
    ("preload,graphs=5", Policy("report", 1, "arena", graph="unroll", graph_steps=5)),
    ("graphs=epoch", Policy("report", 1, "arena", graph="epoch")),
    ("preload,graphs=while,report=3", Policy("report", 3, "arena", graph="while")),
])
def test_policies(text: str, policy: Policy) -> None:
    assert rewritten(text)[1] == policy


@pytest.mark.parametrize("text", [
    "arena", "pool", "async", "pinned", "nosync", "report=3", "streams", "pdl", "graphs=step",
    "graphs=epoch"])
def test_toggles_of_scheduling_leave_the_plan_alone(text: str) -> None:
    assert rewritten(text)[0] == baseline(DEEP)


def test_preload_gathers_on_the_device() -> None:
    plan = rewritten("preload")[0]
    assert plan.ops[0].kind == "gather"
    assert plan.ops[0].operands["images"] == "images"
    assert plan.ops[0].attributes["scale"] == pytest.approx(1 / 255)
    assert plan.ops[1:] == baseline(DEEP).ops[1:]


def test_cublas_takes_every_product_and_gives_each_its_own_workspace() -> None:
    plan = rewritten("cublas")[0].check()
    products = plan.find(kind="matmul")
    assert {op.impl for op in products} == {"cublas"}
    assert len({op.operands["workspace"] for op in products}) == len(products) == 8
    others = [op for op in plan.ops if op.kind != "matmul"]
    assert others == [op for op in baseline(DEEP).ops if op.kind != "matmul"]


def test_cublas_cuts_a_long_product_with_a_small_output_into_slices() -> None:
    network = Network((784, 10))
    plan = rewritten("cublas", network)[0].check()
    kinds = [op.kind for op in plan.ops]
    assert kinds[1:4] == ["matmul_slices", "sum_slices", "softmax"]
    assert kinds.count("matmul") == 1  # the weight gradient's inner dimension is the batch
    sliced, total = plan.ops[1:3]
    assert (sliced.attributes["slices"], sliced.attributes["k"]) == (28, 784)
    assert total.attributes["bias"]  # with which the sum begins
    assert total.operands["bias"] == "fc1.bias"


def test_fuse_updates_from_the_slices_of_a_small_weight_gradient() -> None:
    network = Network((784, 10))
    selection = select("none,cublas,fuse", network, STEPS, CAPABLE)
    plan = selection.apply(step_plan(network, 128, 128 * STEPS))[0].check()
    assert [op.kind for op in plan.ops][-2:] == ["matmul_slices", "slices_sgd"]
    assert plan.ops[-2].attributes["layout"] == "tn"
    assert not plan.find(kind="bias_sgd")


def test_cudnn_takes_the_softmax_and_packs_its_rows() -> None:
    plan = rewritten("cudnn")[0]
    softmax = plan.find(kind="softmax")[0]
    assert softmax.impl == "cudnn"
    assert all(plan[softmax.operands[r]].packed for r in ("z", "p"))
    assert not any(t.packed for n, t in plan.tensors.items() if n not in softmax.operands.values())


def test_fuse_on_a_deep_network() -> None:
    assert ops("fuse") == [
        "upload/memcpy", "matmul", "matmul", "matmul", "softmax_loss_gradient/fused",
        "matmul", "matmul", "weight_update", "weight_update", "weight_update",
    ]
    plan = rewritten("fuse")[0]
    first, second, last = plan.find(kind="matmul")[:3]
    assert (first.operands["c"], second.operands["c"], last.operands["c"]) == ("a1", "a2", "z3")
    assert [op.attributes["activation"] for op in (first, second, last)] == ["relu", "relu", ""]
    assert [op.attributes["slope"] for op in plan.find(kind="matmul")[3:]] == ["relu", "relu"]
    update = plan.find(name="fc1.weight.sgd")[0]
    assert update.operands == {"w": "fc1.weight", "bias": "fc1.bias", "dz": "dz1", "x": "x"}
    assert update.attributes["lr"] == 0.1
    assert not {"p", "z1", "da1", "dw1", "db1"} & set(plan.tensors)


def test_fuse_behind_cudnn_starts_at_the_probabilities() -> None:
    assert "softmax/cudnn" in ops("fuse,cudnn")
    assert "loss_gradient/fused" in ops("fuse,cudnn")


def test_fuse_makes_two_kernels_of_a_linear_step() -> None:
    assert ops("preload,fuse", LINEAR) == ["linear_forward/fused", "linear_update/fused"]


@pytest.mark.parametrize("text", ["fuse", "fuse,preload,cublas", "fuse,preload,cudnn"])
def test_the_linear_step_is_fused_only_where_the_plan_allows_it(text: str) -> None:
    assert "linear_forward/fused" not in ops(text, LINEAR)


def test_the_linear_step_is_fused_up_to_32_classes() -> None:
    assert ops("preload,fuse", Network((12, 32)))[0] == "linear_forward/fused"
    assert ops("preload,fuse", Network((12, 33)))[0] == "gather"


def test_evaluation_is_fused_without_gradients() -> None:
    assert ops("preload,fuse", LINEAR, evaluate=True) == [
        "gather", "matmul", "softmax", "loss_accuracy/fused"]


# -- what fuse makes of other networks -------------------------------------------------------------
def test_gelu_needs_its_input_and_stays_an_op_of_its_own() -> None:
    kinds = ops("preload,fuse", Network((12, 7, 4), activation="gelu"))
    assert kinds == ["gather", "matmul", "activate", "matmul", "softmax_loss_gradient/fused",
                     "matmul", "activate_backward", "weight_update", "weight_update"]


def test_tanh_is_applied_in_the_product_but_not_by_cublas() -> None:
    network = Network((12, 7, 4), activation="tanh")
    assert "activate" not in ops("fuse", network)
    assert [op.attributes["activation"] for op in rewritten("fuse", network)[0].find(
        kind="matmul")] == ["tanh", "", ""]
    assert "activate" in ops("cublas,fuse", network)
    assert "activate" not in ops("cublas,fuse", Network((12, 7, 4)))


@pytest.mark.parametrize("loss", ["mse", "bce"])
def test_losses_of_targets_are_one_op(loss: str) -> None:
    network = Network((12, 7, 4), loss=loss)
    assert f"{loss}_gradient/fused" in ops("fuse", network)
    assert not {loss, f"{loss}_backward", f"{loss}_accuracy"} & set(ops("fuse", network))
    quiet = rewritten("fuse", network)[0].without_metrics()
    assert f"{loss}_backward" in [op.kind for op in quiet.ops]


def test_without_biases_nothing_of_them_is_left() -> None:
    plan = rewritten("fuse", Network((12, 7, 4), bias=False))[0]
    assert not [op for op in plan.ops if "bias" in op.operands]
    assert not [n for n in plan.tensors if "bias" in n or n.startswith("db")]


@pytest.mark.parametrize("optimizer", [Optimizer("sgd", 0.1, {"momentum": 0.9}),
                                       Optimizer("adam"), Optimizer("adamw")], ids=str)
def test_only_plain_sgd_joins_the_gradient(optimizer: Optimizer) -> None:
    plan = select("none,fuse", DEEP, STEPS, CAPABLE).apply(
        step_plan(DEEP, BATCH, BATCH * STEPS, optimizer=optimizer))[0]
    assert not plan.find(kind="weight_update")
    assert len(plan.find(kind=optimizer.kind)) == 6
    assert all(plan[op.operands[s]].role == "state" for op in plan.find(kind=optimizer.kind)
               for s in optimizer.state)


def test_cublas_takes_weight_decay_into_beta_and_leaves_a_schedule_to_the_update() -> None:
    def fused(**recipe: Any) -> Plan:
        plan = step_plan(DEEP, BATCH, BATCH * STEPS, **recipe)
        return select("none,cublas,fuse", DEEP, STEPS, CAPABLE).apply(plan)[0].check()

    decayed = fused(optimizer=Optimizer("sgd", 0.1, {"decay": 0.5})).find(name="fc1.weight.sgd")[0]
    assert (decayed.kind, decayed.impl) == ("matmul", "cublas")
    assert (decayed.attributes["alpha"], decayed.attributes["beta"]) == (-0.1, 0.95)
    assert fused(schedule="cosine").find(name="fc1.weight.sgd")[0].kind == "sgd"


@pytest.mark.parametrize("variant", [v for v in VARIANTS if not v.form])
def test_every_set_of_kernels_trains_every_network_the_same(variant: Variant) -> None:
    """Two steps in float64, where nothing but the order of sums differs."""
    network = Network(variant.layers, **variant.network)
    data = dataset_for(network, 3 * variant.batch + max(variant.batch // 2, 1), 1)
    initial = network.initial(0)

    def trained(text: str) -> dict[str, Any]:
        plan = next(iter(variant.plans(text)))
        arrays = arrays_of(plan, data, initial)
        epoch(plan, arrays, 2)
        return arrays

    wanted = trained("")
    sets = sets_of("kernels", without=("tune",))
    for text in sliced((*sets, *(f"preload,{kernels}" for kernels in sets)), len(sets) // 2):
        found = trained(text)
        for name in (*initial, "loss"):
            np.testing.assert_allclose(found[name][:2], wanted[name][:2], rtol=0, atol=1e-12,
                                       err_msg=f"{name} with {text}")


# -- all together ---------------------------------------------------------------------------------
def legal(toggles: tuple[str, ...], graphs: str) -> bool:
    return "preload" in toggles or graphs not in ("graphs=3", "graphs=while")


@pytest.mark.parametrize("graphs", GRAPHS)
@pytest.mark.parametrize("network", [LINEAR, DEEP], ids=str)
def test_every_set_of_toggles_runs_or_is_refused_with_the_fix(network: Network,
                                                               graphs: str) -> None:
    for toggles in SUBSETS:
        text = ",".join([*toggles, graphs])
        if not legal(toggles, graphs):
            with pytest.raises(ConfigError, match="add preload"):
                rewritten(text, network)
            continue
        for evaluate in (False, True):
            plan, policy = rewritten(text, network, evaluate)
            plan.check()
            plan.without_metrics().check()
            if policy.graph:
                made = graph_plans(plan, policy, STEPS)
                assert sum(g.plan.steps * g.launches for g in made if not g.loop) == \
                    (0 if policy.graph == "while" else STEPS)
                assert all(g.plan.ops for g in made)


@pytest.mark.parametrize("network", [LINEAR, DEEP, Network((256, 9, 4))], ids=str)
def test_every_set_of_toggles_computes_the_same(network: Network) -> None:
    """In float64, where nothing but the order of sums differs."""
    data = random_dataset(network.layers[0], 4, BATCH * STEPS, 1)
    initial = network.initial(0)
    wanted = arrays_of(baseline(network), data, initial)
    epoch(baseline(network), wanted, STEPS)
    done = []
    for toggles in SUBSETS:
        plan = rewritten(",".join(toggles), network)[0]
        if plan in done:
            continue  # arena, nosync and report change no op
        done.append(plan)
        for quiet in (False, True):
            chosen = plan.without_metrics() if quiet else plan
            found = arrays_of(chosen, data, initial)
            epoch(chosen, found, STEPS)
            for name in (*initial, *(() if quiet else ("loss", "correct"))):
                np.testing.assert_allclose(found[name], wanted[name], rtol=0, atol=1e-12,
                                           err_msg=f"{name} with {toggles}")
    assert len(done) == 2 ** 4
