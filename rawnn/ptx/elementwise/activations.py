"""Kernels of the ops that add a bias, apply an activation, and their backward passes."""

from __future__ import annotations

from collections.abc import Callable

from rawnn.ptx.family import Family
from rawnn.ptx.kernel_registry import (
    Geometry,
    GeometryVariants,
    KernelImpl,
    Scalars,
    ceil,
    matrix,
    typed,
    vectors,
)

FAMILY = Family("activations", "bias and activation, forward and backward")

_MATRIX = ("rows", "cols")


MANY = 32
"""Column blocks from which `bias_sums` gives each block 64 bytes of a row. With fewer, a block for
each column occupies more of the GPU."""


def _sums(threads: int) -> Callable[[Scalars], Geometry]:
    def geometry(s: Scalars) -> Geometry:
        blocks = ceil(s["cols"] * s["itemsize_dz"], 64)
        if blocks >= MANY:
            return (blocks, 1, 1), (4 * threads, 1, 1)
        return (int(s["cols"]), 1, 1), (threads, 1, 1)

    return geometry


_columns = GeometryVariants(tuple(map(_sums, (128, 32, 64, 256))))


FAMILY.register("bias_add", "naive", KernelImpl(
    "elementwise/bias.cu", "bias_add", typed("z"), matrix("z"), vectors("z"),
    {"z": _MATRIX, "bias": ("cols",)}))
FAMILY.register("bias_grad", "naive", KernelImpl(
    "elementwise/bias.cu", "bias_grad", typed("dz"), matrix("dz"), _columns,
    {"dz": _MATRIX, "db": ("cols",)}))
FAMILY.register("bias_sgd", "naive", KernelImpl(
    "elementwise/bias.cu", "bias_sgd", typed("dz"), matrix("dz"), _columns,
    {"dz": _MATRIX, "bias": ("cols",), "rates": ("@1",), "cursor": ("1",), "loss_scale": ("2",),
     "overflow": ("1",)}))
FAMILY.register("activate", "naive", KernelImpl(
    "elementwise/activation.cu", "activate", typed("z", "a", functors=("activation",)), matrix("z"),
    vectors("z", "a"), {"z": _MATRIX, "a": _MATRIX}))
FAMILY.register("activate_backward", "naive", KernelImpl(
    "elementwise/activation.cu",
    "activate_backward", typed("da", "saved", "dz", functors=("activation",)), matrix("dz"),
    vectors("da", "saved", "dz"),
    {"da": _MATRIX, "saved": _MATRIX, "dz": _MATRIX, "overflow": ("1",)}))
