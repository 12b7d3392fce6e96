"""The kernels of a step of a network of narrow layers (ptx/narrow.cu)."""

from __future__ import annotations

from rawnn.activations import functor
from rawnn.dtypes import c_type
from rawnn.ptx.table import Geometry, KernelImpl, Scalars, Shape, ceil, register
from rawnn.step.op import Op
from rawnn.step.ops.narrow import FEATURES_A_SHARE, MAX_DEPTH, ROWS_A_BLOCK, shared_bytes
from rawnn.step.plan import Plan

PIECE_ROWS, PIECE_COLS, PIECE_WARPS = 16, 32, 8
"""Weights that one warp of narrow_input or narrow_update holds, and the warps of their blocks."""

_LAYERS = range(1, MAX_DEPTH + 1)


def _layers(op: Op, plan: Plan, part: str) -> list[tuple[int, ...]]:
    """(outputs, inputs) of each layer behind a name such as "w"."""
    return [plan[op.operands[f"{part}{i}"]].shape for i in _LAYERS if f"{part}{i}" in op.operands]


def _sizes(op: Op, plan: Plan) -> Scalars:
    """The numbers in the kernels' templates, by name, and the batch."""
    if op.kind == "narrow_inner":
        copies = _layers(op, plan, "c")
        outputs = [copies[0][1], *(rows for rows, _ in copies)]
        partial = plan[op.operands["partial"]].shape
        found: Scalars = {"SPLITS": partial[0] // outputs[0], "batch": partial[1]}
    else:
        masters = _layers(op, plan, "w")
        outputs, features = [rows for rows, _ in masters], masters[0][1]
        rows_of = "partial" if op.kind == "narrow_input" else "gradients"
        found = {"SPLITS": ceil(features, FEATURES_A_SHARE), "FEATURES": features,
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


_W: dict[str, Shape] = {
    "w1": ("SIZE1", "FEATURES"), **{f"w{i}": (f"SIZE{i}", f"SIZE{i - 1}") for i in _LAYERS[1:]}}
_C: dict[str, Shape] = {name.replace("w", "c"): shape for name, shape in _W.items()}
_B: dict[str, Shape] = {f"b{i}": (f"SIZE{i}",) for i in _LAYERS}
_BETWEEN: dict[str, Shape] = {
    "partial": ("SPLITS*SIZE1", "batch"), "activations": ("DEPTH*WIDTH", "batch"),
    "gradients": ("DEPTH*WIDTH", "batch"), "row_p": ("batch",), "row_correct": ("batch",)}
_STEP: dict[str, Shape] = {"cursor": ("1",), "loss": ("@1",), "correct": ("@1",), "rates": ("@1",)}

register("narrow_input", "fused", KernelImpl(
    "narrow.cu", "narrow_input", _input, _sizes,
    lambda s: ((_blocks_of_first(s), 1, 1), (32 * PIECE_WARPS, 1, 1)),
    {"images": ("@batch", "FEATURES"), "order": ("@batch",), "cursor": ("1",), "w1": _W["w1"],
     "partial": _BETWEEN["partial"]}))
register("narrow_inner", "fused", KernelImpl(
    "narrow.cu", "narrow_inner", _inner, _sizes,
    lambda s: ((ceil(s["batch"], ROWS_A_BLOCK), 1, 1), (2 * int(s["WIDTH"]), 1, 1)),
    {"labels": ("@batch",), "order": ("@batch",), "cursor": ("1",), **_BETWEEN, **_C, **_B},
    shared=_inner_shared))
register("narrow_update", "fused", KernelImpl(
    "narrow.cu", "narrow_update", _update, _sizes, _update_geometry,
    {"images": ("@batch*STEPS", "FEATURES"), "order": ("@batch*STEPS",), **_STEP, **_BETWEEN,
     **_W, **_C, **_B}))
