"""What fuse makes of a network of narrow layers: which plans it rewrites, that nothing changes in
what they compute, and that steps are joined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rawnn.engine.runners.host import HostRunner
from rawnn.model.layers import Network
from rawnn.model.optimizers import Optimizer
from rawnn.opts import select
from rawnn.plan.dependencies import dependencies
from rawnn.plan.plan import Plan
from rawnn.ptx.fused import narrow
from tests.engine import (
    CAPABLE,
    check_against_host,
    make_work,
    random_dataset,
    step_plan,
    trained,
)
from tests.opts.variants import OPTIONS, kinds
from tests.sim.races import each_missing_edge_is_a_race

LAYERS = (29, 24, 16, 7)
DATA = random_dataset(29, 7, 40, 8)
OPT = "preload,bf16,mma,fuse"
THREE = ["narrow_input", "narrow_inner", "narrow_update"]


def rewritten(layers: tuple[int, ...], batch: int = 8, opt: str = OPT, **options: Any) -> Plan:
    network = Network(layers, **options.pop("network_options", {}))
    plan = step_plan(network, batch, 4 * batch, **options)
    return select(f"none,{opt}", network, 4, CAPABLE).apply(plan)[0]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_rewrite_changes_nothing_that_is_computed(options: dict[str, Any]) -> None:
    work = make_work(OPT, LAYERS, DATA, **options)
    assert kinds(work.train) == THREE
    fused = trained(HostRunner(work, "float64"))
    plain = trained(HostRunner(make_work("preload,bf16", LAYERS, DATA, **options), "float64"))
    np.testing.assert_allclose(fused.loss, plain.loss, rtol=1e-6)
    assert (fused.correct == plain.correct).all()
    for name, value in fused.parameters.items():
        np.testing.assert_allclose(value, plain.parameters[name], rtol=1e-6, atol=1e-9)
    assert fused.evaluation == plain.evaluation


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("how", [
    "", ",graphs=step", ",graphs=3", ",graphs=epoch", ",graphs=while",
    ",arena,nosync,streams,pdl,graphs=epoch", ",report=2"])
def test_the_simulated_device_gives_the_hosts_result(how: str, options: dict[str, Any]) -> None:
    check_against_host(OPT, how, LAYERS, DATA, **options)


def test_steps_are_joined_into_two_launches_each() -> None:
    plan = make_work(OPT, LAYERS, DATA).train.unrolled(4)
    assert kinds(plan) == ["narrow_input", *THREE[1:] * 4]
    assert ["partial" in op.operands for op in plan.find(kind="narrow_update")] == \
        [True, True, True, False]
    assert [op.offset for op in plan.ops] == [0, 0, 0, 1, 1, 2, 2, 3, 3]
    edges = dependencies(plan.ops)
    assert edges == [(), *((i,) for i in range(8))]


def test_a_missing_edge_is_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    opt = f"{OPT},graphs=epoch,streams"
    assert each_missing_edge_is_a_race(monkeypatch, opt, LAYERS, DATA, 5) > 5


@pytest.mark.parametrize(("layers", "options"), [
    ((29, 7), {}),  # one layer has kernels of its own
    ((29, 8, 8, 8, 8, 8, 8, 7), {}),  # too deep
    ((29, 257, 7), {}),
    ((29, 16, 65), {}),  # too many classes
    ((29, 16, 7), {"batch": 129}),
    ((29, 16, 7), {"opt": "preload,mma,fuse"}),  # float32 weights
    ((29, 16, 7), {"opt": "preload,fp16,mma,fuse"}),  # a loss scale
    ((29, 16, 7), {"opt": "preload,sr,mma,fuse"}),
    ((29, 16, 7), {"opt": "bf16,mma,fuse"}),  # batches from the host
    ((29, 16, 7), {"opt": "preload,bf16,cublas,fuse"}),
    ((29, 16, 7), {"opt": "preload,bf16,fuse"}),  # runs on GPUs without such tensor cores too
    ((29, 16, 7), {"opt": "preload,bf16,mma,cudnn,fuse"}),
    ((29, 16, 7), {"network_options": {"activation": "gelu"}}),
    ((29, 16, 7), {"network_options": {"loss": "mse"}}),
    ((29, 16, 7), {"optimizer": Optimizer("adam")}),
    ((29, 16, 7), {"optimizer": Optimizer(given={"momentum": 0.9})}),
    ((29, 16, 7), {"form": {"normalised": True}}),
    ((29, 16, 7), {"form": {"inputs": "float32"}}),
])
def test_other_plans_are_left_alone(layers: tuple[int, ...], options: dict[str, Any]) -> None:
    assert not set(kinds(rewritten(layers, **options))) & set(THREE)


def test_what_a_block_holds_decides_how_wide_a_network_may_be() -> None:
    wide = rewritten((784, 256, 256, 256, 10), opt="preload,bf16")
    narrower = rewritten((784, 160, 160, 160, 10))
    assert kinds(narrower) == THREE
    assert narrower.ops[1].attributes["SLOTS"] == 1
    fused = rewritten((784, 256, 256, 256, 10), opt="preload,bf16,mma=sync,fuse=-loss_product")
    assert kinds(fused)[0] == "gather"
    with_more = narrow.rewrite(fused, 227 << 10)
    assert isinstance(with_more, Plan)
    assert kinds(with_more) == THREE
    assert kinds(wide)[0] == "gather"


def test_as_many_layers_as_fit_stay_in_shared_memory() -> None:
    plan = rewritten((784, 128, 128, 128, 10))
    assert plan.ops[1].attributes["SLOTS"] == 2
