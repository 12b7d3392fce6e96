"""The part of `fuse` for networks of narrow layers: a step in two dependent launches.

Between a launch that holds the first layer's weights and one that does everything behind it, a
16-bit step of 784-128-128-128-10 takes two hand-overs where one kernel a product takes nine. The
kernels multiply on tensor cores, so they take the place of products that `mma` has taken. Other
losses, optimizers and number formats keep one kernel a product.
"""

from __future__ import annotations

from rawnn.activations import activation
from rawnn.step.op import Op
from rawnn.step.ops.narrow import FEATURES_A_SHARE, MAX_DEPTH, shared_bytes
from rawnn.step.plan import Plan
from rawnn.step.tensor import Role, Tensor

MAX_WIDTH = 256
"""Features of a hidden layer: a block has a warp for each 16."""
MAX_CLASSES = 64
MAX_BATCH = 128
"""Batch rows: a warp that updates weights takes 32 of them after another."""
SHARED_BYTES = (99 << 10) - 64
"""Shared memory of a block on every architecture from sm_80 on (sm_86, sm_89 and sm_120 have no
more), but for the barriers of its copies."""


def rewrite(plan: Plan, shared: int = SHARED_BYTES) -> Plan:
    """`plan` as narrow_input, narrow_inner and narrow_update, where it is the step of such a
    network; else as it is. `shared` is the largest shared memory of a block, in bytes."""
    depth = len(plan.find(kind="weight_update"))
    kinds = ["gather", *["matmul"] * depth, "softmax_loss_gradient", *["matmul"] * (depth - 1),
             *["weight_update"] * depth]
    if not 2 <= depth <= MAX_DEPTH or [op.kind for op in plan.ops] != kinds:
        return plan
    gather, loss = plan.ops[0], plan.ops[depth + 1]
    forward, updates = plan.ops[1 : depth + 1], plan.ops[-depth:]
    sizes = [plan[op.operands["w"]].shape[0] for op in updates]
    width = -(-max(sizes) // 32) * 32
    slots = max((n for n in range(1, max(depth - 2, 1) + 1)
                 if shared_bytes(depth, width, n, sizes[-1]) <= shared), default=0)
    if not (slots and width <= MAX_WIDTH and sizes[-1] <= MAX_CLASSES
            and plan.batch <= MAX_BATCH and _data_fits(plan, gather)
            and all(_layer_fits(plan, *pair) for pair in zip(forward, updates, strict=True))
            and _same(plan, forward, updates) and "loss_scale" not in loss.operands):
        return plan

    layers = list(enumerate(updates, 1))
    masters = {f"w{i}": op.operands["w"] for i, op in layers}
    copies = {f"c{i}": op.operands["copy"] for i, op in layers}
    biases = {f"b{i}": op.operands["bias"] for i, op in layers if "bias" in op.operands}
    dtype = plan[updates[0].operands["copy"]].dtype
    tensors = _between(plan.batch, depth * width, dtype,
                       -(-plan[masters["w1"]].shape[1] // FEATURES_A_SHARE) * sizes[0])
    between = {t.name.removeprefix("narrow."): t.name for t in tensors}
    place = {"offset": 0, "stride": gather.attributes["stride"], "dtype": dtype}
    data = {role: gather.operands[role] for role in ("images", "order", "cursor")
            if role in gather.operands}
    rates = {"rates": "rates"} if "rates" in updates[0].operands else {}
    metrics = {role: loss.operands[role] for role in ("loss", "correct")}
    first = Op("narrow_input", "narrow_input",
               {**data, "w1": masters["w1"], "partial": between["partial"]},
               {**place, "scale": gather.attributes["scale"]}, "fused")
    labels = {role: name for role, name in gather.operands.items()
              if role in ("labels", "order", "cursor")}
    del copies["c1"]
    second = Op("narrow_inner", "narrow_inner", {**labels, **between, **copies, **biases},
                {**place, "SLOTS": slots, "activation": forward[0].attributes["activation"]},
                "fused")
    copies["c1"] = updates[0].operands["copy"]
    del between["partial"]
    third = Op("narrow_update", "narrow_update",
               {**data, **between, **masters, **copies, **biases, **rates, **metrics},
               {**place, "scale": gather.attributes["scale"],
                **{k: updates[0].attributes[k] for k in ("lr", "decay")}}, "fused")
    return plan.with_tensors(*tensors).substitute(plan.ops, [first, second, third])


def _data_fits(plan: Plan, gather: Op) -> bool:
    """uint8 rows that begin at multiples of 4 bytes, and labels, without a normalisation."""
    images = plan[gather.operands["images"]]
    return set(gather.operands) <= {"images", "labels", "order", "cursor", "x", "y"} \
        and "labels" in gather.operands and images.dtype == "uint8" and images.ld % 4 == 0 \
        and gather.impl == "naive"


def _layer_fits(plan: Plan, forward: Op, update: Op) -> bool:
    """A 16-bit product by our tensor-core kernels with 32-bit sums, and plain SGD on a float32
    master."""
    a, operands = update.attributes, update.operands
    return forward.impl in ("mma", "wgmma") and forward.attributes["compute"] == "float32" \
        and a["compute"] == "float32" and not a["stochastic"] \
        and set(operands) <= {"dz", "x", "w", "bias", "copy", "rates", "cursor"} \
        and "copy" in operands and plan[operands["w"]].dtype == "float32" \
        and plan[operands["copy"]].dtype in ("bfloat16", "float16") \
        and plan[operands["dz"]].dtype == plan[operands["copy"]].dtype \
        and operands["copy"] == forward.operands["b"] \
        and forward.attributes["bias"] == ("bias" in operands)


def _same(plan: Plan, forward: tuple[Op, ...], updates: tuple[Op, ...]) -> bool:
    """Whether the layers differ in their sizes only, and the last has no activation."""
    between = {op.attributes["activation"] for op in forward[:-1]}
    return len(between) == 1 and activation_fits(between.pop()) \
        and not forward[-1].attributes["activation"] \
        and len({plan[op.operands["copy"]].dtype for op in updates}) == 1 \
        and len({(op.attributes["lr"], op.attributes["decay"], "rates" in op.operands)
                 for op in updates}) == 1


def activation_fits(name: str) -> bool:
    """Whether the slope follows from the output, all that narrow_inner keeps."""
    return bool(name) and activation(name).saves == "output"


def _between(batch: int, rows: int, dtype: str, partial: int) -> tuple[Tensor, ...]:
    """What the kernels hand over: [features, batch], 16-bit but for the first layer's sums."""
    return (
        Tensor("narrow.partial", (partial, batch), "float32", Role.ACTIVATION),
        Tensor("narrow.activations", (rows, batch), dtype, Role.ACTIVATION),
        Tensor("narrow.gradients", (rows, batch), dtype, Role.GRADIENT),
        Tensor("narrow.row_p", (batch,), "float32", Role.ACTIVATION),
        Tensor("narrow.row_correct", (batch,), "int32", Role.ACTIVATION),
    )
