"""The built-in workloads, each with the sets of toggles that say most about it."""

from __future__ import annotations

from collections.abc import Sequence

from rawnn.bench.sets import WorkloadSet
from rawnn.network.workloads import workload


def default_sets(name: str) -> list[str]:
    """The toggles that a workload is measured with: float32, its own, and stochastic rounding
    where weights are in 16 bits. Raises ConfigError for an unknown name."""
    own = str(workload(name).get("opt", "best"))
    return ["best"] if own == "best" else ["best", own, "best,sr"]


def workload_sets(names: Sequence[str], opts: Sequence[str] = ()) -> list[WorkloadSet]:
    """Every workload with every set of toggles, its own ones unless some are given."""
    return [(name, opt) for name in names for opt in (opts or default_sets(name))]
