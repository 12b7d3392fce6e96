"""Kernels of the optimizers' updates."""

from __future__ import annotations

from rawnn.model.optimizers import UPDATE_RULES
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan
from rawnn.ptx.family import Family
from rawnn.ptx.gemm.plain_gemm import BLOCKS, accumulator
from rawnn.ptx.instance_text import UPDATES_SOURCE
from rawnn.ptx.kernel_registry import (
    KernelImpl,
    Scalars,
    Shape,
    in_blocks,
    matrix,
    typed,
    types,
    vectors,
)

FAMILY = Family("updates", "optimizer steps")

_MATRIX: Shape = ("rows", "cols")
CONTEXT: dict[str, Shape] = {"rates": ("@1",), "cursor": ("1",), "clock": ("2",),
                             "loss_scale": ("2",), "overflow": ("1",)}
"""Operands that every update may have."""


def _updated(op: Op, plan: Plan) -> Scalars:
    """Sizes of the updated part; a rank's gradient covers all of it unless it says otherwise."""
    return {**matrix("w")(op, plan), "share": op.attributes.get("share", 1.0),
            "other_share": op.attributes.get("other_share", 0.0)}


def register_update(family: Family, name: str, source: str, *state: str) -> None:
    """Add the kernel of an optimizer's step, the op `name`. Its parameters are those of sgd.cu;
    `state` names the further tensors it stores for each weight."""
    shapes = dict.fromkeys(("w", "dw", "other", "copy", *state), _MATRIX)
    family.register(name, "naive", KernelImpl(
        source, name, typed("w", "dw", "copy"), _updated, vectors("w"), {**shapes, **CONTEXT}))


for _rule in UPDATE_RULES.values():
    _source = UPDATES_SOURCE if _rule.code else f"optimizers/{_rule.kind}.cu"
    register_update(FAMILY, _rule.kind, _source, *_rule.keeps)


def gemm_sizes(op: Op, plan: Plan) -> Scalars:
    """Sizes of a weight update: w [m, n], summed over the k rows of a batch."""
    m, n = plan[op.operands["w"]].shape
    return {"m": m, "n": n, "k": plan[op.operands["dz"]].shape[0]}


WEIGHT_UPDATE_SHAPES: dict[str, Shape] = {
    "dz": ("k", "m"), "x": ("k", "n"), "w": ("m", "n"), "bias": ("m",), "copy": ("m", "n"),
    **CONTEXT,
}


FAMILY.register("weight_update", "naive", KernelImpl(
    "optimizers/weight_update.cu", "weight_update",
    lambda op, plan: [*types(op, plan, "x", "w", "copy", "dz"), accumulator(op)], gemm_sizes,
    in_blocks(*BLOCKS), WEIGHT_UPDATE_SHAPES))
FAMILY.register("cast", "naive", KernelImpl(
    "elementwise/cast.cu", "cast", typed("source", "copy"), matrix("copy"), vectors("source",
                                                                                    "copy"),
    {"source": _MATRIX, "copy": _MATRIX}))
