"""How the property tests are run: the same examples in the same slice (tests/slices.py), unless
RAWNN_EXPLORE is set."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, seed, settings

from tests.slices import SLICE


def examples(count: int) -> Callable[[Any], Any]:
    """`count` examples, without a deadline for each: shared machines have slow moments."""
    how = settings(max_examples=count, deadline=None, database=None,
                   suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    return how if os.environ.get("RAWNN_EXPLORE") else lambda test: seed(SLICE)(how(test))
