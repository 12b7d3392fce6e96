"""Which gradients of several GPUs are computed in two halves, so that one is sent meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rawnn.common.target import gpu_named
from rawnn.model.layers import Network
from rawnn.opts.shards import Shards
from rawnn.plan.policy import Policy
from tests.engine import step_plan

H100 = gpu_named("H100")
HALF = 256 * 128 * H100.multiprocessors
"""Elements of one tile of the largest size on each multiprocessor."""


@pytest.mark.parametrize(("rows", "cols", "dtype", "is_halved"), [
    (2 * 256, HALF // 256, "float32", True), (2 * 256, HALF // 256 - 1, "float32", False),
    (2 * 256, HALF // 256 + 1, "bfloat16", True), (2 * 128, HALF // 128, "bfloat16", True),
    (2 * 255, HALF // 128, "bfloat16", False),  # rows of 510 bytes do not lie on 16
    (2 * 252, HALF // 128, "float32", True), (2 * 252, HALF // 128, "bfloat16", False),
    (256, HALF // 256, "float32", False),
])
def test_halves_fill_the_gpu_and_are_aligned(rows: int, cols: int, dtype: str,
                                             is_halved: bool) -> None:
    plan = replace(step_plan(Network((8, 8)), 8, 32), target=H100)
    gemm = next(op for op in plan.find(kind="matmul") if op.attributes["layout"] == "tn")
    a, c = (plan[gemm.operands[role]] for role in "ac")
    plan = plan.with_tensors(replace(a, dtype=dtype), replace(c, shape=(rows, cols)))
    assert Shards(plan, Policy(), 1e9, False)._is_halved(gemm) == is_halved
