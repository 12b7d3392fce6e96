"""A whole step of a network of narrow layers in three ops that read the data set directly
(narrow.cu, narrow_inner.cu). The last op of a step can be merged with the first op of the next one
(rawnn/plan/merging.py).

One kernel computes the first layer and another one everything behind it. A 16-bit step of
784-128-128-128-10 then has two dependences between kernels, instead of nine with one kernel for
each GEMM. The kernels multiply on tensor cores, so they replace `mma` products only. Other losses,
optimizers and number formats keep one kernel for each GEMM.

Layers 1 to D have n1 .. nD features, none more than W = rows of `activations` / D. `activations`
and `gradients` are [D * W, B], features by batch: rows from (l - 1) * W on hold layer l. `partial`
is [S * n1, B]: row s * n1 + j is the contribution of the s-th group of 256 features to
pre-activation j of the first layer. `row_p` holds the probability of each row's class, or its
logarithm where that is no normal float32. Values are rounded to the type `dtype` where the kernels
store or multiply them; in the float64 oracle nothing is rounded.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from rawnn.common.dtypes import c_type, rounded
from rawnn.model.activations import activation, functor
from rawnn.model.losses.cross_entropy import gradient, log_loss, softmax_of
from rawnn.plan.merging import MERGES
from rawnn.plan.op import Attributes, Op, define
from rawnn.plan.ops.common import Array, batch_rows, step_of
from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Role, Tensor
from rawnn.ptx.family import Family, Fusion
from rawnn.ptx.kernel_registry import Geometry, KernelImpl, Scalars, Shape, ceil

MAX_DEPTH = 6
FEATURES_PER_GROUP = 256
"""Features of the first layer whose products one block sums: 8 warps of 32 features."""

ROWS_PER_BLOCK = 8
"""Batch rows that one block carries through all layers behind the first."""


def shared_bytes(depth: int, width: int, slots: int, classes: int) -> int:
    """Shared memory of such a block in bytes; it holds the weights of `slots` layers at a time."""
    head, pitch, warps = -(-classes // 16) * 16, width + 8, width // 16
    weights = (min(depth - 2, slots) * width + head) * pitch
    vectors = (2 * width + head) * ROWS_PER_BLOCK
    return 2 * (weights + vectors) + 4 * warps * ROWS_PER_BLOCK * (head + 4)


_LAYERS = range(1, MAX_DEPTH + 1)
_W = tuple(f"w{i}" for i in _LAYERS)
_C = tuple(f"c{i}" for i in _LAYERS)
_B = tuple(f"b{i}" for i in _LAYERS)


def _rounded(value: Array, a: Attributes) -> Array:
    return value if value.dtype == np.float64 else rounded(value, str(a["dtype"]))


def _given(t: SimpleNamespace, names: tuple[str, ...]) -> list[Array]:
    return [getattr(t, name) for name in names if hasattr(t, name)]


def _bias(t: SimpleNamespace, layer: int) -> Array | float:
    bias: Array | float = getattr(t, f"b{layer}", 0.0)
    return bias


def _store(block: Array, value: Array) -> None:
    """Write a layer's [B, n] values to its rows of a [D * W, B] tensor, padded with zeros."""
    block[: value.shape[1]], block[value.shape[1] :] = value.T, 0


