"""The training step as data: tensors, ops, plans, and the edges that reads and writes require.

This package is independent of the driver; the host runner executes a plan with NumPy alone.
"""

from rawnn.plan.op import OPS, Op, OpSpec
from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Role, Tensor

__all__ = ["OPS", "Op", "OpSpec", "Plan", "Role", "Tensor"]
