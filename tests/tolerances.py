"""How far results may be from what is expected: of one op as rawnn.common.tolerances derives
it, and of a test's whole run. Tests take their tolerances from here."""

from __future__ import annotations

from collections.abc import Collection

from rawnn.common.tolerances import (
    FACTOR,
    FUNCTIONS,
    SMALLEST,
    TENSOR_CORE,
    TENSOR_CORE_8_BIT,
    UNIT,
    of_op,
    table,
)

__all__ = ["FACTOR", "FUNCTIONS", "RUN", "SMALLEST", "TENSOR_CORE", "TENSOR_CORE_8_BIT", "UNIT",
           "of_op", "of_run", "table"]

RUN = 1e-5
"""Of parameters (absolute; they are of the order of 1) and losses (relative) after the some twenty
float32 steps of a test's run: each may add sqrt(width) * 2^-24 = 5e-7 of what it changes."""


def of_run(dtypes: Collection[str]) -> float:
    """Of parameters after a test's run whose activations and gradients are stored in any of
    `dtypes`, compared with one that stores the same tensors: what is fused is rounded less often.
    Parameters are moved by less than 1 in all, by gradients that are three roundings off."""
    return max(RUN, 3 * max((UNIT[name] for name in dtypes), default=0.0))
