"""GEMMs with one thread for each element of the result, without libraries or tensor cores."""

from __future__ import annotations

from rawnn.model.activations import functor
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan
from rawnn.ptx.family import Family
from rawnn.ptx.kernel_registry import (
    KernelImpl,
    Shape,
    elements,
    in_blocks,
    no_sizes,
    typed,
    types,
)

FAMILY = Family("products", "matrix products of any shape, a thread for each element of the "
                 "result, and sums of slices")

BLOCKS = ((16, 16), (32, 8), (32, 4), (64, 4), (8, 8), (8, 32))
"""Columns and rows of the thread blocks of the plain GEMMs, the default first."""

SHAPES: dict[str, dict[str, Shape]] = {
    "nt": {"a": ("m", "k"), "b": ("n", "k"), "bias": ("n",), "c": ("m", "n"), "saved": ("m", "n"),
           "overflow": ("1",)},
    "nn": {"a": ("m", "k"), "b": ("k", "n"), "c": ("m", "n"), "saved": ("m", "n"),
           "overflow": ("1",)},
    "tn": {"a": ("k", "m"), "b": ("k", "n"), "c": ("m", "n"), "overflow": ("1",)},
}


def _template(op: Op, plan: Plan) -> list[str]:
    a = op.attributes
    arguments = types(op, plan, "a", "b", "c")
    if a["layout"] == "nt":
        arguments += ["true" if a["bias"] else "false", functor(a["activation"])]
    if a["layout"] != "tn":
        output = plan[op.operands["c"]].dtype
        arguments += [functor(a["slope"]), *types(op, plan, "saved", default=output)]
    return [*arguments, accumulator(op)]


def accumulator(op: Op) -> str:
    """The C++ type of the sums."""
    return "float16" if op.attributes["compute"] == "float16" else "float"


for _layout, _shapes in SHAPES.items():
    FAMILY.register("matmul", "naive", KernelImpl(
        "gemm/matmul.cu", f"matmul_{_layout}", _template, no_sizes,
        in_blocks(*BLOCKS), _shapes), _layout)

FAMILY.register("sum_slices", "naive", KernelImpl(
    "gemm/slices.cu", "sum_slices", typed("partial", "c", flags=("bias",), functors=("activation",
                                                                                     )),
    lambda op, plan: {"rows": plan[op.operands["c"]].shape[0],
                      "cols": plan[op.operands["c"]].shape[1]},
    elements(64), {"partial": ("slices*rows", "cols"), "bias": ("cols",), "c": ("rows", "cols")}))
