"""The last layer with its softmax cross-entropy in one cluster of blocks (ptx/head.cu)."""

from __future__ import annotations

from rawnn.activations import functor
from rawnn.ptx.table import KernelImpl, Scalars, ceil, flag, register, types
from rawnn.ptx.updates import CONTEXT
from rawnn.step.op import Op
from rawnn.step.ops.head import WARPS, shared_bytes, splits_of, tiles, units_of
from rawnn.step.plan import Plan


def _sizes(op: Op, plan: Plan) -> Scalars:
    classes, features = plan[op.operands["w"]].shape
    return {"batch": plan[op.operands["a"]].shape[0], "features": features, "classes": classes,
            "share": ceil(units_of(features), splits_of(features))}


def _template(op: Op, plan: Plan) -> list[str]:
    s = _sizes(op, plan)
    columns = next(n for n in (1, 2, 4) if 16 * n >= s["classes"])
    return [*types(op, plan, "a", "w"), functor(str(op.attributes["slope"])),
            flag(op.attributes["stochastic"]), flag(s["features"] % 8 != 0),
            str(tiles(int(s["batch"]))), str(columns), str(WARPS)]


def _shared(s: Scalars) -> int:
    return shared_bytes(int(s["batch"]), int(s["features"]), int(s["classes"]),
                        s["itemsize_w"] == 4)


_WEIGHTS = ("classes", "features")

register("softmax_head", "fused", KernelImpl(
    "head.cu", "softmax_head", _template, _sizes,
    lambda s: ((splits_of(int(s["features"])), 1, 1), (32 * WARPS, 1, 1)),
    {"a": ("batch", "features"), "w": _WEIGHTS, "copy": _WEIGHTS, "bias": ("classes",),
     "y": ("batch",), "dx": ("batch", "features"), "loss": ("@1",), "correct": ("@1",),
     **{role: CONTEXT[role] for role in ("rates", "cursor", "clock")}},
    _shared, lambda s: splits_of(int(s["features"]))))
