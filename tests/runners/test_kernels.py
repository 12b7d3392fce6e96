"""The table of kernels against the CUDA sources: names, arguments, constness, geometry."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rawnn import ptx
from rawnn.common.errors import ConfigError
from rawnn.cuda.compiling.signature import KernelSignature, Parameter, find_kernel, parse_kernels
from rawnn.cuda.launch import Value
from rawnn.engine.runners.arguments import kernel_arguments
from rawnn.graphs.unrolling import graph_plans
from rawnn.model.layers import Network
from rawnn.opts import select
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan
from rawnn.ptx.instance_text import with_instance_text
from rawnn.ptx.kernel_registry import EACH, NEUTRAL, SPREAD, Key
from rawnn.ptx.kernels import KERNELS, kernel_for
from tests.catalogue import cases
from tests.engine import CAPABLE, measuring_plan, step_plan


def signature_of(op: Op, plan: Plan) -> KernelSignature:
    impl = kernel_for(op)
    expression = impl.expression(op, plan)
    text = ptx.source_path(impl.source).read_text()
    kernels = parse_kernels(with_instance_text(text, [expression]))
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


def arguments_of(op: Op, plan: Plan, signature: KernelSignature) -> dict[str, Value]:
    addresses = {name: 256 * (i + 1) for i, name in enumerate(plan.tensors)}
    return kernel_arguments(op, plan, signature, addresses)


@pytest.mark.parametrize("key", sorted(KERNELS), ids="/".join)
def test_every_argument_of_every_kernel_has_a_value(key: Key) -> None:
    """The pointers are the op's operands, constant where it does not write them, and every number
    comes from the op or its sizes: without it, the launch is refused."""
    for case in cases()[key]:
        op, plan = case.op, case.plan
        signature = signature_of(op, plan)
        values = arguments_of(op, plan, signature)
        pointers = {p.name for p in signature.parameters if p.pointer}
        assert set(op.operands) == {p for p in pointers if values[p]}, op
        operands = {*op.spec.reads, *op.spec.writes} & pointers
        constant = {p.name for p in signature.parameters if p.pointer and p.const}
        assert operands & constant == operands - {*op.spec.writes}, op
        numbers = {k: v for k, v in op.attributes.items() if k in values and k not in pointers}
        assert numbers == {name: values[name] for name in numbers}, op
    for name in numbers:
        poorer = replace(op, attributes={k: v for k, v in op.attributes.items() if k != name})
        with pytest.raises((ConfigError, KeyError), match=name):
            arguments_of(poorer, plan, signature)


def product() -> tuple[Op, Plan, KernelSignature]:
    op, plan = next((o, p) for o, p in kernel_ops("none", (29, 7)) if o.kind == "matmul")
    return op, plan, signature_of(op, plan)


def test_a_parameter_that_nothing_fills_is_refused() -> None:
    op, plan, signature = product()
    number = replace(signature, parameters=(*signature.parameters,
                                            Parameter("gamma", "float", False, False)))
    with pytest.raises(ConfigError, match="nothing fills the parameter 'gamma' of the kernel"):
        arguments_of(op, plan, number)
    pointer = replace(signature, parameters=(*signature.parameters,
                                             Parameter("mask", "float", True, True)))
    with pytest.raises(ConfigError, match=r"'mask' .* kind matmul has no such operand"):
        arguments_of(op, plan, pointer)


@pytest.mark.parametrize("name", NEUTRAL)
def test_a_number_that_the_kernel_does_not_take_is_refused(name: str) -> None:
    op, plan, signature = product()
    poorer = replace(signature, parameters=tuple(
        p for p in signature.parameters if p.name != name))
    neutral = replace(op, attributes={**op.attributes, name: NEUTRAL[name]})
    assert name not in arguments_of(neutral, plan, poorer)
    other = replace(op, attributes={**op.attributes, name: 0.5})
    with pytest.raises(ConfigError, match=f"takes no '{name}', but the op .* has {name}=0.5"):
        arguments_of(other, plan, poorer)


@pytest.mark.parametrize("key", sorted(KERNELS), ids="/".join)
def test_geometry_is_within_the_limits_of_every_gpu(key: Key) -> None:
    for case in cases()[key]:
        op, plan = case.op, case.plan
        impl = kernel_for(op)
        grid, block = impl.geometry(impl.scalars(op, plan))
        assert all(g >= 1 for g in grid)
        assert grid[1] <= 65535
        assert grid[2] <= 65535
        threads = block[0] * block[1] * block[2]
        assert 1 <= threads <= 1024
        assert set(impl.shapes) >= set(op.operands)


@pytest.mark.parametrize(("batch", "features", "itemsize", "outputs", "blocks"), [
    (256, 784, 1, 0, 50), (128, 784, 4, 0, 99),  # 49 pieces of 16 bytes and a label; 196 and one
    (256, 784, 1, 10, 53), (1, 1, 1, 0, 1), (256, 17, 1, 1, 4)])
def test_a_gather_has_a_thread_for_each_piece_of_a_row(
        batch: int, features: int, itemsize: int, outputs: int, blocks: int) -> None:
    sizes = {"batch": batch, "features": features, "itemsize_x": itemsize, "outputs": outputs}
    assert KERNELS[Key("gather", "naive")].geometry(sizes) == ((blocks, 1, 1), (256, 1, 1))


@pytest.mark.parametrize(("key", "wide"), [
    (Key("sgd", "naive"), {"w": 4}), (Key("adam", "naive"), {"w": 2}),
    (Key("cast", "naive"), {"source": 4, "copy": 2}), (Key("bias_add", "naive"), {"z": 2}),
    (Key("activate", "naive"), {"z": 2, "a": 1}),
    (Key("activate_backward", "naive"), {"da": 2, "saved": 4, "dz": 2}),
    (Key("softmax_backward", "naive"), {"p": 4, "dz": 2})], ids=str)
def test_no_thread_of_an_elementwise_kernel_is_idle(key: Key, wide: dict[str, int]) -> None:
    """Threads as many as there are vectors, to the next block; several vectors a thread where
    there are many. A fourth of them once had work."""
    length = 16 // max(wide.values())
    impl = KERNELS[key]
    for rows, cols in ((1, 1), (1, 4096), (29, 13), (512, 512), (4096, 4096), (8192, 8191)):
        scalars = {"rows": rows, "cols": cols, **{f"itemsize_{r}": n for r, n in wide.items()}}
        vectors = rows * -(-cols // length)
        for choice in range(impl.variants(scalars)):
            (blocks, *_), (threads, *_) = impl.geometry({**scalars, "choice": choice})
            assert (blocks - 1) * threads < vectors
            assert vectors <= blocks * threads or blocks >= SPREAD
            assert blocks * threads * EACH >= vectors
