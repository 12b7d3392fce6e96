"""The kernels of many networks, written for each op (rawnn/persistent/member_source.py)."""

from __future__ import annotations

import hashlib
from functools import cache

from rawnn.common.cuda_text import CudaText
from rawnn.persistent.layout import Layout
from rawnn.persistent.member_source import member_source
from rawnn.plan.op import Op
from rawnn.plan.ops.members import EVALUATE, SCORES, TRAIN
from rawnn.ptx.kernel_registry import GENERATED, KernelImpl, Shape, no_sizes, plain
from rawnn.ptx.persistent.persistent import QUICK


@cache
def _written(layout: Layout, kind: str, left: tuple[int, ...]) -> tuple[str, str]:
    """The kernel's name and text. The simulated GPU finds what a kernel means by its name, so that
    ops with another partial batch have kernels of another name."""
    number = " ".join(map(str, left))
    digest = hashlib.sha256(f"{number} {member_source(layout, kind)}".encode()).hexdigest()[:12]
    name = f"{kind}_{digest}"
    return name, member_source(layout, name)


def _shapes(op: Op, layout: Layout) -> dict[str, Shape]:
    p = layout.sharding.problem
    words = layout.workspaces(1)
    known: dict[str, Shape] = {
        "images": ("data_rows", str(p.layers[0])), "labels": ("data_rows",),
        "targets": ("target_rows", str(p.outputs)), "rows": ("folds*examples",),
        "counts": ("folds*2",),
        "mean": ("folds", str(p.layers[0])), "inverse_std": ("folds", str(p.layers[0])),
        "active": ("launched",), "members": ("networks", "ldmembers"),
        "rates": ("networks*span",), "clock": ("networks*2",), "loss": ("networks*span",),
        "loss_scale": ("networks*2",), "overflow": ("networks",),
        **dict.fromkeys(SCORES, ("networks", "epochs"))}
    if "tally" in words:
        known["tally"] = (f"{words['tally']}*networks*span",)
    if "optimizer_state" in words:
        known["optimizer_state"] = (f"{words['optimizer_state']}*networks",)
    if "parts" in words:
        known["parts"] = (f"{words['parts'] // 2}*networks",)
    for layer in range(1, p.depth + 1):
        rows = f"networks*{p.layers[layer]}"
        for state in ("", *(f"_{name}" for name in p.states)):
            known[f"w{layer}{state}"] = (rows, str(p.layers[layer - 1]))
            known[f"b{layer}{state}"] = (rows,)
    return {role: known[role] for role in op.operands}


def _impl(op: Op) -> KernelImpl:
    layout: Layout = op.attributes["layout"]
    d = layout.sharding
    name, text = _written(layout, op.kind, tuple(sorted(op.attributes["rests"]))
                          if "rests" in op.attributes else (int(op.attributes["left"]),))
    return KernelImpl(
        f"{name}.cu", name, plain, no_sizes,
        lambda s: ((int(s["launched"]) * d.tp_size, 1, 1), (d.threads, 1, 1)),
        _shapes(op, layout), shared=lambda s: layout.dynamic_bytes,
        cluster=lambda s: d.cluster_size, carveout=100,
        code=CudaText(text, QUICK))


GENERATED[TRAIN] = GENERATED[EVALUATE] = _impl
