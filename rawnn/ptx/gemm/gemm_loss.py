"""The loss in the epilogue of the last GEMM, and metrics that are summed off the critical path.

Normally a kernel between the last GEMM and the backward pass reads the GEMM's result, computes the
gradient, and sums the loss over its blocks. The GEMM's epilogue has the same values in registers.
Its blocks write partial sums of the loss, which a later kernel adds up, so the backward pass does
not wait for the loss.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from rawnn.common.errors import ConfigError
from rawnn.model.losses import LOSSES, Loss
from rawnn.plan.op import OPS, Attributes, Op, define
from rawnn.plan.ops.common import multiply
from rawnn.plan.ops.metrics import KIND as LOSS_SUMS
from rawnn.plan.ops.metrics import PARTS
from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Role, Tensor
from rawnn.ptx.family import Fusion
from rawnn.ptx.gemm.mma import PREDICTED, predicted
from rawnn.ptx.gemm.tiles import gemm_shape
from rawnn.ptx.kernel_registry import kernel_for

MIN_SAVING = 5000.0
"""Cycles by which a tile that spans whole rows may be slower: a separate loss kernel takes two to
four times as long, from the end of the GEMM ahead to its own."""
_OPTIONAL = ("bias", "t", "y", "loss_scale", "overflow", *PARTS)


@define("matmul_loss", reads=("a", "b", "bias", "t", "y", "cursor", "loss_scale", "overflow"),
        writes=("dz", "overflow", *PARTS), slotted=PARTS, optional=_OPTIONAL)
def matmul_loss(t: SimpleNamespace, a: Attributes) -> None:
    """The last layer's GEMM with bias, the gradient of the loss, and each block's partial sums."""
    z = a["alpha"] * multiply(a, t.a, t.b.T)
    if a["bias"]:
        z += t.bias
    OPS[LOSSES[a["loss"]].fused].reference(SimpleNamespace(**vars(t), z=z), a)


# -- plan rewrite ----------------------------------------------------------------------------------


def _with_parts(plan: Plan, op: Op, terms: int, metrics: Op) -> tuple[list[Op], list[Tensor]]:
    """`op` changed to write partial sums of its metrics, with the op behind it that adds them up as
    `metrics` does; and the tensors between the two."""
    columns, rows, _ = kernel_for(op).geometry(kernel_for(op).scalars(op, plan))[0]
    counted = [name for name in ("loss", "correct") if name in metrics.operands]
    tensors = [Tensor(f"{plan.name}.{name}_parts", (plan[name].shape[0], columns * rows),
                      plan[name].dtype, Role.METRIC, packed=True) for name in counted]
    parts = {f"{name}_parts": tensor.name for name, tensor in zip(counted, tensors, strict=True)}
    sums = Op(LOSS_SUMS, LOSS_SUMS,
              {**parts, "cursor": "cursor", **{name: metrics.operands[name] for name in counted}},
              {"terms": float(terms), "offset": metrics.attributes["offset"], "span": 1})
    return [replace(op, operands={**op.operands, **parts}), sums], tensors


def _terms(loss: Loss, rows: int, cols: int) -> int:
    """Number of terms that the loss is the mean of."""
    return rows if loss.labelled else rows * cols


def _into_gemm(plan: Plan) -> Plan | str:
    reason = "no loss in one pass behind a product by mma"
    for name, loss in LOSSES.items():
        for op in plan.find(kind=loss.fused):
            gemm = plan.producer(op.operands["z"], op)
            if gemm is None or gemm.kind != "matmul" or gemm.impl not in PREDICTED \
                    or len(plan.consumers(op.operands["z"])) > 1 or not _plain(gemm):
                continue
            if found := _joined(plan, gemm, op, name):
                return found
            reason = f"no tile spans {gemm.attributes['n']} columns, whose softmax is one, or " \
                     f"it would take longer than the loss by itself"
    return reason


def _plain(gemm: Op) -> bool:
    """Whether the loss is computed from the GEMM's result alone, and the GEMM stores nothing
    else."""
    a = gemm.attributes
    return a["layout"] == "nt" and a["beta"] == 0.0 and not a["activation"] and not a["slope"] \
        and a["compute"] != "float16" and "pre" not in gemm.operands


def _joined(plan: Plan, gemm: Op, op: Op, name: str) -> Plan | None:
    loss, a = LOSSES[name], gemm.attributes
    if not (loss.functor or loss.of_rows):
        return None
    attributes = {key: a[key] for key in ("m", "n", "k", "alpha", "bias", "compute")}
    operands = {role: of for role, of in (*gemm.operands.items(), *op.operands.items())
                if role in OPS["matmul_loss"].reads or role == "dz"}
    both = Op("matmul_loss", f"{gemm.name}.loss", operands,
              {**attributes, "loss": name, "offset": op.attributes["offset"]}, gemm.impl)
    try:
        longer = predicted(both.impl, gemm_shape(both, plan), plan.target) \
            - predicted(gemm.impl, gemm_shape(gemm, plan), plan.target)
    except ConfigError:  # no tile spans so many columns
        return None
    if longer > MIN_SAVING:
        return None
    ops, tensors = _with_parts(plan, both, _terms(loss, a["m"], a["n"]), op)
    return plan.with_tensors(*tensors).substitute([gemm, op], ops)


def _deferred(plan: Plan) -> Plan | str:
    if not plan.target.gpu:
        return "the plan is for the host"
    for loss in LOSSES.values():
        for kind in dict.fromkeys((loss.fused, *(("loss_gradient",) if loss.of_rows else ()))):
            for op in plan.find(kind=kind, impl="fused"):
                if "workspace" not in op.operands:
                    continue
                operands = {role: name for role, name in op.operands.items()
                            if role not in ("workspace", "loss", "correct")}
                rows, cols = plan[op.operands["dz"]].shape
                ops, tensors = _with_parts(plan, replace(op, operands=operands),
                                           _terms(loss, rows, cols), op)
                return plan.with_tensors(*tensors).substitute([op], ops)
    return "no loss by several blocks that gives a gradient too"


INTO_GEMM = Fusion("loss_product", "the loss and its gradient in the last product, by tensor cores",
                   _into_gemm)
DEFERRED_SUMS = Fusion("loss_sums",
                       "the loss of several blocks added up once for all steps of a graph",
                       _deferred)
