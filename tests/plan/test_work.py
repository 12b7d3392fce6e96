"""How much ops do: whatever toggles make of a step, its products stay the same work."""

from __future__ import annotations

from itertools import pairwise

import pytest

from rawnn.model.layers import Network
from rawnn.opts import select
from rawnn.plan.op import OPS
from rawnn.plan.op_flops import GEMMS, gemms_of, op_precision, operations
from rawnn.plan.plan import Plan
from rawnn.ptx.kernel_registry import KERNELS
from tests.engine import CAPABLE, step_plan

NETWORKS = [((784, 10), 128), ((64, 48, 32, 10), 32), ((784, 256, 256, 10), 32),
            ((300, 1024, 1024, 10), 32)]
OPTS = ["none", "fuse,preload", "cublas", "tf32,mma,fuse,preload", "best,-persistent",
        "best,bf16,-persistent", "best,bf16", "best,sr", "persistent", "best,fp16"]


def rewritten(layers: tuple[int, ...], batch: int, opt: str) -> Plan:
    network = Network(layers)
    plan = step_plan(network, batch, 60 * batch)
    return select(opt, network, 60, CAPABLE).apply(plan)[0]


@pytest.mark.parametrize("opt", OPTS)
@pytest.mark.parametrize(("layers", "batch"), NETWORKS, ids=str)
def test_toggles_do_not_change_the_work(layers: tuple[int, ...], batch: int, opt: str) -> None:
    """Forward, and backward to weights, in each layer; backward to inputs in all but the first."""
    if opt == "persistent" and max(layers[1:]) > 256:
        pytest.skip("does not fit the chip")
    plan = rewritten(layers, batch, opt)
    found = sum(2 * m * n * k for op in plan.ops for m, n, k in gemms_of(op, plan))
    pairs = list(pairwise(layers))
    assert found == 2 * batch * (3 * sum(a * b for a, b in pairs)
                                 - pairs[0][0] * pairs[0][1])


def test_unrolled_steps_do_as_many_times_the_work() -> None:
    for opt in ("best,bf16,-persistent", "persistent"):
        once = rewritten((64, 48, 32, 10), 32, opt)
        several = once.unrolled(5)
        first = sum(operations(op, once) for op in once.ops if op.kind in GEMMS)
        assert sum(operations(op, several) for op in several.ops if op.kind in GEMMS) \
            == 5 * first


@pytest.mark.parametrize(("opt", "meant"), [
    ("fuse,preload", {"float32"}), ("tf32,mma,preload", {"tf32"}), ("bf16,mma,preload", {"bf16"}),
    ("fp16,mma,preload", {"fp16"}), ("fp8,mma,preload", {"fp8"}), ("best,bf16,-persistent",
                                                                   {"bf16"}),
    ("best,bf16,persistent", {"bf16"})])
def test_numbers_are_those_that_products_are_of(opt: str, meant: set[str]) -> None:
    plan = rewritten((64, 48, 32, 16), 32, opt)
    assert {op_precision(op, plan) for op in plan.ops if gemms_of(op, plan)} == meant


def test_every_kind_of_op_that_multiplies_is_known() -> None:
    """An op with weights, or with both factors of a product, among its operands multiplies."""
    multiplying = {key.kind for key in KERNELS
                   if {"a", "b"} <= set(OPS[key.kind].reads)
                   or {"dz", "x", "w"} <= set(OPS[key.kind].reads)
                   or {"images", "w"} <= set(OPS[key.kind].reads)
                   or {"a", "w"} <= set(OPS[key.kind].reads)
                   or key.kind.startswith("narrow_")}
    assert multiplying <= GEMMS.keys()
    assert GEMMS.keys() <= OPS.keys()


def test_other_ops_do_one_operation_for_each_element_that_they_write() -> None:
    plan = rewritten((64, 48, 10), 32, "none")
    (relu,) = plan.find(kind="activate")
    assert operations(relu, plan) == 32 * 48
    assert gemms_of(relu, plan) == []
