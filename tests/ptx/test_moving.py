"""Kernels that only move numbers have threads for all that they move: what one of them moves is
bounded whatever the network, so that none goes round and round while the GPU waits."""

from __future__ import annotations

from math import prod

import pytest

from rawnn.model.layers import Network
from rawnn.model.optimizers import Optimizer
from rawnn.opts import select
from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Role
from rawnn.ptx.elementwise.epoch import MOST
from rawnn.ptx.kernel_registry import kernel_for
from tests.engine import CAPABLE, step_plan

SUMS = ("matmul", "softmax", "bias_grad", "bias_sgd")
"""Kinds whose threads add up."""
OUTSIDE = (Role.DATA, Role.METRIC, Role.EPOCH, Role.CURSOR, Role.SCRATCH)
"""Roles of what a step has a part of only."""
SELDOM = {("cross_entropy", "z"), ("loss_accuracy", "z"), ("loss_gradient", "z")}
"""Operands that kinds of ops read of few rows, if any."""
EACH = 192
"""Bytes that a thread may move: 16 of each operand in a trip, padding included, in about two."""

NETWORKS = (((33, 28, 764, 826), 252), ((46, 786, 40, 658, 345), 1200), ((576, 80, 112), 3712),
            ((17, 1000), 950), ((1000, 17), 4095), ((16, 1), 4096), ((784, 10), 128),
            ((10, 1024, 10), 3), ((5, 3), 1))


def plan_of(opt: str, layers: tuple[int, ...], batch: int, loss: str) -> Plan:
    network = Network(layers, loss=loss)
    return select(opt, network, 4, CAPABLE).apply(
        step_plan(network, batch, 4 * batch, optimizer=Optimizer("adam", 0.01)))[0]


@pytest.mark.parametrize("opt", ["preload", "preload,bf16,fuse", "preload,fp8"])
@pytest.mark.parametrize("loss", ["cross_entropy", "mse", "bce"])
def test_a_thread_moves_little_in_any_network(loss: str, opt: str) -> None:
    for layers, batch in NETWORKS:
        plan = plan_of(opt, layers, batch, loss)
        for op in plan.ops:
            if op.kind in SUMS:
                continue
            kernel = kernel_for(op)
            grid, block = kernel.geometry(kernel.scalars(op, plan))
            moved = sum(plan[name].nbytes for role, name in op.operands.items()
                        if plan[name].role not in OUTSIDE and (op.kind, role) not in SELDOM)
            assert moved <= EACH * prod(grid) * prod(block), (layers, batch, op.name, moved)


@pytest.mark.parametrize(("features", "outputs", "batch"), [
    (33, 826, 252), (1, 1024, 1), (576, 112, 3712), (1024, 1024, 4096), (784, 10, 128), (2, 1, 1)])
def test_threads_of_a_gather_go_round_as_often_as_each_other(features: int, outputs: int,
                                                             batch: int) -> None:
    """Once, where a GPU runs so many blocks at once; and no thread twice as often as another."""
    plan = plan_of("preload,bf16", (features, outputs), batch, "mse")
    op = plan.ops[0]
    kernel = kernel_for(op)
    (blocks, *_), (threads, *_) = kernel.geometry(kernel.scalars(op, plan))
    pieces = batch * (-(-features // 8) + -(-outputs // 4) + 1)
    trips = -(-pieces // (blocks * threads))
    assert blocks <= MOST
    assert trips == 1 or pieces > MOST * threads * (trips - 1)
    assert (blocks - 1) * threads * trips < pieces
