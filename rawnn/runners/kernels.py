"""Which CUDA kernel runs an op, and how it is launched.

A kernel's pointer parameters carry the names of the op's operands and its `ld<operand>` parameters
are their leading dimensions, so both are filled in from the plan. What is left are the scalars and
the geometry, which this table gives for every (kind, impl).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rawnn.cuda.launch import Dim
from rawnn.errors import ConfigError
from rawnn.ptx.signature import KernelSignature
from rawnn.step.op import Op
from rawnn.step.plan import Plan

Scalars = dict[str, int | float]
Shape = tuple[str, ...]
"""Extents of an operand: numbers, or names of the kernel's scalar parameters and their products.
A leading "@" marks the rows (or the one element) that belong to the current step: "@batch" are rows
s*batch to s*batch + batch - 1, "@1" is element s."""


@dataclass(frozen=True)
class KernelImpl:
    """How one (kind, impl) is launched.

    `scalars(op, plan)` gives the parameters that are neither operands nor leading dimensions,
    and what else the geometry depends on;
    `geometry(scalars)` the grid and block; `expression(op, plan)` the template instance;
    `shapes` the extents of every operand, which the simulated device and the tests go by.
    """

    source: str
    expression: Callable[[Op, Plan], str]
    scalars: Callable[[Op, Plan], Scalars]
    geometry: Callable[[Scalars], tuple[Dim, Dim]]
    shapes: Mapping[str, Shape]


def _ceil(a: int | float, b: int) -> int:
    return -(-int(a) // b)


def _instance(name: str) -> Callable[[Op, Plan], str]:
    return lambda op, plan: f"{name}<float>"


def _matrix(operand: str) -> Callable[[Op, Plan], Scalars]:
    """rows and cols of one operand, with the op's own offset and lr where it has them."""

    def scalars(op: Op, plan: Plan) -> Scalars:
        rows, cols = plan[op.operands[operand]].shape
        found: Scalars = {"rows": rows, "cols": cols}
        found.update({k: op.attributes[k] for k in ("offset", "lr") if k in op.attributes})
        return found

    return scalars


def _as_matrix(operand: str) -> Callable[[Op, Plan], Scalars]:
    """As `_matrix`, with a vector taken as one row."""

    def scalars(op: Op, plan: Plan) -> Scalars:
        shape = plan[op.operands[operand]].shape
        rows, cols = shape if len(shape) == 2 else (1, *shape)
        return {"rows": rows, "cols": cols, "lr": op.attributes["lr"]}

    return scalars


def _elements(threads: int = 256) -> Callable[[Scalars], tuple[Dim, Dim]]:
    return lambda s: ((_ceil(s["rows"] * s["cols"], threads), 1, 1), (threads, 1, 1))


def _rows_by_warp(s: Scalars) -> tuple[Dim, Dim]:
    return (_ceil(s["rows"], 4), 1, 1), (128, 1, 1)


def _one_block(s: Scalars) -> tuple[Dim, Dim]:
    """One block of at most 1,024 threads, as the batch is summed in a fixed order: a thread a row,
    a warp where rows are wider than a thread keeps in registers (loss.cu)."""
    lanes = 1 if s["cols"] <= 32 else 32
    return (1, 1, 1), (min(_ceil(s["rows"] * lanes, 32) * 32, 1024), 1, 1)


def _columns(s: Scalars) -> tuple[Dim, Dim]:
    return (int(s["cols"]), 1, 1), (128, 1, 1)


_BATCH_METRICS: dict[str, Shape] = {"y": ("rows",), "cursor": ("1",)}


def _matmul_scalars(op: Op, plan: Plan) -> Scalars:
    return {k: op.attributes[k] for k in ("m", "n", "k", "alpha", "beta")}


def _matmul_expression(op: Op, plan: Plan) -> str:
    layout = op.attributes["layout"]
    if layout != "nt":
        return f"matmul_{layout}<float>"
    return f"matmul_nt<float,{_flags(op)}>"


def _flags(op: Op) -> str:
    return ",".join("true" if op.attributes[f] else "false" for f in ("bias", "relu"))


def _linear_expression(name: str) -> Callable[[Op, Plan], str]:
    return lambda op, plan: f"{name}<{plan[op.operands['w']].shape[0]}>"


