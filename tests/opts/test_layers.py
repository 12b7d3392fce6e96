"""Which layers fuse passes back from one reading of their weights, and that nothing changes in what
is computed. Small layers are taken for large ones here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest

from rawnn.engine.runners.host import HostRunner
from rawnn.model.layers import Network
from rawnn.model.optimizers import Optimizer
from rawnn.opts import select
from rawnn.plan.dependencies import dependencies
from rawnn.plan.plan import Plan
from tests.engine import CAPABLE, dataset_for, make_work, same_parameters, step_plan, trained

LAYERS = (29, 24, 17, 12, 7)
STREAMED = "preload,mma=wgmma,fuse"
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no biases": {"network_options": {"bias": False}},
    "tanh": {"network_options": {"activation": "tanh"}},
    "gelu": {"network_options": {"activation": "gelu"}},
    "bce": {"network_options": {"loss": "bce"}},
    "scheduled": {"schedule": "cosine"},
    "decay": {"optimizer": Optimizer(lr=0.1, given={"decay": 0.1})},
    "a rest": {"partial": True, "batch": 12},
}


@pytest.fixture(autouse=True)
def _streamed() -> Iterator[None]:
    with mock.patch("rawnn.opts.mma.MIN_SKINNY_WEIGHTS", 1):
        yield


def plan_of(opt: str, layers: tuple[int, ...] = LAYERS, batch: int = 8, **options: Any) -> Plan:
    network = Network(layers, **options.pop("network_options", {}))
    plan = step_plan(network, batch, 4 * batch, **options)
    return select(f"none,{opt}", network, 4, CAPABLE).apply(plan)[0]


def backward(plan: Plan) -> list[tuple[str, str]]:
    """Kind and weights of every op that passes a gradient on or updates weights, in order."""
    return [(op.kind, op.operands["b" if op.kind == "matmul" else "w"]) for op in plan.ops
            if op.kind in ("layer_backward", "weight_update", "sgd", "momentum", "adam")
            or op.attributes.get("layout") == "nn"]


@pytest.mark.parametrize("number", ["bf16", "sr"])
def test_every_layer_but_the_first_is_passed_back_at_once(number: str) -> None:
    plan = plan_of(f"{number},{STREAMED}", network_options={"loss": "bce"})
    assert backward(plan) == [("layer_backward", "fc4.weight"), ("layer_backward", "fc3.weight"),
                              ("layer_backward", "fc2.weight"), ("weight_update", "fc1.weight")]
    for op in plan.find(kind="layer_backward"):
        layer = int(op.name[2])
        wanted = {"dz": f"dz{layer}", "x": f"a{layer - 1}", "dx": f"dz{layer - 1}",
                  "w": f"fc{layer}.weight", "bias": f"fc{layer}.bias"}
        assert {role: op.operands[role] for role in wanted} == wanted
        assert ("copy" in op.operands) == (number == "bf16")
        assert (op.impl, op.attributes["slope"]) == ("skinny", "relu")


@pytest.mark.parametrize(("opt", "options"), [
    # Whether a gradient has overflowed is known when the last one is there.
    (f"fp16,{STREAMED}", {}), (f"fp16,{STREAMED},pdl", {}),
    (f"bf16,{STREAMED}", {"optimizer": Optimizer("sgd", 0.1, {"momentum": 0.9})}),
    (f"bf16,{STREAMED}", {"optimizer": Optimizer("adam", 0.1)}),
    ("bf16,preload,mma=wgmma", {}), ("bf16,preload,mma=sync,fuse", {}), ("preload,fuse", {}),
    ("tf32,preload,mma=wgmma,fuse", {}),
])
def test_other_layers_keep_two_kernels(opt: str, options: dict[str, Any]) -> None:
    found = [kind for kind, _ in backward(plan_of(opt, (29, 24, 300, 7), **options))]
    assert "layer_backward" not in found
    assert not any(op.kind == "layer_backward" for op in plan_of(opt, (29, 7), **options).ops)


def test_only_streamed_layers_are() -> None:
    with mock.patch("rawnn.opts.mma.MIN_SKINNY_WEIGHTS", 17 * 24):
        plan = plan_of(f"bf16,{STREAMED}", network_options={"loss": "bce"})
    assert backward(plan) == [("matmul", "fc4.weight.bfloat16"), ("matmul", "fc3.weight.bfloat16"),
                              ("layer_backward", "fc2.weight"), ("weight_update", "fc1.weight"),
                              ("weight_update", "fc3.weight"), ("weight_update", "fc4.weight")]
    plan = plan_of(f"bf16,{STREAMED}", batch=65, network_options={"loss": "bce"})
    assert "layer_backward" not in [kind for kind, _ in backward(plan)]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("number", ["bf16", "sr"])
def test_the_rewrite_changes_nothing_that_is_computed(number: str, options: dict[str, Any]) -> None:
    opt = f"{number},{STREAMED}"
    data = dataset_for(Network(LAYERS, **options.get("network_options", {})), 40, 8)
    work = make_work(opt, LAYERS, data, **options)
    assert work.train.find(kind="layer_backward")
    apart = make_work(f"{opt}=-layers", LAYERS, data, **options)
    assert not apart.train.find(kind="layer_backward")
    found, wanted = trained(HostRunner(work)), trained(HostRunner(apart))
    np.testing.assert_array_equal(found.loss, wanted.loss)
    same_parameters(found, wanted)


def test_steps_of_a_graph_wait_for_the_weights_they_read() -> None:
    plan = plan_of(f"bf16,{STREAMED}", network_options={"loss": "bce"}).unrolled(2)
    edges = dependencies(plan.ops)
    before: list[set[int]] = []
    for found in edges:
        before.append(set(found).union(*(before[i] for i in found)))
    names = [op.name for op in plan.ops]
    for layer in (2, 3, 4):
        update = names.index(f"fc{layer}.weight.sgd@0")
        assert update in before[names.index(f"fc{layer}.forward@1")]
        assert names.index(f"fc{layer}.forward@0") in before[update]
        assert update in before[names.index(f"fc{layer - 1}.weight.sgd@0")]
