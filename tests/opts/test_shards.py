"""Which gradients of several GPUs are computed in two halves, so that one is sent meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rawnn.cli.plan import assumed
from rawnn.common.target import gpu_named
from rawnn.engine.parallel import with_nccl
from rawnn.model.layers import Network
from rawnn.opts import select
from rawnn.opts.shards import Shards
from rawnn.plan.build import training_step
from rawnn.plan.policy import Policy
from rawnn.plan.recipe import DataSpec, Recipe
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


SHAPES = {"nt": ("mk", "nk"), "nn": ("mk", "kn"), "tn": ("km", "kn")}


WIDE, WIDER = (784, 2048, 1024, 2048, 10), (4096, 8192, 8192)


@pytest.mark.parametrize(("opt", "layers", "batch", "world", "part"), [
    ("best,bf16", WIDER, 4096, 2, ".sent"), ("best,bf16", WIDER, 4096, 4, ":1"),
    ("best,bf16,nccl=sharded", WIDE, 4096, 2, ""), ("best,bf16,sr", WIDER, 4096, 2, ".sent"),
    ("best,nccl=sharded", WIDE, 4096, 4, ""), ("best,bf16,nccl=sharded:1", WIDE, 64, 2, "")])
def test_products_are_of_the_sizes_of_what_they_read_and_write(
        opt: str, layers: tuple[int, ...], batch: int, world: int, part: str) -> None:
    """Also those of halves and shares of matrices, the ops of which end in `part`."""
    network, machine = Network(layers), assumed("H200")
    recipe, form = Recipe(batch, world_size=world, rank=1), DataSpec(60_000, scale=1 / 255)
    plan, _ = select(with_nccl(opt), network, recipe.steps(60_000), machine,
                     batch=recipe.share(batch).rows, recipe=recipe, data_spec=form,
                     ).apply(training_step(network, recipe, form))
    products = plan.find(kind="matmul")
    for op in products:
        sizes = {name: op.attributes[name] for name in "mnk"}
        for role, names in zip("abc", (*SHAPES[op.attributes["layout"]], "mn"), strict=True):
            shape = plan[op.operands[role]].shape
            assert shape == tuple(sizes[name] for name in names), (op.name, role)
    parts = {op.name[-2:] for op in products if op.name[-2] == ":" or op.name.endswith(".sent")}
    assert parts == {"": set(), ".sent": {"nt"}, ":1": {":0", ":1"}}[part]
