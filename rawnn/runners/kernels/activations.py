"""Bias and activation."""

from __future__ import annotations

from rawnn.runners.kernels.table import KernelImpl, elements, matrix, register, typed

_MATRIX = ("rows", "cols")


def _columns(s: dict[str, int | float]) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    return (int(s["cols"]), 1, 1), (128, 1, 1)


register("bias_add", "naive", KernelImpl(
    "bias.cu", "bias_add", typed("z"), matrix("z"), elements(),
    {"z": _MATRIX, "bias": ("cols",)}))
register("bias_grad", "naive", KernelImpl(
    "bias.cu", "bias_grad", typed("dz"), matrix("dz"), _columns,
    {"dz": _MATRIX, "db": ("cols",)}))
register("bias_sgd", "naive", KernelImpl(
    "bias.cu", "bias_sgd", typed("dz"), matrix("dz"), _columns,
    {"dz": _MATRIX, "bias": ("cols",), "rates": ("@1",), "cursor": ("1",), "loss_scale": ("2",),
     "overflow": ("1",)}))
register("activate", "naive", KernelImpl(
    "activation.cu", "activate", typed("z", "a", functors=("activation",)), matrix("z"),
    elements(), {"z": _MATRIX, "a": _MATRIX}))
register("activate_backward", "naive", KernelImpl(
    "activation.cu",
    "activate_backward", typed("da", "saved", "dz", functors=("activation",)), matrix("dz"),
    elements(), {"da": _MATRIX, "saved": _MATRIX, "dz": _MATRIX, "overflow": ("1",)}))
