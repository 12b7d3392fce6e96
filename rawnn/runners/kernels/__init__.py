"""Which CUDA kernel runs an op, and how it is launched: one module a family of kernels."""

from rawnn.runners.kernels import activations as _activations
from rawnn.runners.kernels import epoch as _epoch
from rawnn.runners.kernels import head as _head
from rawnn.runners.kernels import linear as _linear
from rawnn.runners.kernels import losses as _losses
from rawnn.runners.kernels import mma as _mma
from rawnn.runners.kernels import narrow as _narrow
from rawnn.runners.kernels import persistent as _persistent
from rawnn.runners.kernels import products as _products
from rawnn.runners.kernels import skinny as _skinny
from rawnn.runners.kernels import tiled as _tiled
from rawnn.runners.kernels import updates as _updates
from rawnn.runners.kernels.table import (
    KERNELS,
    WRITTEN,
    KernelImpl,
    Scalars,
    Shape,
    kernel_arguments,
    kernel_for,
    kernel_maps,
)

__all__ = ["KERNELS", "WRITTEN", "KernelImpl", "Scalars", "Shape", "kernel_arguments", "kernel_for",
           "kernel_maps"]
del _activations, _epoch, _head, _linear, _losses, _mma, _narrow, _persistent, _products, _skinny
del _tiled, _updates
