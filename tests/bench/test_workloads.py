"""What `rawnn bench workloads` measures."""

from __future__ import annotations

import pytest

from rawnn.bench.workloads import default_sets, workload_sets
from rawnn.errors import ConfigError


def test_sixteen_bit_workloads_are_measured_in_32_bits_too() -> None:
    assert default_sets("linear") == ["best"]
    assert default_sets("wide64") == ["best", "best,bf16", "best,sr"]


def test_sets_that_are_named_replace_a_workloads_own() -> None:
    assert workload_sets(["linear", "wide64"], ["none"]) == [("linear", "none"), ("wide64", "none")]
    assert workload_sets(["linear"]) == [("linear", "best")]
    with pytest.raises(ConfigError, match="unknown workload 'wide'"):
        workload_sets(["wide"])
