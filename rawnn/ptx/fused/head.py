"""The fused head: the last layer and its softmax cross-entropy, forward, backward and update, in
one cluster of thread blocks (head.cu).

Without it, three small kernels run one after the other between the last hidden layer's GEMM and the
input gradient that the hidden layers wait for. One cluster does their work and the weight update
with a single exchange of partial sums. With a loss scale the update must wait until all gradients
are known, so the rewrite does not apply.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np

from rawnn.common.dtypes import rounded
from rawnn.model.activations import activation, functor
from rawnn.model.losses.cross_entropy import gradient, log_loss, softmax_of
from rawnn.plan.op import OPS, Attributes, Op, define
from rawnn.plan.ops.common import step_of
from rawnn.plan.plan import Plan
from rawnn.ptx.family import Family, Fusion
from rawnn.ptx.kernel_registry import KernelImpl, Scalars, ceil, flag, types
from rawnn.ptx.optimizers.updates import CONTEXT

UNIT = 32
"""Features that one warp of the kernel processes at a time."""

WARPS = 8
MOST_SPLITS = 8
"""Blocks of the largest cluster that every GPU with clusters supports."""


def units_of(features: int) -> int:
    return -(-features // UNIT)


def splits_of(features: int) -> int:
    """Blocks that share the features: a power of two from 2 on, because partial sums are exchanged
    between the blocks of a cluster."""
    splits = 2
    while splits < MOST_SPLITS and 2 * splits <= units_of(features):
        splits *= 2
    return splits


def tiles(batch: int) -> int:
    """Groups of eight batch rows, the unit the kernel works in."""
    return next(tiles for tiles in (2, 4, 8, 16) if 8 * tiles >= batch)


def shared_bytes(batch: int, features: int, classes: int, master: bool) -> int:
    """Shared memory of a block, in bytes: activations, weights and update operands of its features,
    and the partial sums of the block and of all blocks."""
    splits = splits_of(features)
    unit = tiles(batch) * 512 + classes * (192 if master else 128)
    sums = 8 * tiles(batch) * 16 * -(-classes // 4)
    return -(-units_of(features) // splits) * unit + (WARPS + splits) * sums


@define("softmax_head", reads=("a", "w", "copy", "bias", "y", "rates", "cursor", "clock"),
        writes=("dx", "w", "copy", "bias", "loss", "correct"), slotted=("loss", "correct"),
        optional=("copy", "bias", "rates", "clock"))
def softmax_head(t: SimpleNamespace, a: Attributes) -> None:
    """The last layer's GEMM with bias, softmax_loss_gradient, input gradient and weight_update.

    The GEMMs read `copy` if there is one. dz is rounded to the type of a, as if it were stored.
    """
    s, w = step_of(t, a), t.copy if hasattr(t, "copy") else t.w
    z = t.a @ w.T + (t.bias if hasattr(t, "bias") else 0)
    p = softmax_of(z)
    t.loss[s] = log_loss(p, z, t.y).mean()
    t.correct[s] = np.count_nonzero(p.argmax(axis=1) == t.y)
    dz = gradient(p, t.y)
    if dz.dtype == np.float32:  # nothing is rounded in the float64 of the oracle
        dz = rounded(dz, a.get("stored", {}).get("a", "float32"))
    dx = dz @ w
    t.dx[...] = dx * activation(a["slope"]).slope(t.a) if a["slope"] else dx
    OPS["weight_update"].reference(SimpleNamespace(**vars(t), dz=dz, x=t.a), a)


# -- plan rewrite ----------------------------------------------------------------------------------


MAX_CLASSES = 64
MAX_BATCH = 128
OWN_SHARED = 27 << 10
"""Bytes of a block's shared memory reserved for the kernel's static arrays."""


@dataclass(frozen=True)
class _Layer:
    """The ops of the last layer."""

    forward: Op
    loss: Op
    backward: Op
    update: Op

    @property
    def ops(self) -> tuple[Op, ...]:
        return self.forward, self.loss, self.backward, self.update


def rewrite(plan: Plan) -> Plan | str:
    """`plan` with softmax_head in place of the last layer's ops, where a kernel for it fits."""
    layer = _last_layer(plan)
    if layer is None:
        return "no product, fused softmax cross-entropy, input gradient and update in a row"
    if reason := _not_one_layer(layer) or FAMILY.fits(plan.target) or _does_not_fit(plan, layer):
        return reason
    update, backward = layer.update.attributes, layer.backward
    operands = {**layer.update.operands, "a": layer.forward.operands["a"],
                "dx": backward.operands["c"],
                **{r: layer.loss.operands[r] for r in ("y", "cursor", "loss", "correct")}}
    del operands["dz"], operands["x"]
    head = Op("softmax_head", "softmax_head", operands,
              {**update, "slope": backward.attributes["slope"]}, "fused")
    ops = [head if op is layer.loss else op for op in plan.ops]
    return replace(plan, ops=tuple(op for op in ops if op not in layer.ops)).without_unused()


