"""The built-in workloads, each with the sets of toggles that say most about it."""

from __future__ import annotations

from collections.abc import Sequence

from rawnn.bench.sets import WorkloadSet
from rawnn.bench.suites import SetsSuite, read_suites
from rawnn.model.workloads import workload

OTHERS = "others"


def default_sets(name: str, suite: SetsSuite | None = None) -> list[str]:
    """The toggles that a workload is measured with, by the packaged file unless a suite is given.
    Raises ConfigError for an unknown name."""
    workload(name)
    sets = (suite or read_suites().workloads).sets
    return list(sets.get(name, sets.get(OTHERS, ["best"])))


def workload_sets(names: Sequence[str], opts: Sequence[str] = (),
                  suite: SetsSuite | None = None) -> list[WorkloadSet]:
    """Every workload with every set of toggles, its own ones unless some are given."""
    suite = suite or read_suites().workloads
    return [(name, opt) for name in names for opt in (opts or default_sets(name, suite))]
