"""Kernels of losses, with their metrics and gradients."""

from __future__ import annotations

from collections.abc import Callable

from rawnn.model import losses as _ops  # noqa: F401  (defines the ops)
from rawnn.plan.build import METRIC_WORKSPACE, ONE_BLOCK_ELEMENTS
from rawnn.plan.op import Op
from rawnn.plan.ops.metrics import KIND as LOSS_SUMS
from rawnn.plan.ops.metrics import PARTS
from rawnn.plan.plan import Plan
from rawnn.ptx.family import Family
from rawnn.ptx.kernel_registry import (
    Geometry,
    KernelImpl,
    Scalars,
    Shape,
    ceil,
    matrix,
    plain,
    typed,
    vectors,
)

FAMILY = Family("losses", "losses with their metrics and gradients")

_MATRIX: Shape = ("rows", "cols")
_STEP_ELEMENT: Shape = ("@1",)
MOST_BLOCKS = (METRIC_WORKSPACE - 1) // 2
_WORKSPACE: Shape = (str(METRIC_WORKSPACE),)
_SCALING: dict[str, Shape] = {"loss_scale": ("2",), "overflow": ("1",)}
PART_SHAPES: dict[str, Shape] = dict.fromkeys(PARTS, ("@1", "parts"))


def parts_of(op: Op, plan: Plan) -> int:
    """Columns of the partial sums that an op leaves for each step; 0 if it leaves none."""
    return plan[op.operands["loss_parts"]].shape[1] if "loss_parts" in op.operands else 0


def _sizes(operand: str) -> Callable[[Op, Plan], Scalars]:
    """rows and cols of an operand, and the number of partial sums."""
    return lambda op, plan: {**matrix(operand)(op, plan), "parts": parts_of(op, plan)}


def _rows_by_warp(s: Scalars) -> Geometry:
    return (ceil(s["rows"], 4), 1, 1), (128, 1, 1)


def _by_rows(s: Scalars) -> Geometry:
    """One block of at most 1,024 threads, so that the batch is summed in a fixed order. A thread
    handles a row; a warp does if a row is wider than a thread's registers hold (loss.cu). A large
    batch has several blocks of 256 threads."""
    lanes = 1 if s["cols"] <= 32 else 32
    if s["rows"] * s["cols"] > ONE_BLOCK_ELEMENTS:
        return (min(ceil(s["rows"] * lanes, 256), MOST_BLOCKS), 1, 1), (256, 1, 1)
    return (1, 1, 1), (min(ceil(s["rows"] * lanes, 32) * 32, 1024), 1, 1)


def _by_elements(s: Scalars) -> Geometry:
    """The same for losses that compare every element (pointwise.cuh)."""
    count = s["rows"] * s["cols"]
    if count > ONE_BLOCK_ELEMENTS:
        return (min(ceil(count, 2048), MOST_BLOCKS), 1, 1), (256, 1, 1)
    return (1, 1, 1), (min(ceil(count, 32) * 32, 1024), 1, 1)


def _labelled(name: str, source: str, *types: str, **written: Shape) -> None:
    FAMILY.register(name, "naive" if name in ("cross_entropy", "accuracy") else "fused", KernelImpl(
        "losses/loss.cu", name, typed(*types), _sizes(source), _by_rows,
        {source: _MATRIX, "y": ("rows",), "cursor": ("1",), "workspace": _WORKSPACE, **_SCALING,
         **PART_SHAPES, **written}))


FAMILY.register("softmax", "naive", KernelImpl(
    "losses/softmax.cu", "softmax", typed("z"), matrix("z"), _rows_by_warp,
    {"z": _MATRIX, "p": _MATRIX}))
FAMILY.register("softmax_backward", "naive", KernelImpl(
    "losses/softmax.cu", "softmax_backward", typed("dz"), matrix("p"), vectors("p", "dz"),
    {"p": _MATRIX, "y": ("rows",), "dz": _MATRIX, **_SCALING}))

for _loss in ("mse", "bce"):
    _shapes: dict[str, Shape] = {
        "z": _MATRIX, "t": _MATRIX, "dz": _MATRIX, "cursor": ("1",), "loss": _STEP_ELEMENT,
        "correct": _STEP_ELEMENT, "workspace": _WORKSPACE, **_SCALING, **PART_SHAPES,
    }
    FAMILY.register(_loss, "naive", KernelImpl(
        f"losses/{_loss}.cu", _loss, typed("t"), matrix("z"), _by_elements, _shapes))
    FAMILY.register(f"{_loss}_backward", "naive", KernelImpl(
        f"losses/{_loss}.cu", f"{_loss}_backward", typed("t", "dz"), matrix("z"), vectors("z"),
        _shapes))
    FAMILY.register(f"{_loss}_gradient", "fused", KernelImpl(
        f"losses/{_loss}.cu", f"{_loss}_gradient", typed("t", "dz"), _sizes("z"), _by_elements,
        _shapes))
FAMILY.register("bce_accuracy", "naive", KernelImpl(
    "losses/bce.cu", "bce_accuracy", typed("t"), matrix("z"), _by_elements, _shapes))
_labelled("cross_entropy", "p", z=_MATRIX, loss=_STEP_ELEMENT)
_labelled("accuracy", "p", correct=_STEP_ELEMENT)
_labelled("loss_accuracy", "p", z=_MATRIX, loss=_STEP_ELEMENT, correct=_STEP_ELEMENT)
_labelled("loss_gradient", "p", "dz", z=_MATRIX, dz=_MATRIX, loss=_STEP_ELEMENT,
          correct=_STEP_ELEMENT)
_labelled("softmax_loss_gradient", "z", "dz", dz=_MATRIX, loss=_STEP_ELEMENT, correct=_STEP_ELEMENT)
FAMILY.register(LOSS_SUMS, "naive", KernelImpl(
    "losses/loss_sums.cu", "loss_sums", plain, lambda op, plan: {"parts": parts_of(op, plan)},
    lambda s: ((int(s["span"]), 1, 1), (128, 1, 1)),
    {**dict.fromkeys(PARTS, ("@span", "parts")), "cursor": ("1",), "loss": ("@span",),
     "correct": ("@span",)}))
