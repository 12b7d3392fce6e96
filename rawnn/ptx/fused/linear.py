"""A whole step of a one-layer network in two ops that read the data set directly (linear.cu), and
the sum of split-K slices with its update (slices.cu)."""

from __future__ import annotations

from types import SimpleNamespace

from rawnn.model.losses.cross_entropy import gradient, log_loss, softmax_of
from rawnn.plan.op import Attributes, Op, define
from rawnn.plan.ops.common import Array, batch_rows, step_of
from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Role, Tensor
from rawnn.ptx.family import Family, Fusion
from rawnn.ptx.kernel_registry import KernelImpl, Scalars, Shape, ceil, typed

MAX_FUSED_CLASSES = 32
"""Classes that the kernels of linear.cu keep in registers, with one accumulator each."""


def _batch(t: SimpleNamespace, a: Attributes, rows: Array) -> tuple[object, Array]:
    window = batch_rows(t, a, len(rows))
    return window, t.images[window] * t.w.dtype.type(a["scale"])


@define("linear_forward", reads=("images", "labels", "order", "cursor", "w", "bias"),
        writes=("dz", "row_loss", "row_correct"), optional=("order",))
def linear_forward(t: SimpleNamespace, a: Attributes) -> None:
    """Gather, product, bias, softmax, loss and gradient of a one-layer network, row by row."""
    window, x = _batch(t, a, t.row_loss)
    y = t.labels[window].astype("int32")
    z = x @ t.w.T + t.bias
    p = softmax_of(z)
    t.dz[...] = gradient(p, y)
    t.row_loss[...] = log_loss(p, z, y)
    t.row_correct[...] = p.argmax(axis=1) == y


@define("linear_update",
        reads=("images", "order", "cursor", "dz", "row_loss", "row_correct", "w", "bias", "rates"),
        writes=("w", "bias", "loss", "correct"), slotted=("loss", "correct"),
        optional=("order", "rates"))
def linear_update(t: SimpleNamespace, a: Attributes) -> None:
    """Weight and bias gradients of a one-layer network, the SGD update, and the batch's metrics."""
    _, x = _batch(t, a, t.row_loss)
    s = step_of(t, a)
    number = t.w.dtype.type
    lr, decay = number(t.rates[s] if hasattr(t, "rates") else a["lr"]), number(a["decay"])
    t.w -= lr * (t.dz.T @ x + decay * t.w)
    t.bias -= lr * (t.dz.sum(axis=0) + decay * t.bias)
    t.loss[s] = t.row_loss.mean()
    t.correct[s] = t.row_correct.sum()


# -- plan rewrite ----------------------------------------------------------------------------------


def _rewrite(plan: Plan) -> Plan | str:
    """`plan` with linear_forward and linear_update, or the reason why it is not such a step."""
    kinds = [op.kind for op in plan.ops]
    if kinds != ["gather", "matmul", "softmax_loss_gradient", "weight_update"]:
        return "the step is not that of one layer with a fused softmax cross-entropy and plain SGD"
    gather, forward, loss, update = plan.ops
    classes = plan[forward.operands["c"]].shape[1]
    if {forward.impl, update.impl} not in ({"naive"}, {"mma"}):
        return f"the products are {forward.impl}'s"
    if classes > MAX_FUSED_CLASSES:
        return f"{classes} classes; its kernels hold at most {MAX_FUSED_CLASSES} in registers"
    if not set(update.operands) <= {"dz", "x", "w", "bias", "rates", "cursor"} \
            or "bias" not in update.operands or "mean" in gather.operands \
            or {plan[gather.operands[r]].dtype for r in ("images", "labels")} != {"uint8"} \
            or {plan[o].dtype for o in ("x", forward.operands["b"])} != {"float32"} \
            or forward.attributes["compute"] != "float32":
        return "its kernels take uint8 data as they are, float32 weights with a bias, and plain SGD"
    rows = (
        Tensor("row_loss", (plan.batch,), "float32", Role.ACTIVATION),
        Tensor("row_correct", (plan.batch,), "int32", Role.ACTIVATION),
    )
    data = {"images": gather.operands["images"], "cursor": "cursor",
            **{role: name for role, name in gather.operands.items() if role == "order"}}
    shared = {"w": update.operands["w"], "bias": update.operands["bias"],
              "dz": loss.operands["dz"], "row_loss": "row_loss", "row_correct": "row_correct"}
    place = {k: gather.attributes[k] for k in ("offset", "stride", "scale")}
    first = Op("linear_forward", "linear_forward",
               {**data, "labels": gather.operands["labels"], **shared}, place, "fused")
    rates = {"rates": "rates"} if "rates" in update.operands else {}
    second = Op("linear_update", "linear_update",
                {**data, **shared, **rates, "loss": loss.operands["loss"],
                 "correct": loss.operands["correct"]},
                {**place, "lr": update.attributes["lr"], "decay": update.attributes["decay"]},
                "fused")
    return plan.with_tensors(*rows).substitute(plan.ops, [first, second])


# -- launches --------------------------------------------------------------------------------------


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


FAMILY = Family("linear", f"the step of a one-layer network of up to {MAX_FUSED_CLASSES} classes",
                (), Fusion(
    "linear", "the whole step of a one-layer network, in two", _rewrite))
SLICES = Family("slices", "the sum of a product's slices, and the update from it")

FAMILY.register("linear_forward", "fused", KernelImpl(
    "fused/linear.cu", "linear_forward", _template, _sizes,
    lambda s: ((int(s["batch"]), 1, 1), (min(ceil(s["features"], 128) * 32, 256), 1, 1)), _SHAPES))
FAMILY.register("linear_update", "fused", KernelImpl(
    "fused/linear.cu", "linear_update", _template, _sizes,
    lambda s: ((ceil(s["features"], 8) + 1, 1, 1), (64 * ceil(s["CLASSES"], 2), 1, 1)), _SHAPES))
SLICES.register("slices_sgd", "fused", KernelImpl(
    "gemm/slices.cu", "slices_sgd", typed("dz", "copy"),
    lambda op, plan: {"rows": plan[op.operands["w"]].shape[0],
                      "cols": plan[op.operands["w"]].shape[1],
                      "batch": plan[op.operands["dz"]].shape[0]},
    lambda s: ((ceil(s["rows"] * s["cols"], 128) + int(s["rows"]), 1, 1), (128, 1, 1)),
    {"partial": ("slices*rows", "cols"), "w": ("rows", "cols"), "copy": ("rows", "cols"),
     "dz": ("batch", "rows"), "bias": ("rows",), "rates": ("@1",), "cursor": ("1",)}))
