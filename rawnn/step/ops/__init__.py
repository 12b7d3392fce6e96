"""The kinds of ops and their NumPy references: what each CUDA kernel is checked against.

Operands are views without padding, of float32 (or float64, for the oracle): what an op wrote is
rounded to its tensor's storage type behind it. Shapes: B rows of a batch, F features, C outputs.
`s = cursor + offset` is the step in the epoch. Losses define their ops in rawnn/losses.
"""

from rawnn import losses as _losses
from rawnn.step.ops import activations as _activations
from rawnn.step.ops import data as _data
from rawnn.step.ops import epoch as _epoch
from rawnn.step.ops import head as _head
from rawnn.step.ops import linear as _linear
from rawnn.step.ops import narrow as _narrow
from rawnn.step.ops import products as _products
from rawnn.step.ops import train_steps as _train_steps
from rawnn.step.ops import updates as _updates

del _activations, _data, _epoch, _head, _linear, _losses, _narrow, _products, _train_steps
del _updates
