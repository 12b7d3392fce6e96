"""Softmax cross-entropy with class labels, the mean over the batch."""

from __future__ import annotations

import numpy as np

from rawnn.model.losses import Array, Loss, register


def log_loss(p: Array, z: Array, y: Array) -> Array:
    """-log p[y] of each row of probabilities p; from the logits z where p is no normal float32, as
    in the kernels, whatever its type. A NaN stays a NaN."""
    picked = p[np.arange(len(y)), y]
    tiny = picked < np.finfo(np.float32).tiny
    found = -np.log(np.where(tiny, 1.0, picked))
    found[tiny] = _of_logits(z[tiny], y[tiny])
    return np.asarray(found)


def _of_logits(z: Array, y: Array) -> Array:
    """The cross-entropy of each row of logits: no probability becomes 0."""
    shifted = z - z.max(axis=1, keepdims=True)
    picked = shifted[np.arange(len(z)), y]
    return np.asarray(np.log(np.exp(shifted).sum(axis=1)) - picked)


def softmax_of(z: Array) -> Array:
    """exp(z - max z) / sum, along each row."""
    e = np.exp(z - z.max(axis=1, keepdims=True))
    e /= e.sum(axis=1, keepdims=True)
    return np.asarray(e)


def gradient(p: Array, y: Array) -> Array:
    """(p - onehot(y)) / B, the gradient of the mean cross-entropy."""
    rows = len(y)
    dz = p / rows
    dz[np.arange(rows), y] -= 1.0 / rows
    return np.asarray(dz)


def _total(z: Array, y: Array) -> float:
    return float(_of_logits(z, y).sum(dtype=np.float64))


register(Loss(
    "cross_entropy", "labels",
    parts=("softmax", "cross_entropy", "accuracy", "softmax_backward"),
    fused="softmax_loss_gradient", counts=lambda outputs: 1, total=_total, link="softmax",
    of_rows="SoftmaxCrossEntropy",
))
