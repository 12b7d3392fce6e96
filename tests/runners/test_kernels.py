"""The table of kernels against the CUDA sources: names, arguments, constness, geometry."""

from __future__ import annotations

import pytest

from rawnn import ptx
from rawnn.network import Network
from rawnn.opts import select
from rawnn.ptx.signature import KernelSignature, find_kernel, parse_kernels
from rawnn.runners.graphplan import graph_plans
from rawnn.runners.kernels import kernel_arguments, kernel_for
from rawnn.step.op import OPS, Op
from rawnn.step.plan import Plan
from tests.engine import CAPABLE, GRAPHS, LADDER, measuring_plan, step_plan

SHAPES = [(784, 10), (29, 18, 7)]


def signature_of(op: Op, plan: Plan) -> KernelSignature:
    impl = kernel_for(op)
    expression = impl.expression(op, plan)
    kernels = parse_kernels(ptx.source_path(impl.source).read_text())
    return find_kernel(kernels, expression)


def kernel_ops(opt: str, layers: tuple[int, ...]) -> list[tuple[Op, Plan]]:
    network = Network(layers)
    selection = select(f"none,{opt}", network, 6, CAPABLE)
    found = []
    for build in (step_plan(network, 8, 50), measuring_plan(network, 8, 50)):
        plan, policy = selection.apply(build)
        plans = [g.plan for g in graph_plans(plan, policy, 6)] if policy.graph else [plan]
        found += [(op, p) for p in plans for op in p.ops
                  if op.kind != "upload" and op.impl not in ("cublas", "cudnn")]
    return found


@pytest.mark.parametrize("layers", SHAPES)
@pytest.mark.parametrize("opt", [*LADDER, *(f"preload,fuse,graphs={g}" for g in GRAPHS)])
def test_every_argument_of_every_kernel_has_a_value(opt: str, layers: tuple[int, ...]) -> None:
    for op, plan in kernel_ops(opt, layers):
        signature = signature_of(op, plan)
        addresses = {name: 256 * (i + 1) for i, name in enumerate(plan.tensors)}
        values = kernel_arguments(op, plan, signature, addresses)
        assert list(values) == [p.name for p in signature.parameters
                                if p.mapped not in op.operands]
        pointers = {p.name for p in signature.parameters if p.pointer}
        assert set(op.operands) == {p for p in pointers if values[p]}, op


@pytest.mark.parametrize("layers", SHAPES)
@pytest.mark.parametrize("opt", LADDER)
def test_constness_in_the_source_agrees_with_reads_and_writes(
    opt: str, layers: tuple[int, ...]
) -> None:
    for op, plan in kernel_ops(opt, layers):
        constant = {p.name for p in signature_of(op, plan).parameters if p.pointer and p.const}
        for operand in op.operands:
            assert (operand in constant) == (operand not in OPS[op.kind].writes), (op, operand)


@pytest.mark.parametrize("layers", SHAPES)
@pytest.mark.parametrize("opt", LADDER)
def test_geometry_is_within_the_limits_of_every_gpu(opt: str, layers: tuple[int, ...]) -> None:
    for op, plan in kernel_ops(opt, layers):
        impl = kernel_for(op)
        grid, block = impl.geometry(impl.scalars(op, plan))
        assert all(g >= 1 for g in grid)
        assert grid[1] <= 65535
        assert grid[2] <= 65535
        threads = block[0] * block[1] * block[2]
        assert 1 <= threads <= 1024
        assert set(impl.shapes) >= set(op.operands)
