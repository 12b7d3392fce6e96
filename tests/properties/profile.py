"""How the property tests are run: the same examples every time, unless RAWNN_EXPLORE is set."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings


def examples(count: int) -> settings:
    """`count` examples, without a deadline for each: shared machines have slow moments."""
    explore = bool(os.environ.get("RAWNN_EXPLORE"))
    return settings(max_examples=count, deadline=None, derandomize=not explore, database=None,
                    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
