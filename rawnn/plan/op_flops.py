"""The work of an op: its GEMMs, their operations, and their precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rawnn.model.optimizers import UPDATE_RULES
from rawnn.plan.op import Op
from rawnn.plan.ops.train_steps import KIND
from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Role

Sizes = tuple[int, int, int]
"""m, n and k of a GEMM [m, k] [k, n]."""
PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float8_e4m3": "fp8", "float8_e5m2": "fp8"}
"""Storage dtypes -> the precision of their GEMMs."""


def _of_attributes(op: Op, plan: Plan) -> Iterator[Sizes]:
    a = op.attributes
    yield a["m"], a["n"], a["k"]


def _of_weights(times: int) -> Callable[[Op, Plan], Iterator[Sizes]]:
    """As many GEMMs of the op's weights [n, k] as of the batch."""

    def gemms_of(op: Op, plan: Plan) -> Iterator[Sizes]:
        n, k = plan[op.operands["w"]].shape
        yield from [(plan.batch, n, k)] * times

    return gemms_of


def _of_layers(first: int, times: int) -> Callable[[Op, Plan], Iterator[Sizes]]:
    """The same for the layers from `first` on."""

    def gemms_of(op: Op, plan: Plan) -> Iterator[Sizes]:
        weights = {t.layer: t.shape for t in map(plan.__getitem__, op.tensors)
                   if t.role in (Role.PARAMETER, Role.COPY) and len(t.shape) == 2}
        for layer, (n, k) in weights.items():
            if layer >= first:
                yield from [(plan.batch, n, k)] * times
        if "partial" in op.operands and "w1" in op.operands and op.kind == "narrow_update":
            n, k = plan[op.operands["w1"]].shape  # the first GEMM of the next step
            yield plan.batch, n, k

    return gemms_of


def _of_steps(op: Op, plan: Plan) -> Iterator[Sizes]:
    step: Plan = op.attributes["step"]
    inner = [sizes for each in step.ops for sizes in gemms_of(each, step)]
    yield from inner * int(op.attributes["span"])


def _of_deferred(op: Op, plan: Plan) -> Iterator[Sizes]:
    """The gradient's GEMM of each step, and the next step's forward GEMM."""
    times = int(op.attributes["steps_at_once"]) + ("a" in op.operands)
    yield from _of_weights(times)(op, plan)


GEMMS: dict[str, Callable[[Op, Plan], Iterator[Sizes]]] = {
    **dict.fromkeys(("matmul", "matmul_slices", "matmul_loss"), _of_attributes),
    **dict.fromkeys((*(rule.fused_kind for rule in UPDATE_RULES.values()), "linear_forward",
                     "linear_update"), _of_weights(1)),
    **{f"{rule.kind}_{what}": _of_deferred for rule in UPDATE_RULES.values()
       for what in ("forward", "recomputed")},
    "layer_backward": _of_weights(2), "softmax_head": _of_weights(3),
    "narrow_input": _of_layers(1, 1), "narrow_inner": _of_layers(2, 2),
    "narrow_update": _of_layers(1, 1), KIND: _of_steps,
}
"""Kinds of ops that contain GEMMs."""


def gemms_of(op: Op, plan: Plan) -> list[Sizes]:
    """The GEMMs of an op; an empty list if it has none."""
    return list(GEMMS[op.kind](op, plan)) if op.kind in GEMMS else []


def operations(op: Op, plan: Plan) -> int:
    """Multiplications and additions in an op's GEMMs; for other ops one for each element that they
    write."""
    if op.kind in GEMMS:
        return sum(2 * m * n * k for m, n, k in gemms_of(op, plan))
    written = {name for name, _ in op.writes if name != op.operands.get("workspace")}
    return sum(_elements(plan, name) for name in written)


def _elements(plan: Plan, name: str) -> int:
    tensor = plan[name]
    return 1 if tensor.role is Role.METRIC else tensor.nbytes // tensor.itemsize


def op_precision(op: Op, plan: Plan) -> str:
    """The precision of an op's GEMMs: "float32", "tf32", "bf16", "fp16" or "fp8"."""
    if op.kind == KIND:
        step: Plan = op.attributes["step"]
        return next((op_precision(each, step) for each in step.ops if each.kind in GEMMS),
                    "float32")
    if str(op.attributes.get("dtype", "")) in PRECISIONS:
        return PRECISIONS[str(op.attributes["dtype"])]
    stored = [plan[op.operands[role]].dtype for role in ("a", "b", "dz", "x")
              if role in op.operands]
    small = [PRECISIONS[dtype] for dtype in stored if dtype in PRECISIONS]
    if small and len(small) == len(stored):
        return small[0]
    return "tf32" if op.attributes.get("compute") == "tf32" else "float32"