def _linear_scalars(*names: str) -> Callable[[Op, Plan], Scalars]:
    def scalars(op: Op, plan: Plan) -> Scalars:
        batch = plan[op.operands["row_loss"]].shape[0]
        features = plan[op.operands["w"]].shape[1]
        classes = plan[op.operands["w"]].shape[0]
        return {"batch": batch, "features": features, "CLASSES": classes,
                **{n: op.attributes[n] for n in names}}

    return scalars


_MATMUL_SHAPES: dict[str, dict[str, Shape]] = {
    "nt": {"a": ("m", "k"), "b": ("n", "k"), "bias": ("n",), "c": ("m", "n")},
    "nn": {"a": ("m", "k"), "b": ("k", "n"), "c": ("m", "n")},
    "tn": {"a": ("k", "m"), "b": ("k", "n"), "c": ("m", "n")},
}
_LINEAR_SHAPES: dict[str, Shape] = {
    "images": ("@batch", "features"), "labels": ("@batch",), "cursor": ("1",),
    "w": ("CLASSES", "features"), "bias": ("CLASSES",), "dz": ("batch", "CLASSES"),
    "row_loss": ("batch",), "row_correct": ("batch",), "loss": ("@1",), "correct": ("@1",),
}


def _matmul(layout: str) -> KernelImpl:
    return KernelImpl(
        "matmul.cu", _matmul_expression, _matmul_scalars,
        lambda s: ((_ceil(s["n"], 16), _ceil(s["m"], 16), 1), (16, 16, 1)),
        _MATMUL_SHAPES[layout],
    )


def _on_probabilities(name: str, **written: Shape) -> KernelImpl:
    source = "z" if name.startswith("softmax_loss") else "p"
    return KernelImpl("loss.cu", _instance(name), _matrix(source), _one_block,
                      {source: ("rows", "cols"), **_BATCH_METRICS, **written})


_DZ: Shape = ("rows", "cols")
_HERE: Shape = ("@1",)

