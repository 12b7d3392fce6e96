"""Ops that fetch a batch: from the host, or from a data set on the device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from rawnn.plan.op import Attributes, define
from rawnn.plan.ops.common import batch_rows


@define("upload", reads=("images", "labels", "targets", "cursor"), writes=("x", "y", "t"),
        optional=("labels", "targets", "y", "t"))
def upload(t: SimpleNamespace, a: Attributes) -> None:
    """Copy one batch, already normalised and in this epoch's order, from host memory."""
    window = batch_rows(t, a, len(t.x))
    t.x[...] = t.images[window]
    _answers(t, window)


@define("gather",
        reads=("images", "labels", "targets", "order", "mean", "inverse_std", "cursor"),
        writes=("x", "y", "t"),
        optional=("images", "labels", "targets", "order", "mean", "inverse_std", "x", "y", "t"))
def gather(t: SimpleNamespace, a: Attributes) -> None:
    """x = (images * scale - mean) * inverse_std for one batch of the data set; y, t its answers.

    Without `images` and x it brings answers alone.
    """
    batch = next(len(getattr(t, role)) for role in ("x", "y", "t") if hasattr(t, role))
    window = batch_rows(t, a, batch)
    if hasattr(t, "x"):
        _inputs(t, a, window)
    _answers(t, window)


def _inputs(t: SimpleNamespace, a: Attributes, window: Any) -> None:
    x = np.multiply(t.images[window], t.x.dtype.type(a["scale"]), dtype=t.x.dtype)
    if hasattr(t, "mean"):
        x = (x - t.mean) * t.inverse_std
    t.x[...] = x


def _answers(t: SimpleNamespace, window: object) -> None:
    if hasattr(t, "y"):
        t.y[...] = t.labels[window]
    if hasattr(t, "t"):
        t.t[...] = t.targets[window]