def _last_layer(plan: Plan) -> _Layer | None:
    """The ops around a softmax cross-entropy whose operands no other op touches."""
    for loss in plan.find(kind="softmax_loss_gradient"):
        forward = plan.producer(loss.operands["z"], loss)
        readers = plan.consumers(loss.operands["dz"])
        backward = next((op for op in readers if op.kind == "matmul"), None)
        update = next((op for op in readers if op.kind == "weight_update"), None)
        if forward and backward and update and len(readers) == 2 \
                and forward.kind == "matmul" and len(plan.consumers(loss.operands["z"])) == 1:
            return _Layer(forward, loss, backward, update)
    return None


def _not_one_layer(layer: _Layer) -> str:
    """Why the ops do not form one plain layer, or "". It needs the bias inside the product and the
    update, the slope of the layer's own inputs, and no scaling."""
    forward, backward, update = layer.forward, layer.backward, layer.update
    f, b, u = forward.attributes, backward.attributes, update.attributes
    if {"loss_scale", "overflow"} & {*update.operands, *layer.loss.operands}:
        return "with a loss scale the update waits until all gradients are known"
    if (f["layout"], b["layout"]) == ("nt", "nn") \
            and all((a["alpha"], a["beta"], a["compute"]) == (1.0, 0.0, "float32")
                    for a in (f, b)) \
            and not f["activation"] and not f["slope"] and not b["bias"] and not b["activation"] \
            and (backward.operands.get("saved") == forward.operands["a"] or not b["slope"]) \
            and forward.operands["b"] == backward.operands["b"] \
            == update.operands.get("copy", update.operands["w"]) \
            and update.operands["x"] == forward.operands["a"] \
            and forward.operands.get("bias") == update.operands.get("bias") \
            and u["compute"] == "float32" and u["copy_scale"] == 1.0:
        return ""
    return "the last layer is not in one piece, or its numbers are scaled or rounded on the way"


def _does_not_fit(plan: Plan, layer: _Layer) -> str:
    """Why the kernel cannot run the layer, or "". It needs `mma` products of one 16-bit type, and
    weights in float32 with a copy or stochastically rounded ones. The layer must fit into the
    shared memory of one cluster."""
    forward, update = layer.forward, layer.update
    if forward.impl not in ("mma", "wgmma", "skinny"):
        return "mma does not compute the last layer's product"
    stored = {plan[name].dtype for name in (forward.operands["a"], forward.operands["b"],
                                            layer.loss.operands["dz"],
                                            layer.backward.operands["c"])}
    master, stochastic = plan[update.operands["w"]].dtype, update.attributes["stochastic"]
    copied = "copy" in update.operands and master == "float32" and not stochastic
    alone = "copy" not in update.operands and master == "bfloat16" and stochastic
    if len(stored) != 1 or not stored <= {"bfloat16", "float16"} or not (copied or alone):
        return "its operands are not all of one 16-bit type"
    batch, features = plan[forward.operands["a"]].shape
    classes = plan[update.operands["w"]].shape[0]
    if batch > MAX_BATCH or classes > MAX_CLASSES:
        return f"a batch of {batch} and {classes} classes; at most {MAX_BATCH} and {MAX_CLASSES}"
    if shared_bytes(batch, features, classes, master == "float32") \
            > plan.target.shared_per_block - OWN_SHARED:
        return f"a cluster's shared memory does not hold {features} features of a batch of {batch}"
    return ""


# -- launches --------------------------------------------------------------------------------------


def _sizes(op: Op, plan: Plan) -> Scalars:
    classes, features = plan[op.operands["w"]].shape
    batch = plan[op.operands["a"]].shape[0]
    return {"batch": batch, "features": features, "classes": classes, "TILES": tiles(batch),
            "WARPS": WARPS, "share": ceil(units_of(features), splits_of(features))}


def _template(op: Op, plan: Plan) -> list[str]:
    s = _sizes(op, plan)
    columns = next(n for n in (1, 2, 4) if 16 * n >= s["classes"])
    return [*types(op, plan, "a", "w"), functor(str(op.attributes["slope"])),
            flag(op.attributes["stochastic"]), flag(s["features"] % 8 != 0),
            str(s["TILES"]), str(columns), str(s["WARPS"])]


def _shared(s: Scalars) -> int:
    return shared_bytes(8 * int(s["TILES"]), int(s["features"]), int(s["classes"]),
                        s["itemsize_w"] == 4)


FAMILY = Family("head", "the last layer with its softmax cross-entropy in one cluster of blocks, "
                f"up to {MAX_CLASSES} classes and batches up to {MAX_BATCH}",
                ("clusters",), Fusion(
    "head", "the last layer with its loss: product, softmax, gradients and update", rewrite))

_WEIGHTS = ("classes", "features")

FAMILY.register("softmax_head", "fused", KernelImpl(
    "fused/head.cu", "softmax_head", _template, _sizes,
    lambda s: ((splits_of(int(s["features"])), 1, 1), (32 * int(s["WARPS"]), 1, 1)),
    {"a": ("batch", "features"), "w": _WEIGHTS, "copy": _WEIGHTS, "bias": ("classes",),
     "y": ("batch",), "dx": ("batch", "features"), "loss": ("@1",), "correct": ("@1",),
     **{role: CONTEXT[role] for role in ("rates", "cursor", "clock")}},
    _shared, lambda s: splits_of(int(s["features"]))))