KERNELS: dict[tuple[str, str], KernelImpl] = {
    ("gather", "naive"): KernelImpl(
        "gather.cu", _instance("gather"),
        lambda op, plan: {
            "offset": op.attributes["offset"], "scale": op.attributes["scale"],
            "batch": plan[op.operands["x"]].shape[0], "features": plan[op.operands["x"]].shape[1],
        },
        lambda s: ((_ceil(s["batch"] * s["features"], 4 * 256), 1, 1), (256, 1, 1)),
        {"images": ("@batch", "features"), "labels": ("@batch",), "cursor": ("1",),
         "x": ("batch", "features"), "y": ("batch",)},
    ),
    ("matmul nt", "naive"): _matmul("nt"),
    ("matmul nn", "naive"): _matmul("nn"),
    ("matmul tn", "naive"): _matmul("tn"),
    ("sum_slices", "naive"): KernelImpl(
        "slices.cu",
        lambda op, plan: "sum_slices<float," + _flags(op) + ">",
        lambda op, plan: {"slices": op.attributes["slices"],
                          "rows": plan[op.operands["c"]].shape[0],
                          "cols": plan[op.operands["c"]].shape[1]},
        _elements(64),
        {"partial": ("slices*rows", "cols"), "bias": ("cols",), "c": ("rows", "cols")}),
    ("slices_sgd", "fused"): KernelImpl(
        "slices.cu", _instance("slices_sgd"),
        lambda op, plan: {"slices": op.attributes["slices"], "lr": op.attributes["lr"],
                          "rows": plan[op.operands["w"]].shape[0],
                          "cols": plan[op.operands["w"]].shape[1],
                          "batch": plan[op.operands["dz"]].shape[0],
                          "steps": op.attributes.get("steps", 0)},
        lambda s: ((_ceil(s["rows"] * s["cols"], 128) + int(s["rows"]), 1, 1), (128, 1, 1)),
        {"partial": ("slices*rows", "cols"), "w": ("rows", "cols"), "dz": ("batch", "rows"),
         "bias": ("rows",), "cursor": ("1",)}),
    ("bias_add", "naive"): KernelImpl(
        "bias.cu", _instance("bias_add"), _matrix("z"), _elements(),
        {"z": ("rows", "cols"), "bias": ("cols",)}),
    ("bias_grad", "naive"): KernelImpl(
        "bias.cu", _instance("bias_grad"), _matrix("dz"), _columns,
        {"dz": ("rows", "cols"), "db": ("cols",)}),
    ("bias_sgd", "naive"): KernelImpl(
        "bias.cu", _instance("bias_sgd"), _matrix("dz"), _columns,
        {"dz": ("rows", "cols"), "bias": ("cols",)}),
    ("relu", "naive"): KernelImpl(
        "relu.cu", _instance("relu"), _matrix("z"), _elements(),
        {"z": ("rows", "cols"), "a": ("rows", "cols")}),
    ("relu_backward", "naive"): KernelImpl(
        "relu.cu", _instance("relu_backward"), _matrix("dz"), _elements(),
        {"da": ("rows", "cols"), "a": ("rows", "cols"), "dz": ("rows", "cols")}),
    ("softmax", "naive"): KernelImpl(
        "softmax.cu", _instance("softmax"), _matrix("z"), _rows_by_warp,
        {"z": ("rows", "cols"), "p": ("rows", "cols")}),
    ("softmax_backward", "naive"): KernelImpl(
        "softmax.cu", _instance("softmax_backward"), _matrix("p"), _elements(),
        {"p": ("rows", "cols"), "y": ("rows",), "dz": ("rows", "cols")}),
    ("cross_entropy", "naive"): _on_probabilities("cross_entropy", loss=_HERE),
    ("accuracy", "naive"): _on_probabilities("accuracy", correct=_HERE),
    ("loss_accuracy", "fused"): _on_probabilities("loss_accuracy", loss=_HERE, correct=_HERE),
    ("loss_gradient", "fused"): _on_probabilities(
        "loss_gradient", dz=_DZ, loss=_HERE, correct=_HERE),
    ("softmax_loss_gradient", "fused"): _on_probabilities(
        "softmax_loss_gradient", dz=_DZ, loss=_HERE, correct=_HERE),
    ("sgd", "naive"): KernelImpl(
        "sgd.cu", _instance("sgd"), _as_matrix("w"), _elements(),
        {"w": ("rows", "cols"), "dw": ("rows", "cols")}),
    ("linear_forward", "fused"): KernelImpl(
        "linear.cu", _linear_expression("linear_forward"), _linear_scalars("offset", "scale"),
        lambda s: ((int(s["batch"]), 1, 1), (min(_ceil(s["features"], 128) * 32, 256), 1, 1)),
        _LINEAR_SHAPES),
    ("linear_update", "fused"): KernelImpl(
        "linear.cu", _linear_expression("linear_update"), _linear_scalars("offset", "scale", "lr"),
        lambda s: ((_ceil(s["features"], 8) + 1, 1, 1), (64 * _ceil(s["CLASSES"], 2), 1, 1)),
        _LINEAR_SHAPES),
    ("advance", "naive"): KernelImpl(
        "cursor.cu", lambda op, plan: "advance", lambda op, plan: {"steps": op.attributes["steps"]},
        lambda s: ((1, 1, 1), (1, 1, 1)), {"cursor": ("1",)}),
    ("advance", "while"): KernelImpl(
        "while.cu", lambda op, plan: "advance_while",
        lambda op, plan: {k: op.attributes[k] for k in ("steps", "end", "handle")},
        lambda s: ((1, 1, 1), (1, 1, 1)), {"cursor": ("1",)}),
}


def kernel_for(op: Op) -> KernelImpl:
    """The table's entry for an op. Raises ConfigError for an impl that no kernel provides."""
    kind = f"matmul {op.attributes['layout']}" if op.kind == "matmul" else op.kind
    try:
        return KERNELS[kind, op.impl]
    except KeyError:
        raise ConfigError(f"no kernel runs the op '{op.name}' ({op.kind}/{op.impl})") from None


def kernel_arguments(
    op: Op, plan: Plan, signature: KernelSignature, addresses: Mapping[str, int]
) -> Scalars:
    """Every argument of the op's kernel by name; operands that the op leaves out are null."""
    scalars = kernel_for(op).scalars(op, plan)
    values: Scalars = {}
    for parameter in signature.parameters:
        name = parameter.name
        if parameter.pointer:
            tensor = op.operands.get(name)
            values[name] = addresses[tensor] if tensor else 0
        elif name.startswith("ld") and name[2:] in op.operands:
            values[name] = plan[op.operands[name[2:]]].ld
        else:
            values[name] = scalars[name]
    return values
