"""The last layer with a softmax cross-entropy: forward, backward and update in one op."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from rawnn.activations import activation
from rawnn.dtypes import rounded
from rawnn.losses.cross_entropy import gradient, log_loss, softmax_of
from rawnn.step.op import Attributes, define
from rawnn.step.ops.common import step_of
from rawnn.step.ops.updates import weight_update

UNIT = 32
"""Features that a warp of the kernel takes at a time."""

WARPS = 8
MOST_SPLITS = 8
"""Blocks of the largest cluster that every GPU with clusters can run."""


def units_of(features: int) -> int:
    return -(-features // UNIT)


def splits_of(features: int) -> int:
    """Blocks that share the features: a power of two, and at least 2, for the exchange is between
    the blocks of a cluster."""
    splits = 2
    while splits < MOST_SPLITS and 2 * splits <= units_of(features):
        splits *= 2
    return splits


def tiles(batch: int) -> int:
    """The kernel's rows of a batch, in eights."""
    return next(tiles for tiles in (2, 4, 8, 16) if 8 * tiles >= batch)


def shared_bytes(batch: int, features: int, classes: int, master: bool) -> int:
    """Shared memory of a block: its features' activations, weights and what their update needs,
    and partial sums of the block and of all blocks."""
    splits = splits_of(features)
    unit = tiles(batch) * 512 + classes * (192 if master else 128)
    sums = 8 * tiles(batch) * 16 * -(-classes // 4)
    return -(-units_of(features) // splits) * unit + (WARPS + splits) * sums


@define("softmax_head", reads=("a", "w", "copy", "bias", "y", "rates", "cursor", "clock"),
        writes=("dx", "w", "copy", "bias", "loss", "correct"), slotted=("loss", "correct"),
        optional=("copy", "bias", "rates", "clock"))
def softmax_head(t: SimpleNamespace, a: Attributes) -> None:
    """The last layer's product with bias, softmax_loss_gradient, input gradient and weight_update.

    Products read `copy` where there is one. dz is rounded to the type of a, as if it were stored.
    """
    s, w = step_of(t, a), t.copy if hasattr(t, "copy") else t.w
    p = softmax_of(t.a @ w.T + (t.bias if hasattr(t, "bias") else 0))
    t.loss[s] = log_loss(p, t.y).mean()
    t.correct[s] = np.count_nonzero(p.argmax(axis=1) == t.y)
    dz = gradient(p, t.y)
    if dz.dtype == np.float32:  # nothing is rounded in the float64 of the oracle
        dz = rounded(dz, a.get("stored", {}).get("a", "float32"))
    dx = dz @ w
    t.dx[...] = dx * activation(a["slope"]).slope(t.a) if a["slope"] else dx
    weight_update(SimpleNamespace(**vars(t), dz=dz, x=t.a), a)
