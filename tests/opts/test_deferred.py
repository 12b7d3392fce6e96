"""Which updates fuse leaves to the next step's forward GEMM, that each new weight is stored before
anything else reads it, and that nothing changes in what is computed. Small layers are taken for
large ones here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest

import rawnn
from rawnn.bench.costing import moved
from rawnn.model.layers import Network
from rawnn.model.optimizers import Optimizer
from rawnn.opts import select
from rawnn.plan.plan import Plan
from rawnn.ptx.gemm import deferred
from tests.engine import CAPABLE, step_plan

LAYERS = (29, 24, 17, 7)
OPT = "preload,mma=sync,fuse"
ADAM = {"optimizer": Optimizer("adam", 0.01)}


@pytest.fixture(autouse=True)
def _large() -> Iterator[None]:
    with mock.patch.object(deferred, "LEAST_WEIGHTS", 1):
        yield


def plan_of(opt: str = OPT, layers: tuple[int, ...] = LAYERS, batch: int = 2,
            **options: Any) -> Plan:
    network = Network(layers, **options.pop("network", {}))
    plan = step_plan(network, batch, 6 * batch, **options)
    return select(f"none,{opt}", network, 6, CAPABLE).apply(plan)[0]


def merged(plan: Plan) -> list[tuple[str, int]]:
    """Kind of every op that does deferred updates, and of how many steps."""
    return [(op.kind, op.attributes["steps_at_once"]) for op in plan.ops if op.impl == "deferred"]


def test_a_first_layer_stores_its_weights_every_few_steps() -> None:
    plan = plan_of(layers=(29, 24, 7), **ADAM).unrolled(6)
    first = [op for op in plan.ops if op.operands.get("w") == "fc1.weight"]
    assert [(op.kind, op.name.rpartition("@")[2]) for op in first] == [
        ("adam_recomputed", "1"), ("adam_recomputed", "2"), ("adam_recomputed", "3"),
        ("adam_forward", "4"), ("adam_recomputed", "5"), ("adam_forward", "5")]
    assert [op.attributes["steps_at_once"] for op in first] == [1, 2, 3, 4, 1, 2]
    assert first[3].operands["a"] == "x''''"
    assert "a" not in first[-1].operands


def test_a_layer_whose_input_gradient_reads_the_weights_stores_them_each_step() -> None:
    plan = plan_of(**ADAM).unrolled(4)
    kinds = [op.kind for op in plan.ops if op.impl == "deferred"
             and op.operands["w"] == "fc2.weight"]
    assert kinds == ["adam_forward"] * 3
    last = [op for op in plan.ops if op.operands.get("w") == "fc2.weight"][-1]
    assert (last.kind, last.impl) == ("weight_adam", "mma")


@pytest.mark.parametrize(("batch", "steps"), [(1, 4), (2, 4), (3, 2), (4, 2)])
def test_a_thread_has_registers_for_the_factors_of_all_steps(batch: int, steps: int) -> None:
    plan = plan_of(layers=(29, 24, 7), batch=batch)
    assert plan.find(kind="weight_update")[0].attributes["defers"] == steps
    assert max(count for _, count in merged(plan.unrolled(6))) == steps


@pytest.mark.parametrize(("opt", "impls"), [
    ("bf16,mma", ("skinny", "skinny")), ("bf16,mma=sync", ("mma", "mma", "mma")),
    ("bf16,mma=many", ("wgmma", "wgmma")), ("tf32,mma", ("wgmma_tf32", "wgmma_tf32", "mma")),
    ("mma", ("wgmma_tf32", "wgmma_tf32", "mma")), ("tiled", ("tiled", "tiled", "tiled"))])
def test_updates_are_deferred_whichever_tensor_core_kernel_they_are_by(
        opt: str, impls: tuple[str, ...]) -> None:
    """But those of a layer whose input gradient is in the same kernel, or that has 7 outputs, the
    forward GEMM of which has the loss behind it."""
    plan = plan_of(f"preload,{opt},fuse", (2048, 2048, 1024, 7))
    updates = [op for op in plan.ops if {"w", "dz", "x"} <= op.operands.keys()]
    assert tuple(op.impl for op in updates) == impls
    for op in updates:
        assert ("defers" in op.attributes) == (
            op.impl != "tiled" and op.kind == "weight_update"
            and op.operands["w"] != "fc3.weight"), op.name


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("batch", [1, 3, 4])
def test_nobody_reads_weights_before_they_are_stored(batch: int, steps: int) -> None:
    """Walks the ops with the number of updates that each copy of the weights includes."""
    plan = plan_of(batch=batch, opt=f"{OPT},bf16", **ADAM).unrolled(steps).check()
    stored: dict[str, int] = {}
    pending: dict[str, int] = {}
    for op in plan.ops:
        if op.impl == "deferred":
            done = stored.get(op.operands["w"], 0) + op.attributes["steps_at_once"]
            assert done == op.offset + 1, op.name
            pending[op.operands["w"]] = done
            if "w" in op.spec.writes:
                stored[op.operands["w"]] = done
                assert op.operands["copy"] in {name for name, _ in op.writes}
            continue
        if op.kind == "weight_adam":
            assert stored.get(op.operands["w"], 0) == op.offset
            stored[op.operands["w"]] = pending[op.operands["w"]] = op.offset + 1
        for name, _ in op.reads:
            weights = plan[name].source or name
            if weights in pending:
                assert stored.get(weights, 0) == pending[weights], op.name
    assert set(stored.values()) == {steps}


def test_weights_move_as_seldom_as_four_steps_allow() -> None:
    """Adam on 4096 x 4096 at a batch of one: 3 arrays read in each of 4 steps and stored once."""
    steps, layer = 64, 4 * 4096 * 4096
    plan = plan_of(layers=(4096, 4096, 10), batch=1, **ADAM)
    apart = plan.map_ops(lambda op: replace(op, attributes={
        name: value for name, value in op.attributes.items() if name != "defers"}))
    assert moved(apart.unrolled(steps)) / steps == pytest.approx(7 * layer, rel=0.02)
    arrays = 1 + 15 * (4 * 3 + 3) + (4 * 3 + 3)  # the first forward GEMM, 64 updates
    assert moved(plan.unrolled(steps)) == pytest.approx(arrays * layer, rel=0.02)


@pytest.mark.parametrize(("options", "reason"), [
    ({"batch": 5}, "the batch has 5 rows"),
    ({"network": {"activation": "gelu"}, "layers": (29, 24, 7)}, "no update by tensor cores"),
    ({"opt": "preload,fp16,mma=sync,fuse"}, "no update by tensor cores"),
    ({"opt": "preload,bf16,sr,mma=sync,fuse"}, "no update by tensor cores"),
    ({"opt": "preload,tiled,fuse"}, "no update by tensor cores"),
])
def test_says_why_no_update_is_deferred(options: dict[str, Any], reason: str) -> None:
    opt = options.pop("opt", OPT)
    layers, batch = options.pop("layers", LAYERS), options.pop("batch", 2)
    network = Network(layers, **options.pop("network", {}))
    plan = step_plan(network, batch, 6 * batch)
    outcomes = select(f"none,{opt}", network, 6, CAPABLE).outcomes(plan)["fuse"]
    assert reason in {outcome.part: outcome.reason for outcome in outcomes}["deferred"]
    assert not merged(plan_of(opt, layers, batch, network={
        "activation": network.activation}).unrolled(3))


@pytest.mark.parametrize("number", ["", "tf32,", "bf16,"])
@pytest.mark.parametrize("options", [
    {"optimizer": "adamw"}, {"optimizer": "sgd", "weight_decay": 0.1, "bias": False},
    {"optimizer": "sgd", "momentum": 0.9, "nesterov": True, "schedule": "cosine"}], ids=str)
def test_weights_and_losses_keep_their_bits(number: str, options: dict[str, Any]) -> None:
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(23, 29)).astype("float32"), generator.integers(0, 7, 23)

    def run(fuse: str, graphs: str) -> Any:
        return rawnn.train(data=(x, y), layers=LAYERS, epochs=2, batch=2, lr=0.01, device="sim",
                           opt=f"preload,arena,nosync,{number}mma,{fuse},streams,pdl,{graphs}",
                           **options)

    plain = run("fuse=-deferred", "graphs=epoch")
    for graphs in ("graphs=epoch", "graphs=5", "graphs=while"):
        found = run("fuse", graphs)
        assert [e.train_loss for e in found.history] == [e.train_loss for e in plain.history]
        for name, value in found.model.state_dict().items():
            np.testing.assert_array_equal(value, plain.model.state_dict()[name], name)
