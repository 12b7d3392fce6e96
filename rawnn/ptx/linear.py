"""The two kernels of a one-layer network's step, and the sum of slices with its update."""

from __future__ import annotations

from rawnn.ptx.table import KernelImpl, Scalars, Shape, ceil, register, typed
from rawnn.step.op import Op
from rawnn.step.plan import Plan

_SHAPES: dict[str, Shape] = {
    "images": ("@batch", "features"), "labels": ("@batch",), "order": ("@batch",),
    "cursor": ("1",), "w": ("CLASSES", "features"), "bias": ("CLASSES",),
    "dz": ("batch", "CLASSES"), "row_loss": ("batch",), "row_correct": ("batch",),
    "loss": ("@1",), "correct": ("@1",), "rates": ("@1",),
}


def _sizes(op: Op, plan: Plan) -> Scalars:
    classes, features = plan[op.operands["w"]].shape
    return {"batch": plan[op.operands["row_loss"]].shape[0], "features": features,
            "CLASSES": classes}


def _template(op: Op, plan: Plan) -> list[str]:
    return [str(plan[op.operands["w"]].shape[0]), "true" if "order" in op.operands else "false"]


register("linear_forward", "fused", KernelImpl(
    "linear.cu", "linear_forward", _template, _sizes,
    lambda s: ((int(s["batch"]), 1, 1), (min(ceil(s["features"], 128) * 32, 256), 1, 1)), _SHAPES))
register("linear_update", "fused", KernelImpl(
    "linear.cu", "linear_update", _template, _sizes,
    lambda s: ((ceil(s["features"], 8) + 1, 1, 1), (64 * ceil(s["CLASSES"], 2), 1, 1)), _SHAPES))
register("slices_sgd", "fused", KernelImpl(
    "slices.cu", "slices_sgd", typed("dz", "copy"),
    lambda op, plan: {"rows": plan[op.operands["w"]].shape[0],
                      "cols": plan[op.operands["w"]].shape[1],
                      "batch": plan[op.operands["dz"]].shape[0]},
    lambda s: ((ceil(s["rows"] * s["cols"], 128) + int(s["rows"]), 1, 1), (128, 1, 1)),
    {"partial": ("slices*rows", "cols"), "w": ("rows", "cols"), "copy": ("rows", "cols"),
     "dz": ("batch", "rows"), "bias": ("rows",), "rates": ("@1",), "cursor": ("1",)}))
