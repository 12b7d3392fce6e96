"""The kernel of whole steps of training, written for each op (rawnn/persistent)."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import cache

from rawnn.common.cuda_text import CudaText
from rawnn.persistent.choose import Choice
from rawnn.persistent.layout import Layout
from rawnn.persistent.source import source
from rawnn.persistent.streamed_source import streamed_source
from rawnn.plan.op import Op
from rawnn.plan.ops.train_steps import KIND, has_boundary
from rawnn.plan.plan import Plan
from rawnn.ptx.kernel_registry import GENERATED, KernelImpl, Shape, no_sizes, plain

NAME = "train_steps"
QUICK = ("--prec-div=false", "--prec-sqrt=false")
"""Divisions and roots are off by two units in the last place at most, and take a fifth of the time:
those of Adam are in every weight's update."""

IN_ITS_STEP = ("loss", "correct")


@cache
def _written(layout: Layout) -> tuple[str, str]:
    """The kernel's name, which no other text has, and its text."""
    write = streamed_source if layout.sharding.is_streamed else source
    digest = hashlib.sha256(write(layout, NAME).encode()).hexdigest()[:12]
    name = f"{NAME}_{digest}"
    return name, write(layout, name)


def _shapes(op: Op) -> dict[str, Shape]:
    step: Plan = op.attributes["step"]
    chosen: Choice = op.attributes["choice"]
    words = chosen.layout.workspaces(step["loss"].shape[0])
    sizes: dict[str, Shape] = {name: (str(count),) for name, count in words.items()}
    if has_boundary(op):
        sizes |= {"clock": ("2",), "order": ("count",)}
    return {role: sizes[role] if role in sizes else ("@span",) if role in IN_ITS_STEP
            else tuple(map(str, step[tensor].shape)) for role, tensor in op.operands.items()}


def _impl(op: Op) -> KernelImpl:
    layout: Layout = op.attributes["choice"].layout
    if "rest" in op.attributes:
        layout = layout.with_partial_batch()
    if has_boundary(op):
        layout = replace(layout, has_epoch_boundary=True)
    d = layout.sharding
    name, text = _written(layout)
    return KernelImpl(
        f"{name}.cu", name, plain, no_sizes, lambda s: ((d.blocks, 1, 1), (d.threads, 1, 1)),
        _shapes(op), shared=lambda s: layout.dynamic_bytes, cluster=lambda s: d.cluster_size,
        cooperative=d.dp_size > 1 or d.via_l2, code=CudaText(text, QUICK))


GENERATED[KIND] = _impl
