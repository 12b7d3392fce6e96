"""Binary cross-entropy on logits, the mean over all elements, as torch.nn.BCEWithLogitsLoss."""

from __future__ import annotations

import numpy as np

from rawnn.model.losses import Array, Loss, register


def _sigmoid(z: Array) -> Array:
    e = np.exp(-np.abs(z))  # at most 1: no overflow on either side
    return np.where(z >= 0, 1 / (1 + e), e / (1 + e))


def _terms(z: Array, t: Array) -> Array:
    """max(z, 0) - z t + log(1 + exp(-|z|))."""
    found: Array = np.maximum(z, 0) - z * t + np.log1p(np.exp(-np.abs(z)))
    return found


def _gradient(z: Array, t: Array) -> Array:
    """(sigmoid(z) - t) / number of elements."""
    return np.asarray((_sigmoid(z) - t) * z.dtype.type(1.0 / z.size))


register(Loss("bce", "targets", parts=("bce", "bce_accuracy", "bce_backward"),
              fused="bce_gradient", counts=lambda outputs: outputs, terms=_terms,
              gradient=_gradient, link="sigmoid", functor="LogitCrossEntropy"))
