"""What fuse makes of a network's last layer on Hopper: which plans it rewrites, and that nothing
changes in what they compute."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from rawnn.engine.runners.host import HostRunner
from rawnn.model.layers import Network
from rawnn.model.optimizers import Optimizer
from rawnn.opts import TOGGLES, select
from rawnn.opts.registry import Machine
from rawnn.plan.dependencies import dependencies
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Role, Tensor
from rawnn.ptx.fused import head
from rawnn.ptx.fused.head import shared_bytes, splits_of, tiles, units_of
from rawnn.ptx.kernels import kernel_for
from tests.catalogue import legal
from tests.engine import (
    CAPABLE,
    check_against_host,
    make_work,
    random_dataset,
    spelled,
    step_plan,
    trained,
)
from tests.opts import variants
from tests.opts.variants import kinds
from tests.slices import sliced

LAYERS = (29, 264, 35, 7)  # too wide to be one of `fuse`'s narrow networks
DATA = random_dataset(29, 7, 40, 8)
NUMBERS = ("bf16", "sr")
OPTIONS = {**variants.OPTIONS, "gelu": {"network_options": {"activation": "gelu"}}}


def rewritten(layers: tuple[int, ...], batch: int = 8, opt: str = "preload,sr,mma,fuse",
              machine: Machine = CAPABLE, **options: Any) -> Plan:
    network = Network(layers, **options.pop("network_options", {}))
    plan = step_plan(network, batch, 4 * batch, **options)
    return select(f"none,{opt}", network, 4, machine).apply(plan)[0]


@pytest.mark.parametrize("number", NUMBERS)
def test_a_last_layer_is_one_op(number: str) -> None:
    plan = rewritten(LAYERS, opt=f"preload,{number},mma,fuse")
    assert kinds(plan) == ["gather", "matmul", "matmul", "softmax_head", "matmul",
                           *["weight_update"] * 2]
    (head,) = plan.find(kind="softmax_head")
    assert set(head.operands) == {"a", "w", "bias", "y", "cursor", "loss", "correct", "dx",
                                  "copy" if number == "bf16" else "clock"}
    assert not {"z3", "dz3"} & set(plan.tensors)
    edges = dependencies(plan.ops)
    assert edges[3] == (2,)  # the batch's labels came long before
    assert edges[4] == (3,)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_rewrite_changes_nothing_that_is_computed(options: dict[str, Any],
                                                      number: str) -> None:
    work = make_work(f"preload,{number},mma,fuse", LAYERS, DATA, **options)
    assert "softmax_head" in kinds(work.train)
    fused = trained(HostRunner(work))
    plain = trained(HostRunner(make_work(f"preload,{number}", LAYERS, DATA, **options)))
    np.testing.assert_allclose(fused.loss, plain.loss, rtol=1e-2)
    exact = trained(HostRunner(work, "float64"))
    alone = trained(HostRunner(make_work(f"preload,{number}", LAYERS, DATA, **options), "float64"))
    np.testing.assert_allclose(exact.loss, alone.loss, rtol=1e-6)
    assert (exact.correct == alone.correct).all()
    for name, value in exact.parameters.items():
        np.testing.assert_allclose(value, alone.parameters[name], rtol=1e-6, atol=1e-9)
    assert exact.evaluation == alone.evaluation


@pytest.mark.parametrize(("how", "options", "number"), sliced(product((
    "", ",graphs=step", ",graphs=3", ",graphs=epoch", ",graphs=while", ",pdl,streams",
    ",arena,nosync,streams,pdl,graphs=epoch", ",report=2"), OPTIONS, NUMBERS), 32))
def test_the_simulated_device_gives_the_hosts_result(how: str, options: str,
                                                     number: str) -> None:
    check_against_host(f"preload,{number},mma,fuse", how, LAYERS, DATA, **OPTIONS[options])


def test_every_pair_of_toggles_goes_with_it() -> None:
    network = Network(LAYERS)
    for pair in combinations([spelled(name) for name in TOGGLES], 2):
        words = ("preload", "sr", "mma", "fuse", *pair)
        if len({word.partition("=")[0] for word in words}) < len(words) \
                or not legal(words, network):
            continue
        plan = rewritten(LAYERS, opt=",".join(words))
        assert "softmax_head" in kinds(plan) or {"cudnn", "batch", "persistent"} & set(pair), pair


@pytest.mark.parametrize(("layers", "options"), [
    ((29, 7), {}),  # one layer has no input gradient
    ((29, 264, 65), {}),  # too many classes
    ((29, 264, 7), {"batch": 129}),
    ((29, 8192, 7), {"batch": 128}),  # more than a block's shared memory holds
    ((29, 16, 7), {"opt": "preload,bf16,mma,fuse"}),  # a narrow network
    ((29, 264, 7), {"opt": "preload,mma,fuse"}),  # float32 weights
    ((29, 264, 7), {"opt": "preload,fp16,mma,fuse"}),  # a loss scale
    ((29, 264, 7), {"opt": "preload,fp8,mma,fuse"}),
    ((29, 264, 7), {"opt": "preload,sr,mma=sync,fuse"}),
    ((29, 264, 7), {"machine": Machine(None, (10, 0), 13000, lambda package: True)}),
    ((29, 264, 7), {"opt": "preload,sr,cublas,fuse"}),
    ((29, 264, 7), {"opt": "preload,sr,fuse"}),
    ((29, 264, 7), {"opt": "preload,sr,mma"}),
    ((29, 264, 7), {"opt": "preload,sr,mma,cudnn,fuse"}),
    ((29, 264, 7), {"network_options": {"loss": "mse"}}),
    ((29, 264, 7), {"optimizer": Optimizer("adam")}),
    ((29, 264, 7), {"optimizer": Optimizer(given={"momentum": 0.9})}),
])
def test_other_plans_are_left_alone(layers: tuple[int, ...], options: dict[str, Any]) -> None:
    assert "softmax_head" not in kinds(rewritten(layers, **options))


@pytest.mark.parametrize("role", ["z", "dz"])
def test_what_another_op_reads_stays(role: str) -> None:
    """The op in one piece stores neither the last outputs nor their gradient."""
    plan = rewritten(LAYERS, opt="preload,sr,mma,fuse=-head-loss_product")
    fused = head.rewrite(plan)
    assert isinstance(fused, Plan)
    assert "softmax_head" in kinds(fused)
    (loss,) = plan.find(kind="softmax_loss_gradient")
    sums = Tensor("sums", (LAYERS[-1],), "float32", Role.GRADIENT)
    reader = Op("bias_grad", "reader", {"dz": loss.operands[role], "db": "sums"})
    read = replace(plan, ops=(*plan.ops, reader)).with_tensors(sums).check()
    assert "input gradient and update in a row" in str(head.rewrite(read))


@pytest.mark.parametrize(("features", "batch"), [
    (784, 64), (1024, 32), (2048, 32), (4096, 32), (8192, 32), (4096, 64), (18, 13), (264, 128)])
def test_blocks_of_a_cluster_have_all_features(features: int, batch: int) -> None:
    plan = rewritten((29, features, 10), batch)
    (head,) = plan.find(kind="softmax_head")
    impl = kernel_for(head)
    scalars = impl.scalars(head, plan)
    grid, _ = impl.geometry(scalars)
    assert grid == (splits_of(features), 1, 1)
    assert impl.cluster(scalars) == grid[0]
    assert scalars["share"] * grid[0] >= units_of(features)
    assert impl.shared(scalars) == shared_bytes(batch, features, 10, False)
    assert impl.shared(scalars) <= 200 << 10


def test_a_cluster_has_as_many_blocks_as_there_are_units_for() -> None:
    """A power of two from 2 to 8, each block with a unit of 32 features or more where there are
    two units; and a batch is taken in the fewest tiles of eight rows that hold it."""
    for features in range(1, 700):
        units = len(range(0, features, 32))
        assert units_of(features) == units
        assert splits_of(features) == max(n for n in (2, 4, 8) if n <= max(units, 2))
    for batch in range(1, 129):
        assert tiles(batch) == min(n for n in (2, 4, 8, 16) if 8 * n >= batch)
