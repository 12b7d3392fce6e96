"""What the products of `mma` take in besides plain SGD and output activations: any optimizer, and
activations whose slope needs their input. The launches of a step, and what is computed."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from rawnn.cuda.device import Device
from rawnn.engine.runners.gpu import GpuRunner
from rawnn.engine.runners.host import HostRunner
from rawnn.model.layers import Network
from rawnn.model.optimizers import Optimizer
from rawnn.opts import select
from rawnn.opts.mma import fits
from rawnn.plan.plan import Plan
from rawnn.sim import sim_backend
from tests import tolerances
from tests.engine import CAPABLE, dataset_for, make_work, step_plan, trained

OPTIMIZERS = {"sgd": Optimizer("sgd", 0.1), "momentum": Optimizer("sgd", 0.1, {"momentum": 0.9}),
              "adam": Optimizer("adam", 0.01), "adamw": Optimizer("adamw", 0.01)}
LAYERS = (29, 18, 11, 7)


def plan_of(opt: str, network: Network, optimizer: Optimizer, batch: int = 64) -> Plan:
    return select(opt, network, 4, CAPABLE).apply(
        step_plan(network, batch, 4 * batch, optimizer=optimizer))[0]


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("loss", ["cross_entropy", "mse", "bce"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("numbers", ["", ",tf32", ",bf16"])
def test_a_step_takes_three_launches_a_layer_and_one(numbers: str, activation: str, loss: str,
                                                     optimizer: Optimizer) -> None:
    """The gather; a product forward, one for the input gradient and an update a layer, but no input
    gradient of the first; the loss."""
    for depth in (1, 2, 6):
        network = Network((40,) * (depth + 1), activation=activation, loss=loss)
        plan = plan_of(f"preload,mma=sync,fuse=-narrow-linear{numbers}",
                       network, optimizer, batch=200)
        assert len(plan.ops) == 3 * depth + 1, [op.kind for op in plan.ops]


def test_other_products_leave_other_optimizers_to_kernels_of_their_own() -> None:
    for opt in ("preload,fuse", "preload,tiled,fuse", "preload,cublas,fuse"):
        plan = plan_of(opt, Network(LAYERS), OPTIMIZERS["adam"])
        assert len(plan.find(kind="adam")) == 6
    assert len(plan_of("preload,mma,fuse", Network(LAYERS), OPTIMIZERS["adam"]).find(
        kind="weight_adam")) == 3


def test_what_a_slope_needs_is_kept_only_where_there_is_one() -> None:
    network = Network(LAYERS, activation="gelu")
    train = plan_of("preload,mma,fuse", network, OPTIMIZERS["sgd"])
    kept = [op.operands["pre"] for op in train.find(kind="matmul") if "pre" in op.operands]
    assert kept == ["z1", "z2"]
    assert [op.operands["saved"] for op in train.find(kind="matmul") if "saved" in op.operands] == [
        "z2", "z1"]
    assert not train.find(kind="activate") + train.find(kind="activate_backward")
    assert not any("pre" in op.operands for op in
                   plan_of("preload,mma,fuse", Network(LAYERS), OPTIMIZERS["sgd"]).ops)


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize(("numbers", "options"), [
    ("", {}), ("", {"network_options": {"activation": "gelu", "bias": False}}),
    ("", {"schedule": "cosine", "shuffle": True, "partial": True}), ("bf16,", {}),
    ("fp16,", {"network_options": {"activation": "gelu"}}), ("bf16,sr,", {}), ("fp8,", {}),
])
def test_a_step_in_its_products_computes_the_same(numbers: str, options: dict[str, Any],
                                                  optimizer: Optimizer) -> None:
    data = dataset_for(Network(LAYERS, **options.get("network_options", {})), 40, 8)
    together, apart = (make_work(f"{numbers}{opt}", LAYERS, data, optimizer=optimizer, **options)
                       for opt in ("preload,mma=sync,fuse", "preload,mma=sync"))
    assert len(together.train.ops) < len(apart.train.ops)
    with closing(Device(sim_backend(), 0, lambda message: None)) as device:
        runs = [HostRunner(together), GpuRunner(device, together), HostRunner(apart)]
        found, simulated, wanted = (trained(runner) for runner in runs)
        for runner in runs:
            runner.close()
    types = {t.dtype for t in apart.train.tensors.values() if t.floating}
    # Stochastic rounding may go the other way, in every step.
    bound = tolerances.of_run(types) * (4 if "sr" in numbers else 1)
    for name, value in wanted.parameters.items():
        np.testing.assert_array_equal(simulated.parameters[name], found.parameters[name])
        np.testing.assert_allclose(found.parameters[name], value, rtol=0, atol=bound, err_msg=name)


KINDS = ("float32", "float16", "bfloat16", "float8_e4m3", "float8_e5m2")
TENSOR_CORES = {("float32", "float32"), ("float16", "float16"), ("bfloat16", "bfloat16"),
                *product(KINDS[3:], repeat=2)}


@pytest.mark.parametrize("pair", [*product(KINDS, repeat=2)])
def test_operands_that_tensor_cores_take(pair: tuple[str, str]) -> None:
    """Both of one 16-bit dtype or of float32, or both of 8 bits; with sums in float16 only its
    own."""
    plan = step_plan(Network((8, 8)), 8, 32)
    op = plan.find(kind="matmul")[0]
    plan = plan.with_tensors(*(replace(plan[op.operands[role]], dtype=dtype)
                               for role, dtype in zip("ab", pair, strict=True)))
    for compute in ("float32", "float16"):
        attributes = {**op.attributes, "compute": compute}
        wanted = pair in TENSOR_CORES and (compute == "float32" or set(pair) == {"float16"})
        assert fits(plan, replace(op, attributes=attributes)) == wanted
