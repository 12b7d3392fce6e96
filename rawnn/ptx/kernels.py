"""Every family of kernels: importing this module registers them all."""

from rawnn.ptx import each_member as _each_member
from rawnn.ptx.elementwise import activations as _activations
from rawnn.ptx.elementwise import epoch as _epoch
from rawnn.ptx.fused import head as _head
from rawnn.ptx.fused import linear as _linear
from rawnn.ptx.fused import narrow as _narrow
from rawnn.ptx.gemm import deferred as _deferred
from rawnn.ptx.gemm import gemm_loss as _loss_products
from rawnn.ptx.gemm import mma as _mma
from rawnn.ptx.gemm import plain_gemm as _products
from rawnn.ptx.gemm import skinny as _skinny
from rawnn.ptx.gemm import tiled as _tiled
from rawnn.ptx.kernel_registry import KERNELS, WRITTEN, KernelImpl, Scalars, Shape, kernel_for
from rawnn.ptx.losses import losses as _losses
from rawnn.ptx.optimizers import updates as _updates
from rawnn.ptx.persistent import members as _members
from rawnn.ptx.persistent import persistent as _persistent

__all__ = ["KERNELS", "WRITTEN", "KernelImpl", "Scalars", "Shape", "kernel_for"]
del _activations, _deferred, _each_member, _epoch, _head, _linear, _loss_products, _losses
del _members, _mma, _narrow, _persistent, _products, _skinny, _tiled, _updates
