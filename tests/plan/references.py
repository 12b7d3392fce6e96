"""Ops' references, called on arrays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from rawnn.plan import OPS


def run(kind: str, attributes: dict[str, Any] | None = None, **operands: Any) -> SimpleNamespace:
    """The operands, behind the op."""
    t = SimpleNamespace(**operands)
    OPS[kind].reference(t, attributes or {})
    return t


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)
