"""Every kind of op that a baseline plan may have, and what toggles make of them: importing this
module registers them all."""

from rawnn import losses as _losses
from rawnn.step.ops import activations as _activations
from rawnn.step.ops import data as _data
from rawnn.step.ops import epoch as _epoch
from rawnn.step.ops import products as _products
from rawnn.step.ops import train_steps as _train_steps
from rawnn.step.ops import updates as _updates

del _activations, _data, _epoch, _losses, _products, _train_steps, _updates