def _first_layer_gemm(t: SimpleNamespace, a: Attributes, pixels: Array) -> None:
    """partial = the first layer's products with a batch, one set of rows for each feature group."""
    number = t.w1.dtype.type
    w, x = _rounded(t.w1, a), pixels.astype(number)
    for share in range(len(t.partial) // len(w)):
        columns = slice(share * FEATURES_PER_GROUP, (share + 1) * FEATURES_PER_GROUP)
        t.partial[share * len(w) : (share + 1) * len(w)] = \
            (w[:, columns] @ x[:, columns].T) * number(a["scale"])


@define("narrow_input", reads=("images", "order", "cursor", "w1"), writes=("partial",),
        optional=("order",))
def narrow_input(t: SimpleNamespace, a: Attributes) -> None:
    """partial = the first layer's product with the batch, from the uint8 data set."""
    _first_layer_gemm(t, a, t.images[batch_rows(t, a, t.partial.shape[1])])


@define("narrow_inner", reads=("partial", "labels", "order", "cursor", *_C[1:], *_B),
        writes=("activations", "gradients", "row_p", "row_correct"),
        optional=("order", *_C[2:], *_B))
def narrow_inner(t: SimpleNamespace, a: Attributes) -> None:
    """All layers behind the first, forward and backward, with softmax and loss, row by row."""
    copies = _given(t, _C)
    depth, between = len(copies) + 1, activation(a["activation"])
    width, first = len(t.activations) // depth, copies[0].shape[1]
    z = t.partial.reshape(-1, first, t.partial.shape[1]).sum(axis=0).T + _bias(t, 1)
    outputs = []
    for layer, w in enumerate(copies, 1):
        outputs.append(_rounded(np.asarray(between.function(z)), a))
        _store(t.activations[(layer - 1) * width :][:width], outputs[-1])
        z = outputs[-1] @ w.T + _bias(t, layer + 1)
    y = t.labels[batch_rows(t, a, len(z))].astype("int32")
    p = softmax_of(z)
    own = p[np.arange(len(y)), y]
    t.row_p[...] = np.where(own < np.finfo(np.float32).tiny, -log_loss(p, z, y), own)
    t.row_correct[...] = p.argmax(axis=1) == y
    dz = _rounded(gradient(p, y), a)
    for layer in range(depth, 0, -1):
        rows = width if layer < depth else -(-dz.shape[1] // 16) * 16
        _store(t.gradients[(layer - 1) * width :][:rows], dz)
        if layer > 1:
            slope = between.slope(outputs[layer - 2])
            dz = _rounded((dz @ copies[layer - 2]) * slope, a)


@define("narrow_update",
        reads=("images", "order", "cursor", "rates", "activations", "gradients", "row_p",
               "row_correct", *_W, *_B),
        writes=(*_W, *_C, *_B, "loss", "correct", "partial"), slotted=("loss", "correct"),
        optional=("order", "rates", "partial", *_W[2:], *_C, *_B))
def narrow_update(t: SimpleNamespace, a: Attributes) -> None:
    """SGD on all layers, and the batch's metrics; with `partial`, then the next narrow_input."""
    masters = _given(t, _W)
    depth, s, rows = len(masters), step_of(t, a), len(t.row_p)
    width, number = len(t.gradients) // depth, masters[0].dtype.type
    lr, decay = number(t.rates[s] if hasattr(t, "rates") else a["lr"]), number(a["decay"])
    below = t.images[batch_rows(t, a, rows)].astype(number)
    scale = number(a["scale"])
    for layer, w in enumerate(masters, 1):
        dz = t.gradients[(layer - 1) * width :][: len(w)]
        w -= lr * ((dz @ below) * scale + decay * w)
        if hasattr(t, f"c{layer}"):
            getattr(t, f"c{layer}")[...] = w
        if hasattr(t, f"b{layer}"):
            bias = getattr(t, f"b{layer}")
            bias -= lr * (dz.sum(axis=1) + decay * bias)
        below, scale = t.activations[(layer - 1) * width :][: len(w)].T, number(1)
    is_log = t.row_p < 0
    t.loss[s] = np.where(is_log, -t.row_p, -np.log(np.where(is_log, 1.0, t.row_p))).mean()
    t.correct[s] = t.row_correct.sum()
    if hasattr(t, "partial"):
        following = {**a, "offset": int(a.get("offset", 0)) + 1}
        _first_layer_gemm(t, a, t.images[batch_rows(t, following, rows)])


# -- plan rewrite ----------------------------------------------------------------------------------


MAX_WIDTH = 256
"""Largest hidden layer: a block has one warp for each 16 features."""
MAX_CLASSES = 64
MAX_BATCH = 128
"""Largest batch: a warp that updates weights processes 32 rows at a time."""
SHARED_BYTES = (99 << 10) - 64
"""Shared memory of a block that every architecture from sm_80 on has (sm_86, sm_89 and sm_120 have
no more), less the barriers of its copies."""


def rewrite(plan: Plan, shared: int = SHARED_BYTES) -> Plan | str:
    """`plan` with narrow_input, narrow_inner and narrow_update, or the reason why it is not such a
    step. `shared` is the largest shared memory of a block, in bytes."""
    depth = len(plan.find(kind="weight_update"))
    kinds = ["gather", *["matmul"] * depth, "softmax_loss_gradient", *["matmul"] * (depth - 1),
             *["weight_update"] * depth]
    if not 2 <= depth <= MAX_DEPTH or [op.kind for op in plan.ops] != kinds:
        return f"the step is not that of 2 to {MAX_DEPTH} layers with a fused softmax " \
               f"cross-entropy and plain SGD"
    gather, loss = plan.ops[0], plan.ops[depth + 1]
    forward, updates = plan.ops[1 : depth + 1], plan.ops[-depth:]
    sizes = [plan[op.operands["w"]].shape[0] for op in updates]
    width = -(-max(sizes) // 32) * 32
    slots = max((n for n in range(1, max(depth - 2, 1) + 1)
                 if shared_bytes(depth, width, n, sizes[-1]) <= shared), default=0)
    if width > MAX_WIDTH or sizes[-1] > MAX_CLASSES or plan.batch > MAX_BATCH or not slots:
        return f"layers of {width}, {sizes[-1]} classes, a batch of {plan.batch}; at most " \
               f"{MAX_WIDTH}, {MAX_CLASSES} and {MAX_BATCH}"
    if not _data_fits(plan, gather):
        return "its kernels take the data in uint8 and as they are"
    if not all(_layer_fits(plan, *pair) for pair in zip(forward, updates, strict=True)) \
            or "loss_scale" in loss.operands:
        return "its kernels take 16-bit products by mma with a float32 master, without a loss scale"
    if not _same(plan, forward, updates):
        return "the layers differ in more than their sizes"

    layers = list(enumerate(updates, 1))
    masters = {f"w{i}": op.operands["w"] for i, op in layers}
    copies = {f"c{i}": op.operands["copy"] for i, op in layers}
    biases = {f"b{i}": op.operands["bias"] for i, op in layers if "bias" in op.operands}
    dtype = plan[updates[0].operands["copy"]].dtype
    tensors = _between(plan.batch, depth * width, dtype,
                       -(-plan[masters["w1"]].shape[1] // FEATURES_PER_GROUP) * sizes[0])
    between = {role: t.name for role, t in tensors.items()}
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
    return plan.with_tensors(*tensors.values()).substitute(plan.ops, [first, second, third])


def _data_fits(plan: Plan, gather: Op) -> bool:
    """Whether rows are uint8 at multiples of 4 bytes, with labels and without normalization."""
    images = plan[gather.operands["images"]]
    return set(gather.operands) <= {"images", "labels", "order", "cursor", "x", "y"} \
        and "labels" in gather.operands and images.dtype == "uint8" and images.ld % 4 == 0 \
        and gather.impl == "naive"


def _layer_fits(plan: Plan, forward: Op, update: Op) -> bool:
    """Whether the layer has a 16-bit product by rawnn's tensor-core kernels with float32 sums, and
    plain SGD on a float32 master."""
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
    """Whether the layers differ only in their sizes, and the last has no activation."""
    between = {op.attributes["activation"] for op in forward[:-1]}
    return len(between) == 1 and activation_fits(between.pop()) \
        and not forward[-1].attributes["activation"] \
        and len({plan[op.operands["copy"]].dtype for op in updates}) == 1 \
        and len({(op.attributes["lr"], op.attributes["decay"], "rates" in op.operands)
                 for op in updates}) == 1


def activation_fits(name: str) -> bool:
    """Whether the slope follows from the output, which is all that narrow_inner stores."""
    return bool(name) and activation(name).saves == "output"


def _between(batch: int, rows: int, dtype: str, partial: int) -> dict[str, Tensor]:
    """The tensors between the kernels by operand: [features, batch], 16-bit except for the first
    layer's float32 partial sums."""
    return {
        "partial": Tensor("narrow.partial", (partial, batch), "float32", Role.ACTIVATION),
        "activations": Tensor("narrow.activations", (rows, batch), dtype, Role.ACTIVATION),
        "gradients": Tensor("narrow.gradients", (rows, batch), dtype, Role.GRADIENT),
        "row_p": Tensor("narrow.row_p", (batch,), "float32", Role.ACTIVATION),
        "row_correct": Tensor("narrow.row_correct", (batch,), "int32", Role.ACTIVATION),
    }


def _join(update: Op, following: Op) -> Op:
    """The update of a step and the first product of the next as one op."""
    name = f"{update.own_name}+{following.own_name}"
    return Op(update.kind, f"{name}@{update.offset}",
              {**update.operands, "partial": following.operands["partial"]}, update.attributes,
              update.impl, name)


MERGES["narrow_update", "narrow_input"] = _join


# -- launches --------------------------------------------------------------------------------------


PIECE_ROWS, PIECE_COLS, PIECE_WARPS = 16, 32, 8
"""Rows and columns of the weights that one warp of narrow_input or narrow_update holds, and the
warps of a block."""


def _layers(op: Op, plan: Plan, part: str) -> list[tuple[int, ...]]:
    """(outputs, inputs) of each layer of the operands named `part` and a number, such as "w1"."""
    return [plan[op.operands[f"{part}{i}"]].shape for i in _LAYERS if f"{part}{i}" in op.operands]


def _sizes(op: Op, plan: Plan) -> Scalars:
    """The template arguments by name, and the batch."""
    if op.kind == "narrow_inner":
        copies = _layers(op, plan, "c")
        outputs = [copies[0][1], *(rows for rows, _ in copies)]
        partial = plan[op.operands["partial"]].shape
        found: Scalars = {"SPLITS": partial[0] // outputs[0], "batch": partial[1]}
    else:
        masters = _layers(op, plan, "w")
        outputs, features = [rows for rows, _ in masters], masters[0][1]
        rows_of = "partial" if op.kind == "narrow_input" else "gradients"
        found = {"SPLITS": ceil(features, FEATURES_PER_GROUP), "FEATURES": features,
                 "STEPS": 2 if "partial" in op.operands else 1,
                 "batch": plan[op.operands[rows_of]].shape[1]}
    found["DEPTH"] = len(outputs)
    if "gradients" in op.operands:
        found["WIDTH"] = plan[op.operands["gradients"]].shape[0] // len(outputs)
    return {**found, **{f"SIZE{i}": outputs[i - 1] if i <= len(outputs) else 0 for i in _LAYERS}}


def _numbers(op: Op, plan: Plan, *names: str) -> list[str]:
    sizes = {**_sizes(op, plan), "SLOTS": op.attributes.get("SLOTS", 1)}
    return [str(sizes[name]) for name in names]


def _ordered(op: Op) -> str:
    return "true" if "order" in op.operands else "false"


_ALL = tuple(f"SIZE{i}" for i in _LAYERS)


def _input(op: Op, plan: Plan) -> list[str]:
    return [c_type(str(op.attributes["dtype"])), _ordered(op),
            *_numbers(op, plan, "SPLITS", "FEATURES", "SIZE1")]


def _inner(op: Op, plan: Plan) -> list[str]:
    return [c_type(str(op.attributes["dtype"])), functor(str(op.attributes["activation"])),
            c_type(plan[op.operands["labels"]].dtype), _ordered(op),
            *_numbers(op, plan, "SPLITS", "DEPTH", "WIDTH", "SLOTS", *_ALL)]


def _update(op: Op, plan: Plan) -> list[str]:
    return [c_type(str(op.attributes["dtype"])), _ordered(op),
            *_numbers(op, plan, "STEPS", "SPLITS", "DEPTH", "WIDTH", "FEATURES", *_ALL)]


def _blocks_of_first(s: Scalars) -> int:
    return ceil(s["SIZE1"], PIECE_ROWS) * int(s["SPLITS"])


def _update_geometry(s: Scalars) -> Geometry:
    pieces = sum(ceil(s[f"SIZE{i}"], PIECE_ROWS) * ceil(s[f"SIZE{i - 1}"], PIECE_COLS)
                 for i in range(2, int(s["DEPTH"]) + 1))
    blocks = _blocks_of_first(s) + ceil(pieces + 1, PIECE_WARPS)  # a warp for the metrics
    return (blocks, 1, 1), (32 * PIECE_WARPS, 1, 1)


def _inner_shared(s: Scalars) -> int:
    depth = int(s["DEPTH"])
    return shared_bytes(depth, int(s["WIDTH"]), int(s["SLOTS"]), int(s[f"SIZE{depth}"]))


_W_SHAPES: dict[str, Shape] = {
    "w1": ("SIZE1", "FEATURES"), **{f"w{i}": (f"SIZE{i}", f"SIZE{i - 1}") for i in _LAYERS[1:]}}
_C_SHAPES: dict[str, Shape] = {name.replace("w", "c"): shape for name, shape in _W_SHAPES.items()}
_B_SHAPES: dict[str, Shape] = {f"b{i}": (f"SIZE{i}",) for i in _LAYERS}
_BETWEEN: dict[str, Shape] = {
    "partial": ("SPLITS*SIZE1", "batch"), "activations": ("DEPTH*WIDTH", "batch"),
    "gradients": ("DEPTH*WIDTH", "batch"), "row_p": ("batch",), "row_correct": ("batch",)}
_STEP: dict[str, Shape] = {"cursor": ("1",), "loss": ("@1",), "correct": ("@1",), "rates": ("@1",)}

FAMILY = Family("narrow", f"the step of a network of 2 to {MAX_DEPTH} layers up to {MAX_WIDTH} "
                f"wide, batches up to {MAX_BATCH}",
                ("asynchronous copies",), Fusion(
    "narrow", "the whole step of a network of narrow layers with 16-bit weights, in three",
    rewrite))

FAMILY.register("narrow_input", "fused", KernelImpl(
    "fused/narrow.cu", "narrow_input", _input, _sizes,
    lambda s: ((_blocks_of_first(s), 1, 1), (32 * PIECE_WARPS, 1, 1)),
    {"images": ("@batch", "FEATURES"), "order": ("@batch",), "cursor": ("1",),
     "w1": _W_SHAPES["w1"], "partial": _BETWEEN["partial"]}))
FAMILY.register("narrow_inner", "fused", KernelImpl(
    "fused/narrow_inner.cu", "narrow_inner", _inner, _sizes,
    lambda s: ((ceil(s["batch"], ROWS_PER_BLOCK), 1, 1), (2 * int(s["WIDTH"]), 1, 1)),
    {"labels": ("@batch",), "order": ("@batch",), "cursor": ("1",), **_BETWEEN, **_C_SHAPES,
     **_B_SHAPES},
    shared=_inner_shared))
FAMILY.register("narrow_update", "fused", KernelImpl(
    "fused/narrow.cu", "narrow_update", _update, _sizes, _update_geometry,
    {"images": ("@batch*STEPS", "FEATURES"), "order": ("@batch*STEPS",), **_STEP, **_BETWEEN,
     **_W_SHAPES, **_C_SHAPES, **_B_SHAPES}))
