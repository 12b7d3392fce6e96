"""The part of `fuse` for the last layer of a network: product, softmax cross-entropy, input
gradient and update in one launch.

Between the last hidden layer's product and the input gradient that the hidden layers wait for stand
three small kernels, each of which waits for the one before. One cluster of blocks does their work
and the update's with one exchange of partial sums. Clusters need Hopper, so that it takes the place
of products that `mma` has taken there. With a loss scale the update may begin only when all
gradients are known, and the kernels stay apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rawnn.step.op import Op
from rawnn.step.ops.head import shared_bytes
from rawnn.step.plan import Plan

MAX_CLASSES = 64
MAX_BATCH = 128
OWN_SHARED = 27 << 10
"""Bytes of a block's shared memory that are left to the kernel's own."""


@dataclass(frozen=True)
class _Layer:
    """The ops of a last layer."""

    forward: Op
    loss: Op
    backward: Op
    update: Op

    @property
    def ops(self) -> tuple[Op, ...]:
        return self.forward, self.loss, self.backward, self.update


def rewrite(plan: Plan) -> Plan:
    """`plan` with softmax_head in place of the last layer's ops, where a kernel for it fits."""
    layer = _last_layer(plan)
    if layer is None or not (_linked(layer) and _kernel_fits(plan, layer)):
        return plan
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
    """The ops around a softmax cross-entropy whose operands nothing else touches."""
    for loss in plan.find(kind="softmax_loss_gradient"):
        forward = plan.producer(loss.operands["z"], loss)
        readers = plan.consumers(loss.operands["dz"])
        backward = next((op for op in readers if op.kind == "matmul"), None)
        update = next((op for op in readers if op.kind == "weight_update"), None)
        if forward and backward and update and len(readers) == 2 \
                and forward.kind == "matmul" and len(plan.consumers(loss.operands["z"])) == 1:
            return _Layer(forward, loss, backward, update)
    return None


def _linked(layer: _Layer) -> bool:
    """Whether it is one layer in one piece: bias in the product and the update, the slope that of
    the layer's inputs, nothing scaled."""
    forward, backward, update = layer.forward, layer.backward, layer.update
    f, b, u = forward.attributes, backward.attributes, update.attributes
    return (f["layout"], b["layout"]) == ("nt", "nn") \
        and all((a["alpha"], a["beta"], a["compute"]) == (1.0, 0.0, "float32") for a in (f, b)) \
        and not f["activation"] and not f["slope"] and not b["bias"] and not b["activation"] \
        and (backward.operands.get("saved") == forward.operands["a"] or not b["slope"]) \
        and forward.operands["b"] == backward.operands["b"] \
        == update.operands.get("copy", update.operands["w"]) \
        and update.operands["x"] == forward.operands["a"] \
        and forward.operands.get("bias") == update.operands.get("bias") \
        and u["compute"] == "float32" and u["copy_scale"] == 1.0 \
        and not {"loss_scale", "overflow"} & {*update.operands, *layer.loss.operands}


def _kernel_fits(plan: Plan, layer: _Layer) -> bool:
    """Products by `mma` on Hopper, of one 16-bit type; weights in float32 with a copy, or rounded
    by chance; as much of the layer as the blocks of a cluster hold."""
    forward, update = layer.forward, layer.update
    if not plan.target.has("clusters") or forward.impl not in ("mma", "wgmma", "skinny"):
        return False
    stored = {plan[name].dtype for name in (forward.operands["a"], forward.operands["b"],
                                            layer.loss.operands["dz"],
                                            layer.backward.operands["c"])}
    master, chance = plan[update.operands["w"]].dtype, update.attributes["stochastic"]
    copied = "copy" in update.operands and master == "float32" and not chance
    alone = "copy" not in update.operands and master == "bfloat16" and chance
    if len(stored) != 1 or not stored <= {"bfloat16", "float16"} or not (copied or alone):
        return False
    batch, features = plan[forward.operands["a"]].shape
    classes = plan[update.operands["w"]].shape[0]
    return batch <= MAX_BATCH and classes <= MAX_CLASSES \
        and shared_bytes(batch, features, classes, master == "float32") \
        <= plan.target.shared_per_block - OWN_SHARED
