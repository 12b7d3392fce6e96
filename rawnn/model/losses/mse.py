"""Mean squared error, the mean over all elements, as torch.nn.MSELoss."""

from __future__ import annotations

import numpy as np

from rawnn.model.losses import Array, Loss, register


def _terms(z: Array, t: Array) -> Array:
    """(z - t)^2."""
    return np.asarray(np.square(z - t))


def _gradient(z: Array, t: Array) -> Array:
    """2 (z - t) / number of elements."""
    return np.asarray((z - t) * z.dtype.type(2.0 / z.size))


register(Loss("mse", "targets", parts=("mse", "mse_backward"), fused="mse_gradient",
              counts=lambda outputs: 0, terms=_terms, gradient=_gradient, functor="SquaredError",
              unit_power=2))
