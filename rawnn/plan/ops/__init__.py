"""The kinds of ops and their NumPy references: what each CUDA kernel is checked against.

Operands are views without padding, in float32 (or float64, for the oracle); after an op, its
results are rounded to the tensors' storage dtypes. Shapes: B rows of a batch, F features, C
outputs. `s = cursor + offset` is the step in the epoch. Ops of one family of kernels are defined
with it in rawnn/ptx.
"""

from rawnn.plan.ops import activations as _activations
from rawnn.plan.ops import collectives as _collectives
from rawnn.plan.ops import cross_entropy as _cross_entropy
from rawnn.plan.ops import data as _data
from rawnn.plan.ops import each_member as _each_member
from rawnn.plan.ops import epoch as _epoch
from rawnn.plan.ops import gemm as _products
from rawnn.plan.ops import losses as _losses
from rawnn.plan.ops import members as _members
from rawnn.plan.ops import metrics as _metrics
from rawnn.plan.ops import train_steps as _train_steps
from rawnn.plan.ops import updates as _updates

del _activations, _collectives, _cross_entropy, _data, _each_member, _epoch, _losses, _members
del _metrics, _products, _train_steps, _updates
