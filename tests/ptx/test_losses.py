"""The losses of many steps, of which each block has a part, as kernels add them up at their end: in
several rounds through shared memory that something else lay in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rawnn.cuda.compiling.signature import parse_kernels
from rawnn.plan.ops.metrics import KIND as LOSS_SUMS
from rawnn.plan.tensor import Role
from rawnn.ptx import SOURCES
from rawnn.ptx.kernel_registry import Key
from rawnn.ptx.kernels import KERNELS, kernel_for
from rawnn.ptx.losses import losses
from tests import requires
from tests.ptx.emulator.emulator import Kernels
from tests.ptx.emulator.plans import Case, Memory, build, launch, refer

HERE = Path(__file__).resolve().parent / "emulator"
STEPS, PARTS = 20, 24


def check_losses(sources: Path = SOURCES) -> None:
    twin = Kernels(("losses.cu",), ("add_up",), folders=(HERE,), sources=sources).build()
    rng = np.random.default_rng(3)
    losses = rng.standard_normal((STEPS, PARTS)).astype(np.float32)
    hits = rng.integers(0, 9, (STEPS, PARTS)).astype(np.int32)
    for seed in range(4):
        loss, right = np.zeros(STEPS, np.float32), np.zeros(STEPS, np.int32)
        twin.call("add_up", (3,), (64,), shared=1600, run=seed, losses=losses, hits=hits,
                  tally=np.zeros((STEPS, PARTS, 2), np.float32), ticket=np.zeros(1, np.uint32),
                  loss=loss, right=right, steps=STEPS)
        assert np.allclose(loss, losses.sum(1), atol=1e-5)
        assert np.array_equal(right, hits.sum(1))


@requires.GXX
def test_many_parts_are_added_up_in_rounds() -> None:
    check_losses()


SIZES = [(rows, cols) for rows in (1, 128, 4096, 4097, 16_385, 140_000)
         for cols in (1, 10, 32, 33, 1000)]


def takes_a_workspace(key: Key) -> bool:
    entry = KERNELS[key]
    return "workspace" in entry.shapes and any(
        parameter.name == "workspace" for parameter in
        parse_kernels((SOURCES / entry.source).read_text())[entry.name].parameters)


@pytest.mark.parametrize("key", list(filter(takes_a_workspace, KERNELS)), ids=str)
def test_every_block_has_its_places_in_the_workspace(key: Key) -> None:
    """A ticket, and two numbers of each block (metrics.cuh); a block alone uses none of them."""
    entry = KERNELS[key]
    places = int(entry.shapes["workspace"][0])
    many = 0
    for rows, cols in SIZES:
        for choice in range(entry.variants({"rows": rows, "cols": cols})):
            (blocks, *_), (threads, *_) = entry.geometry(
                {"rows": rows, "cols": cols, "choice": choice})
            assert blocks == 1 or 1 + 2 * blocks <= places, (rows, cols)
            assert threads % 32 == 0
            assert threads <= 1024
            many = max(many, blocks)
    assert many == (places - 1) // 2  # the largest grid there may be


@requires.GXX
@pytest.mark.parametrize(("layers", "batch", "loss", "opt"), [
    ((20, 31), 530, "cross_entropy", "preload"), ((20, 33), 141, "cross_entropy", "preload"),
    ((20, 33), 141, "cross_entropy", "preload,fuse"), ((20, 131), 41, "mse", "preload"),
    ((20, 131), 41, "mse", "preload,fuse"), ((20, 131), 41, "bce", "preload"),
    ((20, 131), 41, "bce", "preload,fuse")])
def test_few_blocks_take_all_rows_of_a_large_batch(
        monkeypatch: pytest.MonkeyPatch, layers: tuple[int, ...], batch: int, loss: str,
        opt: str) -> None:
    """As those of the largest grid do with more rows than they have threads or warps."""
    monkeypatch.setattr(losses, "MOST_BLOCKS", 2)
    plan = Case(layers, batch, opt, steps=1, network={"loss": loss}).plan()
    memory = Memory(plan, 5)
    several = [op for op in plan.ops if {"workspace", "loss_parts"} & set(op.operands)
               and op.kind != LOSS_SUMS]
    assert several
    twins = build([plan], tuple({kernel_for(op).name for op in several}))
    for op in plan.ops:
        wanted = refer(op, memory)
        if op in several:
            impl = kernel_for(op)
            assert impl.geometry(impl.scalars(op, plan))[0] == (2, 1, 1)
            launch(twins[impl.source], op, memory)
        for name, _ in op.writes:
            if op not in several:
                memory.store(name, wanted[name])
            elif plan[name].role is Role.SCRATCH:
                assert memory.view(name)[0] == 0  # the ticket, for the next launch
            else:
                found, right = (each[op.slots] if plan[name].role is Role.METRIC else each
                                for each in (memory.read(name), wanted[name]))
                if found.ndim == 2 and plan[name].role is Role.METRIC:
                    found, right = found.sum(1), right.sum(1)
                np.testing.assert_allclose(found, right, rtol=2e-5, atol=1e-7, err_msg=name)
